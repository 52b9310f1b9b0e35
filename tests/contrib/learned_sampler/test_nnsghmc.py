"""Distribution of NNSGHMC with any networks; equality with SGHMC without networks; Γ; saving; bad input."""

from dataclasses import replace
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean, deviation
from problems.noisy_gradients import gradient_noise
from pyro_manifold.compiled.native import NoCompilerError
from pyro_manifold.contrib.learned_sampler import (
    Columns,
    CoordinateNetwork,
    CoordinateUpdate,
    Scaling,
    in_parts,
    learned_step,
)
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, NNSGHMC, OSGHMC, SGHMC, MetaSampler
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings, StochasticState
from tests.infer.mcmc.compilers import native_code

SIZE = 60
X = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
Y = torch.sin(3 * X)


def any_sampler(seed, cls=MetaSampler):
    """Networks that nobody trained, whose Q and D vary by as much as they are."""
    random = torch.Generator().manual_seed(seed)
    constants = {"constant_curl": 1.5, "curl_friction": 0.3, "constant_friction": 0.5, "dimension": 2}
    return cls.random(8, 1.0, random, **constants)


def without_networks(friction):
    """Q = 1 and a constant D."""
    return MetaSampler.random(4, readout=0.0, constant_friction=friction)


class WithoutCorrections(MetaSampler):
    """The variant without Γ."""

    def coefficients(self, *arguments):
        found = super().coefficients(*arguments)
        zero = torch.zeros_like(found.curl)
        return found._replace(curl_by_energy=zero, curl_by_momentum=zero, friction_by_momentum=zero)


def regression(orthogonal=False):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    slope = pyro.sample("U", StiefelUniform(3, 2))[0, 0] if orthogonal else 1.0
    with pyro.plate("data", SIZE, subsample_size=12) as rows:
        pyro.sample("y", dist.Normal(w[0] + w[1] * slope * X[rows], 0.5), obs=Y[rows])


@pytest.mark.parametrize(
    ("options", "orthogonal"),
    [
        ({}, True),
        ({"scales": {"w": 0.3}}, True),
        ({"per_chain_minibatches": True, "noise_estimate": 0.02, "temperature": 0.5}, False),
    ],
)
def test_without_networks_it_is_sghmc_draw_for_draw(options, orthogonal):
    model, ε, α = partial(regression, orthogonal), 0.02, 0.1
    plain = partial(OSGHMC if orthogonal else SGHMC, integrator="euler")
    learned = partial(NNSGHMC, sampler=without_networks(α / ε), data_size=1)
    found = []
    for kernel in (plain, learned):
        pyro.set_rng_seed(3)
        chosen = kernel(model, step_size=ε, friction=α, num_steps=3, **options)
        mcmc = MCMC(chosen, 20, 5, num_chains=3, disable_progbar=True)
        mcmc.run()
        found.append(mcmc.get_samples())
    torch.testing.assert_close(found[1], found[0])


def gaussian():
    """Variances 1 and 0.25."""
    pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 0.5])).to_event(1))


def banana():
    r"""x₀ standard normal, x₁ normal around $(x_0^2 - 1)/2$."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 0.5])).to_event(1))
    centre = 0.5 * (x[..., 0] ** 2 - 1)
    pyro.factor("bent", (x[..., 1] ** 2 - (x[..., 1] - centre) ** 2) / (2 * 0.25))


def moments(name, draws):
    """Pairs of draws and their known mean."""
    a, b = draws[..., 0], draws[..., 1]
    if name == "gaussian":
        return [(a, 0.0), (b, 0.0), (a * a, 1.0), (b * b, 0.25)]
    return [(a, 0.0), (b, 0.0), (a * a, 1.0), (b * b, 0.75), (a * a * b, 1.0)]


def drawn(model, sampler, step_size=0.02, num_steps=40, draws=60, **options):
    kernel = NNSGHMC(model, sampler=sampler, step_size=step_size, num_steps=num_steps, **options)
    mcmc = MCMC(kernel, draws, 15, num_chains=256, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)["x"]


@pytest.mark.parametrize(("model", "seed"), [pytest.param(gaussian, 2, marks=pytest.mark.long), (banana, 1)])
def test_any_networks_draw_from_the_target(model, seed):
    for draws, truth in moments(model.__name__, drawn(model, any_sampler(seed), draws=20)):
        assert_mean(draws, truth)


@pytest.mark.long
def test_networks_with_a_fixed_scale_of_gradients_draw_from_the_target():
    for draws, truth in moments("banana", drawn(banana, replace(any_sampler(1), gradient_scale=0.7))):
        assert_mean(draws, truth)


@pytest.mark.long
def test_the_corrections_are_needed():
    found = moments("banana", drawn(banana, any_sampler(1, WithoutCorrections), draws=120))
    assert max(abs(deviation(*pair)) for pair in found) > 8


def with_one_correction(part, cls=MetaSampler):
    """A sampler with one of the three terms of Γ."""
    by_energy, by_square = (part == "∂Q/∂U"), (part == "∂Q/∂r")
    curl = [[1.5 * by_energy, 1.5 * by_square]], [-1.0 * by_square], [1.0 * (by_energy or by_square)]
    friction = [[0.0, 1.5, 0.0]], [-1.0], [3.0 * (part == "∂D/∂r")]
    curl, friction = (CoordinateNetwork(*map(torch.tensor, (*net, 0.0))) for net in (curl, friction))
    constants = {"constant_curl": 1.5, "constant_friction": 0.12, "step_size": 0.4, "dimension": 2}
    return cls(curl, friction, energy_centre=2.1, **constants)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")  # without one
@pytest.mark.parametrize("part", ["∂Q/∂U", "∂Q/∂r", "∂D/∂r"])
def test_each_correction_is_right_and_needed(part):
    """By how often a coordinate is within one standard deviation: without a correction squares may have no mean."""
    errors = []
    for cls in (MetaSampler, WithoutCorrections):
        draws = drawn(gaussian, with_one_correction(part, cls), step_size=0.01, num_steps=80, draws=40)
        within = (draws / torch.tensor([1.0, 0.5])).abs() < 1
        errors.append(max(abs(deviation(value.double(), 0.6826895)) for value in within.unbind(-1)))
    assert errors[0] < 4 < 5 < errors[1]


@pytest.mark.long
def test_temperature():
    draws = drawn(gaussian, any_sampler(1), temperature=0.5)
    for value, truth in moments("gaussian", draws * 2**0.5):
        assert_mean(value, truth)


def noisy():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 0.5])).to_event(1))
    gradient_noise("x", x, 2.0)


class OnOneBatch(NNSGHMC):
    """Q of the batch of the force that it multiplies."""

    def step(self):
        def step(state, settings, noise, potential, **options):
            energy, slopes = potential(state.position)
            return learned_step(state._replace(energy=energy, gradient=slopes), settings, noise, potential, **options)

        return step


NOISY = {
    "step_size": 0.01,
    "num_steps": 80,
    "minibatches": "independent",
    "per_chain_minibatches": True,
    "data_size": 1,
}


@pytest.mark.long
def test_noise_of_batches_adds_no_bias_to_that_of_sghmc():
    """At ε = 0.01 noise of variance 4 makes variances larger by 1 % or so; here the networks see noisy energies."""
    draws = []
    for kernel in (NNSGHMC, OnOneBatch):
        mcmc = MCMC(kernel(noisy, sampler=any_sampler(1), **NOISY), 40, 15, num_chains=256, disable_progbar=True)
        mcmc.run()
        draws.append(mcmc.get_samples(group_by_chain=True)["x"])
    errors = [[abs(deviation(*pair)) for pair in moments("gaussian", each)] for each in draws]
    assert max(errors[0]) < 4 < 8 < max(errors[1])


# ---- derivatives -----------------------------------------------------------------------------------------------------


def test_derivatives_are_those_of_autograd_and_of_differences():
    sampler = any_sampler(0)
    energy, momentum, gradient = torch.randn(3), torch.randn(3, 5), torch.randn(3, 5)
    exact = sampler.coefficients(energy, momentum, gradient, Scaling(7, 3))
    differences = sampler.coefficients(energy, momentum, gradient, Scaling(7, 3, "finite differences"))
    torch.testing.assert_close(differences, exact, rtol=1e-6, atol=1e-8)
    # Of its own energy for each coordinate, so that a sum over coordinates can be derived.
    energies = energy[:, None].expand(3, 5).reshape(15).clone().requires_grad_()
    columns = [x.reshape(15, 1).clone().requires_grad_() for x in (momentum, gradient)]
    found = sampler.coefficients(energies, *columns, Scaling(7, 3))
    by_energy, by_momentum = torch.autograd.grad(found.curl.sum(), (energies, columns[0]), retain_graph=True)
    (friction_by_momentum,) = torch.autograd.grad(found.friction.sum(), columns[0])
    torch.testing.assert_close(by_energy.reshape(3, 5), exact.curl_by_energy)
    torch.testing.assert_close(by_momentum.reshape(3, 5), exact.curl_by_momentum)
    torch.testing.assert_close(friction_by_momentum.reshape(3, 5), exact.friction_by_momentum)


def test_many_coordinates_are_taken_in_parts():
    sampler, scaling = any_sampler(0), Scaling(1003, 1)
    numbers, mass = (torch.randn(2, 1003), torch.randn(2, 1003)), torch.rand(1)

    def function(r, g, mass):
        return sampler.coefficients(torch.ones(2), mass * r, g, scaling)

    whole = in_parts(function, 10**6, *numbers, mass)
    with torch.no_grad():
        parts = in_parts(function, 200, *numbers, mass)
        assert len(parts) == 5
    for part, expected in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, expected)


@native_code
@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (torch.float32, 1),
        (torch.float64, 3000),
        pytest.param(torch.float32, 3000, marks=pytest.mark.long),
        pytest.param(torch.float64, 1, marks=pytest.mark.long),
    ],
)
def test_native_code_opens_the_same_step(dtype, scales):
    torch.set_default_dtype(dtype)
    chains, d = 3, 3000
    columns = Columns(*torch.randn(5, chains, d), 0.5 + torch.rand(1, scales))
    energy, unit = torch.randn(chains), torch.rand(1)
    coordinate_update = CoordinateUpdate(any_sampler(0).to(energy), Scaling(d, 5))
    coordinate_update.compile(columns.position)
    assert coordinate_update.is_native(columns.position)
    for settings in (StepSettings(0.01, 1.0), StepSettings(0.02, 0.5, 0.1, 0.002)):
        plain = CoordinateUpdate(any_sampler(0).to(energy), Scaling(d, 5))(columns, energy, unit, settings)
        for found, expected in zip(coordinate_update(columns, energy, unit, settings), plain, strict=True):
            assert found.shape == (chains, d)
            torch.testing.assert_close(found, expected)


@native_code
def test_without_a_compiler_there_is_a_warning_and_the_same_run(monkeypatch):
    def large():
        pyro.sample("x", dist.Normal(torch.zeros(3000), 1.0).to_event(1))

    def draws():
        pyro.set_rng_seed(0)
        kernel = NNSGHMC(large, sampler=any_sampler(0), step_size=0.02, num_steps=5)
        return kernel.prepare(3, 0, None).advance()["x"]

    def nothing(*_):
        raise NoCompilerError("there is no C compiler (cc, gcc or clang)")

    native = draws()
    monkeypatch.setattr("pyro_manifold.compiled.native.loop.compiled", nothing)
    with pytest.warns(UserWarning, match="No native code for the learned step, .*: there is no C compiler"):
        plain = draws()
    torch.testing.assert_close(native, plain)
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    assert torch.equal(draws(), plain)


def test_a_mirror_image_is_drawn_alike():
    r, g, energy = torch.randn(3, 5), torch.randn(3, 5), torch.randn(3)
    found, mirrored = (any_sampler(0).coefficients(energy, s * r, s * g, Scaling(5)) for s in (1, -1))
    signs = {"curl_by_momentum": -1, "friction_by_momentum": -1}
    for name, value in found._asdict().items():
        torch.testing.assert_close(getattr(mirrored, name), signs.get(name, 1) * value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_differences_take_the_same_steps(dtype):
    torch.set_default_dtype(dtype)
    found = []
    for derivatives in ("exact", "finite differences"):
        pyro.set_rng_seed(0)
        kernel = NNSGHMC(gaussian, sampler=any_sampler(0), step_size=0.02, num_steps=10, derivatives=derivatives)
        found.append(kernel.prepare(5, 0, None).advance()["x"])
    assert found[0].dtype == dtype
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_of_another_sampler_is_refused():
    first, second = (
        NNSGHMC(regression, sampler=any_sampler(seed), step_size=1e-3, num_steps=3).prepare(3, 2, None)
        for seed in (0, 1)
    )
    with pytest.raises(ValueError, match="sampler_fingerprint"):
        second.load_state_dict(first.state_dict())


def of_batch(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", SIZE, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * x, 0.5), obs=y)


@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")  # far from the mass, so soon
def test_loaders_and_the_mcmc_of_pyro():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=20, shuffle=True)
    options = {"sampler": "gaussian", "step_size": 1e-3, "num_steps": 10}
    mcmc = MCMC(NNSGHMC(of_batch, **options), 10, 5, disable_progbar=True)
    mcmc.run(data_loader=loader)
    assert mcmc.get_samples()["w"].shape == (10, 2)
    kernel = NNSGHMC(regression, **options)
    mcmc = pyro.infer.MCMC(kernel, 10, 5, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["w"].shape == (10, 2)


@pytest.mark.parametrize(("given", "size"), [(None, SIZE), (7, 7)])
def test_the_number_of_data(given, size):
    kernel = NNSGHMC(regression, sampler="gaussian", step_size=1e-3, data_size=given)
    assert kernel.scaling_of(kernel.prepare(2, 0, None).problem) == Scaling(2, size)


def test_a_sampler_that_has_seen_no_data_does_not_count_them():
    numbers = torch.randn(1), torch.randn(1, 4), torch.randn(1, 4)
    for trained, alike in ((1, True), (50, False)):
        sampler = replace(any_sampler(0), data_size=trained)
        few, many = (sampler.coefficients(*numbers, Scaling(4, size)) for size in (1, 1000))
        assert torch.equal(few.friction, many.friction) == alike
        assert (sampler.step_size_for(1) == sampler.step_size_for(1000)) == alike


def test_a_step_for_which_friction_is_too_much():
    sampler = replace(without_networks(0.5), step_size=0.1)
    NNSGHMC(gaussian, sampler=sampler, step_size=0.15).prepare(2, 0, None)
    with pytest.warns(UserWarning, match=r"step_size=0.25 is 2.5 times the step size 0.1 .* choose at most 0.2\."):
        NNSGHMC(gaussian, sampler=sampler, step_size=0.25).prepare(2, 0, None)


def test_friction_follows_the_number_of_data():
    """A posterior of four times the data takes half the step, and D the same share of the momentum in it."""
    sampler = replace(any_sampler(0), step_size=0.1, data_size=50)
    numbers = torch.tensor([3.0]), torch.randn(1, 4), torch.randn(1, 4)
    small, large = (sampler.coefficients(*numbers, Scaling(2, size)) for size in (50, 200))
    torch.testing.assert_close(large.curl, small.curl)
    torch.testing.assert_close(sampler.step_size_for(200) * large.friction, sampler.step_size_for(50) * small.friction)
    assert sampler.step_size_for(200) == 0.05


@pytest.mark.parametrize(("data_size", "factor"), [(30, 0.5), (1, 1.0)])
def test_a_fixed_scale_of_gradients_follows_the_number_of_data(data_size, factor):
    """The first step is that of the root mean square of the first gradients if the fixed scale has this value."""
    sampler = replace(any_sampler(0), data_size=data_size)
    after, first = [], 1.0
    for scale in (None, factor, 0.3 * factor):
        pyro.set_rng_seed(0)
        chosen = replace(sampler, gradient_scale=scale and scale * first)
        run = NNSGHMC(regression, sampler=chosen, step_size=1e-3, num_steps=1).prepare(3, 0, None)
        first = float(run.state.gradient["w",].square().mean().sqrt())
        run.advance()
        after.append(run.state.momentum["w",])
    torch.testing.assert_close(after[1], after[0])
    assert not torch.allclose(after[2], after[0])


@pytest.mark.parametrize("own", [False, True])
def test_likelihood_and_prior_are_in_units_of_training(own):
    """L by the number of data, P by that of coordinates; a sampler trained without data, or that sees none, differs."""
    sampler = replace(any_sampler(0), data_size=30, dimension=5)
    for trained, parts in ((sampler, True), (replace(sampler, data_size=1), False)):
        kernel = NNSGHMC(regression, sampler=trained, step_size=1e-3, per_chain_minibatches=own)
        problem = kernel.prepare(3, 0, None).problem
        w = problem.position["w",].clone().requires_grad_()
        prior = -dist.Normal(0.0, 1.0).log_prob(w).sum(1)
        energy, gradient = problem.at_step(0)(problem.position)
        state = StochasticState(problem.position, {}, energy, gradient, 0, {}, {}, 0)
        found, slopes = kernel.step_on(problem).keywords["energy_input"](state)
        (of_prior,) = torch.autograd.grad(prior.sum(), w)
        data, coordinates = (30 / SIZE, 5 / 2) if parts else (5 / 2, 5 / 2)
        torch.testing.assert_close(found, data * (energy - prior.detach()) + coordinates * prior.detach())
        torch.testing.assert_close(slopes["w",], data * (gradient["w",] - of_prior) + coordinates * of_prior)


def observed():
    """Variances 1 and 0.25, partly from the prior and partly from two data."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    precision = torch.tensor([1.0, 4.0]) - 0.25
    with pyro.plate("data", 2):
        pyro.sample("y", dist.Normal(x, (2 / precision).sqrt()).to_event(1), obs=torch.zeros(2, 2))


@pytest.mark.long
def test_a_scaled_energy_draws_from_the_target():
    """The prior counts five times as much as the likelihood, so that most of the gradient of the energy is its own."""
    scale = {"data_size": 4, "dimension": 20, "energy_centre": 43.0, "energy_scale": 3.0}
    sampler = replace(any_sampler(1), constant_friction=1.0, **scale)
    draws = drawn(observed, sampler, data_size=2)
    for value, truth in moments("gaussian", draws):
        assert_mean(value, truth)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NNSGHMC(gaussian, sampler=3, step_size=0.1), "sampler=3, expected a MetaSampler, its file, or one of"),
        (lambda: NNSGHMC(gaussian, sampler="nobody", step_size=0.1), "There is no sampler 'nobody': pass a file"),
        (lambda: NNSGHMC(gaussian, sampler="gaussian", step_size=0.1, data_size=0), "data_size=0"),
        (lambda: NNSGHMC(gaussian, sampler="gaussian", step_size=0.1, friction=1.5), "friction=1.5"),
        (lambda: NNSGHMC(gaussian, sampler="gaussian", step_size=0.1, noise_estimate=0.2), "noise_estimate=0.2"),
        (lambda: NNSGHMC(gaussian, sampler="gaussian", step_size=0.1, derivatives="none"), "derivatives='none'"),
        (
            lambda: NNSGHMC(gaussian, sampler="gaussian", step_size=0.1, integrator="euler"),
            "integrator is not supported",
        ),
        (lambda: MetaSampler.load(None), "name=None, expected a file"),
        (lambda: MetaSampler.random(0), "hidden=0"),
        (lambda: MetaSampler.random(2, readout=float("nan")), "'curl readout' has values that are not finite"),
        (lambda: any_sampler(0).step_size_for(0), "data_size=0"),
        (lambda: any_sampler(0).save("/nowhere/sampler.npz"), "There is no folder /nowhere for sampler.npz"),
        (lambda: replace(any_sampler(0), constant_friction=0.0), "constant_friction=0.0"),
        (lambda: replace(any_sampler(0), curl_friction=-1.0), "curl_friction=-1.0"),
        (lambda: replace(any_sampler(0), gradient_scale=0.0), "gradient_scale=0.0"),
        (lambda: replace(any_sampler(0), curl=CoordinateNetwork.random(3, 3, 1.0)), "The network 'curl' has weights"),
    ],
)
def test_one_sentence(make, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as error:
        make()
    assert "\n" not in str(error.value)
