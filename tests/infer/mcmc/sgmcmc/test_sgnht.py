"""The thermostat: its order, its stationary distribution, what it makes of noise, and where it cannot know better."""

import math
from typing import ClassVar

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean, deviation
from problems.noisy_gradients import gradient_noise
from problems.targets import LANGEVIN
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC, SGNHT
from pyro_manifold.infer.mcmc.mechanics import (
    CayleyMechanics,
    EuclideanMechanics,
    GeodesicMechanics,
    Metric,
    ProductMechanics,
)
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings, StochasticState, mean_decay, thermostat_step
from pyro_manifold.manifolds import Stiefel

INDEPENDENT = {"minibatches": "independent", "per_chain_minibatches": True}
STIEFEL = LANGEVIN["V(3,2)"]
X = ("x",)


def drawn(kernel, num_samples=200, warmup_steps=50, num_chains=256, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)


# ---- the step ---------------------------------------------------------------------------------------------------


def two_kinds(x):
    U = pyro.sample("U", StiefelUniform(3, 2))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x), subsample_size=5) as rows:
        pyro.sample("y", dist.Normal(x[rows] @ U @ w, 1.0), obs=x[rows, 0])


def test_a_thermostat_too_heavy_to_move_is_sghmc():
    x, found = torch.linspace(-1, 1, 60).reshape(20, 3), []
    for kernel, options in ((OSGHMC, {"minibatches": "independent"}), (SGNHT, {"thermostat_mass": 1e15})):
        pyro.set_rng_seed(0)
        mcmc = MCMC(
            kernel(two_kinds, step_size=0.05, num_steps=3, **options), 20, 0, num_chains=3, disable_progbar=True
        )
        mcmc.run(x)
        found.append(mcmc.get_samples())
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-8, atol=1e-8)


def flow(steps, temperature=0.7, time=2.0):
    """Where x, r and ξ/ε are after a time without noise, for U = x⁴/4 + x²/2 in three coordinates."""
    ε, friction = time / steps, 0.3 * time / steps

    def potential(position):
        x = position[X]
        return (x**4 / 4 + x**2 / 2).sum(1), {X: x**3 + x}

    x = torch.tensor([[1.0, -0.5, 0.2]])
    energy, gradient = potential({X: x})
    state = StochasticState({X: x}, {X: x.flip(1) + 1}, energy, gradient, 0, {X: torch.tensor([friction])}, {}, 0)
    mechanics = ProductMechanics({X: EuclideanMechanics()})
    metrics = {X: Metric.from_inverse_mass(torch.full((1, 3), 2.0))}
    for _ in range(steps):
        state = thermostat_step(
            state,
            StepSettings(ε, temperature, friction),
            {X: torch.zeros(1, 3)},
            potential,
            mechanics=mechanics,
            metrics=metrics,
            thermostat_mass=0.5,
        )
    return torch.cat([state.position[X][0], state.momentum[X][0], state.memory[X] / ε])


def test_a_step_is_of_second_order():
    exact = flow(4096)
    errors = [float((flow(steps) - exact).norm()) for steps in (32, 64, 128)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.03)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_noise_of_a_step_is_right_about_zero_and_below(dtype):
    x = torch.tensor([-5.0, -1e-3, -1e-9, 0.0, 1e-30, 1e-9, 1e-3, 5.0], dtype=dtype)
    exact = [1.0 if abs(a) < 1e-20 else -math.expm1(-a) / a for a in x.tolist()]
    torch.testing.assert_close(mean_decay(x), torch.tensor(exact, dtype=dtype), rtol=4 * torch.finfo(dtype).eps, atol=0)


# ---- its stationary distribution --------------------------------------------------------------------------------


@pytest.mark.parametrize(("mass", "temperature"), [(None, 0.5), pytest.param(1.0, 1.0, marks=pytest.mark.long)])
def test_positions_and_thermostats_without_noise(mass, temperature):
    r"""ξ is normal about α, of the variance $\varepsilon^2\tau/(Qd)$, by default $\alpha^2/(2d)$."""
    scales = torch.tensor([0.5, 1.0, 1.5])

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(3), scales).to_event(1))

    kernel = SGNHT(model, step_size=0.05, num_steps=20, thermostat_mass=mass, temperature=temperature)
    draws, fields = drawn(kernel)
    for k in range(3):
        assert_mean(draws["x"][..., k], 0.0)
        assert_mean((draws["x"][..., k] / scales[k]).square(), temperature)
    assert_mean(fields["thermostat"], 0.1)
    variance = 0.1**2 / 6 if mass is None else 0.05**2 * temperature / 3
    assert_mean((fields["thermostat"] - 0.1).square(), variance)


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.long), 0.5])
def test_the_thermostat_finds_the_noise_of_the_gradient(temperature):
    """With friction alone the variance would be larger by two fifths of it."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        gradient_noise("x", x, 4.0 * temperature**0.5)

    options = {"step_size": 0.05, "friction": 0.05, "num_steps": 40, "temperature": temperature, **INDEPENDENT}
    draws, fields = drawn(SGNHT(model, **options), 40, 10, 128)
    assert_mean(draws["x"][..., 0].square(), temperature)
    assert_mean(draws["x"][..., 4].square(), temperature)
    assert_mean(fields["thermostat"], 0.05 + 0.05**2 * 4.0**2 / 2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of")
def test_without_the_thermostat_that_noise_heats():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        gradient_noise("x", x, 4.0)

    draws, _ = drawn(SGHMC(model, step_size=0.05, friction=0.05, num_steps=40, **INDEPENDENT), 60, 10, 128)
    assert deviation(draws["x"][..., 0].square(), 1.0) > 6


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of")
def test_noise_in_one_coordinate_is_shared_among_all():
    """The temperature is right on average only: the noisy coordinate stays hot, and the others are too cold."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        gradient_noise("x", x[0], 4.0)

    draws, _ = drawn(SGNHT(model, step_size=0.05, friction=0.05, num_steps=40, **INDEPENDENT), 60, 10, 128)
    assert deviation(draws["x"][..., 0].square(), 1.0) > 6
    assert deviation(draws["x"][..., 1].square(), 1.0) < -6


@pytest.mark.long
def test_scales_of_sites_make_noise_alike():
    """A site known four times as well, with four times the noise, is as noisy as the other in its own unit."""

    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.0, 0.25))
        gradient_noise("a", a, 4.0)
        gradient_noise("b", b, 16.0)

    kernel = SGNHT(model, step_size=0.05, friction=0.05, num_steps=40, scales={"b": 0.25}, **INDEPENDENT)
    draws, fields = drawn(kernel, 60, 10, 128)
    assert_mean(draws["a"].square(), 1.0)
    assert_mean((4 * draws["b"]).square(), 1.0)
    assert_mean(fields["thermostat"], 0.07)


# ---- manifolds --------------------------------------------------------------------------------------------------


def langevin(target, noise):
    F = torch.as_tensor(target.F)

    def model():
        X = pyro.sample("X", StiefelUniform(*F.shape))
        pyro.factor("langevin", (F * X).sum((-2, -1)))
        if noise:
            gradient_noise("X", X, noise)

    return model


def langevin_draws(kernel, target, noise=0.0, **options):
    options = {"step_size": 0.05, "friction": 0.1, "num_steps": 20} | options | (INDEPENDENT if noise else {})
    draws, fields = drawn(kernel(langevin(target, noise), **options), 60, 15, 128)
    return target.statistic(draws["X"]), fields["thermostat"]


class Embedded(SGNHT):
    """In the embedded metric noise of one variance in all entries heats all directions alike."""

    manifold_mechanics: ClassVar = {Stiefel: GeodesicMechanics(Stiefel())}


ONE_COLUMN = next(target for target in LANGEVIN.values() if target.F.shape[1] == 1 and len(target.F) > 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "target", "noise"),
    [(SGNHT, STIEFEL, 0.0), (Embedded, STIEFEL, 4.0), (SGNHT, ONE_COLUMN, 0.0), (SGNHT, ONE_COLUMN, 4.0)],
)
def test_on_orthonormal_matrices(kernel, target, noise):
    statistic, thermostat = langevin_draws(kernel, target, noise)
    assert_mean(statistic, *target.expectation())
    assert_mean(thermostat, 0.1 + 0.05**2 * noise**2 / 2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of")
def test_the_thermostat_undoes_most_of_the_noise_on_orthonormal_matrices():
    """Not all: the rotation among two columns, one of three degrees of freedom, is heated twice as much."""
    (mean, error), noise = STIEFEL.expectation(), 8.0
    kernel = OSGHMC(langevin(STIEFEL, noise), step_size=0.05, friction=0.1, num_steps=20, **INDEPENDENT)
    heated = STIEFEL.statistic(drawn(kernel, 60, 15, 128)[0]["X"])
    undone, thermostat = langevin_draws(SGNHT, STIEFEL, noise)
    assert deviation(heated, mean, error) < -10
    assert abs(float(undone.mean()) - mean) < 0.3 * abs(float(heated.mean()) - mean)
    assert float(thermostat.mean()) == pytest.approx(0.1 + 4 / 3 * 0.05**2 * noise**2 / 2, rel=0.03)


@pytest.mark.long
def test_unit_vectors():
    """Its mean along c is that of the von Mises–Fisher distribution on the sphere, coth κ - 1/κ."""

    def model():
        x = pyro.sample("x", dist.ProjectedNormal(torch.zeros(3)).mask(False))
        pyro.factor("pull", 2 * x[0])
        gradient_noise("x", x, 4.0)

    draws, fields = drawn(SGNHT(model, step_size=0.05, num_steps=20, **INDEPENDENT), 60, 15, 128)
    assert_mean(draws["x"][..., 0], 1 / math.tanh(2.0) - 0.5)
    assert_mean(fields["thermostat"], 0.1 + 0.05**2 * 4.0**2 / 2)


class AllEntriesFree(CayleyMechanics):
    """Counts the entries of a matrix as its degrees of freedom."""

    def degrees_of_freedom(self, position):
        return position[0].numel()


class WrongDegrees(SGNHT):
    manifold_mechanics: ClassVar = {Stiefel: AllEntriesFree()}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of")
def test_wrong_degrees_of_freedom_are_noticed():
    statistic, thermostat = langevin_draws(WrongDegrees, STIEFEL)
    assert deviation(statistic, *STIEFEL.expectation()) < -20
    assert deviation(thermostat, 0.1) < -20


def test_a_site_that_cannot_move_leaves_its_thermostat_alone():
    def model():
        pyro.sample("sign", StiefelUniform(1, 1))
        pyro.sample("x", dist.Normal(0.0, 1.0))

    draws, fields = drawn(SGNHT(model, step_size=0.1, num_steps=10), 20, 0, 4)
    assert (fields["thermostat of sign"] == 0.1).all()
    assert torch.equal(fields["thermostat"], fields["thermostat of x"])
    assert draws["x"].isfinite().all()


# ---- what it says -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_each_block_has_its_thermostat():
    """Noise on one site alone: the other keeps its friction. Their mean counts degrees of freedom."""

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        U = pyro.sample("U", StiefelUniform(4, 1))
        gradient_noise("U", U, 4.0)
        pyro.factor("nothing", 0.0 * x.sum())

    _, fields = drawn(SGNHT(model, step_size=0.05, num_steps=20, **INDEPENDENT), 60, 15, 32)
    assert_mean(fields["thermostat of x"], 0.1)
    assert_mean(fields["thermostat of U"], 0.12)
    both = fields["thermostat of x"] + fields["thermostat of U"]
    torch.testing.assert_close(fields["thermostat"], both / 2)


def test_many_sites_are_reported_in_short():
    def model():
        for k in range(6):
            pyro.sample(f"x{k}", dist.Normal(0.0, 1.0))
        pyro.sample("U", StiefelUniform(2, 1))

    _, fields = drawn(SGNHT(model, step_size=0.1), 3, 0, 2)
    assert {"thermostat", "thermostat of U", "thermostat of x0, x1, x2 and 3 more"} <= fields.keys()


def test_without_temperature_it_finds_the_mode():
    def model():
        x = pyro.sample("x", dist.Normal(2.0, 1.0))
        pyro.factor("pull", -0.5 * (x - 1) ** 2)

    draws, fields = drawn(SGNHT(model, step_size=0.2, num_steps=10, temperature=0.0), 1, 100, 8)
    assert torch.allclose(draws["x"], torch.full((8, 1), 1.5), atol=1e-6)
    assert (fields["thermostat"] == 0.1).all()


def test_a_run_of_another_mass_is_refused():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    runs = [SGNHT(model, step_size=0.1, thermostat_mass=mass).prepare(2, 0, None) for mass in (None, 1.0, 2.0)]
    for run in runs:
        for other in runs:
            if other is not run:
                with pytest.raises(ValueError, match="thermostat_mass"):
                    other.load_state_dict(run.state_dict())
