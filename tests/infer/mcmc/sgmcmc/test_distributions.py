"""Which distribution stochastic-gradient kernels draw from, against exact values; variants that draw from another."""

import math
from typing import ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov

from problems.monte_carlo import assert_mean, deviation
from problems.noisy_gradients import gradient_noise
from problems.targets import LANGEVIN
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, PSGLD, SGHMC, SGLD
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics, EuclideanMechanics, Metric, ProductMechanics
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings, StochasticState, euler_step, splitting_step
from pyro_manifold.manifolds import Stiefel

STIEFEL = LANGEVIN["V(3,2)"]
PRECISION = torch.tensor([[2.0, 1.2], [1.2, 1.0]], dtype=torch.float64)


def gaussian():
    """Precision with eigenvalues 0.2 and 2.8."""
    pyro.sample("x", dist.MultivariateNormal(torch.ones(2), precision_matrix=PRECISION))


def draw(kernel, num_samples=300, warmup_steps=100, num_chains=256):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)


@pytest.mark.long
def test_the_euler_integrator_on_orthonormal_matrices():
    kernel = OSGHMC(STIEFEL.model(), step_size=0.02, num_steps=30, friction=0.1, integrator="euler")
    assert_mean(STIEFEL.statistic(draw(kernel, 100)["X"]), *STIEFEL.expectation())


class Isotropic(CayleyMechanics):
    """Projected standard normal momenta: the covariance of another kinetic energy."""

    def momentum_from(self, noise, position, metric):
        return self._manifold.tangent_projection(position, noise)


class WrongNoise(OSGHMC):
    manifold_mechanics: ClassVar = {Stiefel: Isotropic()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
def test_noise_of_another_covariance_is_noticed():
    samples = draw(WrongNoise(STIEFEL.model(), step_size=0.06, num_steps=10, friction=0.1), 100)
    assert deviation(STIEFEL.statistic(samples["X"]), *STIEFEL.expectation()) < -20


def assert_covariance(samples, covariance):
    centred = samples["x"] - 1.0
    for i in range(2):
        assert_mean(samples["x"][..., i], 1.0)
        for j in range(i, 2):
            assert_mean(centred[..., i] * centred[..., j], float(covariance[i][j]))


def test_the_splitting_is_exact_on_a_gaussian_at_any_temperature():
    """Half drifts around friction and noise leave the positions of a harmonic oscillator exact at any step size."""
    samples = draw(SGHMC(gaussian, step_size=0.8, num_steps=10, friction=0.3, temperature=0.25))
    assert_covariance(samples, PRECISION.inverse() / 4)


def test_euler_on_a_gaussian():
    """Drift, then friction, force and noise: the covariance of this linear recursion, from Lyapunov's equation."""
    step_size, friction, estimate = 0.3, 0.2, 0.05
    eye = torch.eye(2, dtype=torch.float64)
    move = torch.cat(
        [
            torch.cat([eye, step_size * eye], 1),
            torch.cat([-step_size * PRECISION, (1 - friction) * eye - step_size**2 * PRECISION], 1),
        ]
    )
    noise = torch.zeros(4, 4, dtype=torch.float64)
    noise[2:, 2:] = 2 * (friction - estimate) * eye
    covariance = solve_discrete_lyapunov(move.numpy(), noise.numpy())[:2, :2]
    kernel = SGHMC(
        gaussian, step_size=step_size, num_steps=20, friction=friction, noise_estimate=estimate, integrator="euler"
    )
    assert_covariance(draw(kernel), covariance)


def test_langevin_on_a_gaussian():
    r"""Precision k has the variance $1/(k(1 - \varepsilon k/4))$."""
    step_size = 0.3
    eye = torch.eye(2, dtype=torch.float64)
    covariance = (PRECISION @ (eye - step_size / 4 * PRECISION)).inverse()
    assert_covariance(draw(SGLD(gaussian, step_size=step_size, num_steps=20)), covariance)


def spread_of_preconditioned_langevin(**options):
    def model():
        pyro.sample("x", dist.Normal(torch.ones(2), torch.tensor([1.0, 10.0])).to_event(1))

    draws = draw(PSGLD(model, num_steps=100, **options), 100, 250)["x"]
    assert_mean(draws[..., 0], 1.0)
    assert_mean(draws[..., 1], 1.0)
    return draws.flatten(0, 1).std(0) / torch.tensor([1.0, 10.0])


@pytest.mark.long
def test_preconditioned_langevin_on_a_gaussian():
    """With a memory long beside the time in which a chain forgets its place, the scale that it learns hardly varies."""
    assert ((spread_of_preconditioned_langevin(step_size=0.1, decay=0.9998) - 1).abs() < 0.05).all()


@pytest.mark.long
def test_the_correction_that_preconditioned_langevin_drops_is_noticed():
    """Where these times are equal, the correction Γ would be as large as the force."""
    assert spread_of_preconditioned_langevin(step_size=0.02, decay=0.999)[1] > 1.1


def test_constrained_sites():
    """The same transforms for all kernels."""

    def model():
        pyro.sample("scale", dist.Gamma(3.0, 2.0))

    draws = draw(SGHMC(model, step_size=0.1, num_steps=40), 100)["scale"]
    assert_mean(draws, 1.5)
    assert_mean(draws.square(), 3.0)


def test_without_temperature_it_finds_the_mode():
    def model():
        X = pyro.sample("X", StiefelUniform(3, 2))
        x = pyro.sample("x", dist.Normal(2.0, 1.0))
        pyro.factor("pull", 3 * X[0, 0] + 2 * X[1, 1] - 0.5 * (x - 1) ** 2)

    kernel = OSGHMC(model, step_size=0.2, num_steps=10, temperature=0.0)
    mcmc = MCMC(kernel, 1, 100, num_chains=8, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples()
    assert torch.allclose(draws["X"], torch.eye(3, 2).expand(8, 3, 2), atol=1e-6)
    assert torch.allclose(draws["x"], torch.full((8,), 1.5), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("integrator", ["splitting", "euler"])
def test_the_noise_estimate_takes_away_what_the_noise_of_the_gradient_adds(integrator):
    """Its variance is 4, which at ε = 0.1 and α = 0.1 makes the variance of x larger by a fifth."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        gradient_noise("x", x, 2.0)

    options = {"num_steps": 10, "minibatches": "independent", "per_chain_minibatches": True, "integrator": integrator}
    raw = draw(SGHMC(model, step_size=0.1, **options), 150)["x"]
    corrected = draw(SGHMC(model, step_size=0.1, noise_estimate=0.02, **options), 150)["x"]
    assert deviation(raw.square(), 1.0) > 6
    assert_mean(corrected.square(), 1.0)


@pytest.mark.long
@pytest.mark.parametrize(("integrator", "friction"), [("splitting", 1.0), ("euler", 0.5)])
def test_the_noise_estimate_suits_any_friction_and_temperature(integrator, friction):
    """Half of the noise of friction at τ = ½ comes from the gradient; at ε = 0.05 nothing else moves the variance."""
    step_size, temperature = 0.05, 0.5
    estimate = friction * temperature / 2

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        gradient_noise("x", x, (2 * estimate) ** 0.5 / step_size)

    kernel = SGHMC(
        model,
        step_size=step_size,
        num_steps=40,
        friction=friction,
        temperature=temperature,
        noise_estimate=estimate,
        integrator=integrator,
        minibatches="independent",
        per_chain_minibatches=True,
    )
    assert_mean(draw(kernel, 200)["x"].square(), temperature)


X = ("x",)


def stationary_variances(step, settings, noise):
    """Of position and momentum, U = x²/2 with noise of this standard deviation on the gradient, by Lyapunov's equation.

    A step is linear in where it starts (position, momentum, gradient) and in two normal numbers, that of friction and
    that of the gradient: its matrix has a column for each.
    """
    x, r, g, xi, z = torch.eye(5, dtype=torch.float64).unsqueeze(-1)
    state = StochasticState(*({X: part} for part in (x, r)), torch.zeros(5), {X: g}, 0, {}, {}, 0)
    moved = step(
        state,
        settings,
        {X: xi.clone()},
        lambda position: (torch.zeros(5), {X: position[X] + noise * z}),
        mechanics=ProductMechanics({X: EuclideanMechanics()}),
        metrics={X: Metric.from_inverse_mass(torch.ones(1, dtype=torch.float64))},
    )
    matrix = torch.cat([part[X] for part in (moved.position, moved.momentum, moved.gradient)], 1).mT
    covariance = solve_discrete_lyapunov(matrix[:, :3].numpy(), (matrix[:, 3:] @ matrix[:, 3:].mT).numpy())
    return covariance[0, 0], covariance[1, 1]


@pytest.mark.parametrize("friction", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("step", [splitting_step, euler_step])
def test_the_noise_estimate_is_exact_for_short_steps(step, temperature, friction):
    """Half of what friction takes comes from the gradient; the variance of positions is that without its noise."""
    ε, estimate = 0.01, friction * temperature / 2
    noise = (2 * estimate) ** 0.5 / ε
    position, momentum = stationary_variances(step, StepSettings(ε, temperature, friction, estimate), noise)
    assert position == pytest.approx(temperature, rel=2e-4)
    if step is euler_step:  # whose momenta alone have the denominator α(2 - α), of which kernels take account
        assert momentum == pytest.approx(temperature * 2 / (2 - friction), rel=2e-4)
    without = stationary_variances(step, StepSettings(ε, temperature, friction), noise)[0]
    rate = 2 * friction if step is euler_step else 4 * math.tanh(friction / 2)
    assert without == pytest.approx(temperature + (ε * noise) ** 2 / rate, rel=2e-4)


def test_momenta_of_euler_are_hotter_than_its_positions():
    """By 2/(2 - α), which the reported temperature leaves out: its positions are as cold as they should be."""
    mcmc = MCMC(
        SGHMC(gaussian, step_size=0.05, num_steps=20, friction=0.5, integrator="euler"),
        100,
        20,
        num_chains=256,
        disable_progbar=True,
    )
    mcmc.run()  # and does not warn
    measured = mcmc.get_extra_fields(group_by_chain=True)["kinetic_temperature"]
    assert abs(float(measured.mean()) - 1) < 0.01


def test_preconditioned_langevin_from_a_mode():
    """Where all gradients are 0: the first steps are those of the stationary distribution, not of λ alone."""
    scales = torch.tensor([0.01, 1.0, 100.0])

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(3), scales).to_event(1))

    step_size, start = 1e-4, {"x": torch.zeros(256, 3)}
    mcmc = MCMC(PSGLD(model, step_size=step_size), 1, 0, num_chains=256, initial_params=start, disable_progbar=True)
    mcmc.run()
    # A first step of variance εM⁻¹, and M⁻¹ is the scale of a normal coordinate, as E (∂U)² is its inverse square.
    ratio = mcmc.get_samples()["x"].square() / (step_size * scales)
    for coordinate in range(3):
        assert_mean(ratio[:, coordinate], first_inverse_mass(8))


def first_inverse_mass(probes):
    """The mean of 1/√v for v the root mean square of so many standard normal numbers, 99 % of which v keeps."""
    chi = torch.distributions.Chi2(torch.tensor(float(probes), dtype=torch.float64))
    pyro.set_rng_seed(0)
    return float((0.99 * (chi.sample((10**6,)) / probes).sqrt()).rsqrt().mean())


@pytest.mark.long
def test_scales_of_sites():
    """A step a hundred times the smaller scale would leave the finite numbers; with scales the splitting is exact."""

    def model():
        pyro.sample("small", dist.Normal(0.0, 0.01))
        pyro.sample("large", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        X = pyro.sample("X", StiefelUniform(3, 2))
        pyro.factor("langevin", 100 * X[0, 0])

    kernel = OSGHMC(model, step_size=0.8, num_steps=5, friction=0.3, scales={"small": 0.01, "X": 0.1})
    draws = draw(kernel, 200)
    assert_mean((100 * draws["small"]).square(), 1.0)
    assert_mean(draws["large"][..., 0].square(), 1.0)
    assert draws["X"][..., 0, 0].mean() > 0.95
