"""MSD end to end: exact posteriors, posteriors by quadrature, and what it says of input that it cannot take."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_sample, init_to_value
from torch.distributions import biject_to

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.distributions.transforms import HouseholderTransform
from pyro_manifold.infer import MCMC, MSD
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE, compiled_code, make_native_code_at_once

INPUTS = np.linspace(-1.0, 2.0, 12)
NOISE = np.array([0.4, -1.1, 0.3, 0.9, -0.2, 0.1, -0.6, 1.2, 0.5, -0.9, 0.2, -0.3])


def run(kernel, num_samples=40, warmup_steps=25, num_chains=400, runner=MCMC, **options):
    mcmc = runner(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def draws(*arguments, **options):
    """Draws of many chains: in native code from the start, where there is a compiler, as it is much faster."""
    with pytest.MonkeyPatch.context() as patch:
        make_native_code_at_once(patch)
        return run(*arguments, **options).get_samples(group_by_chain=True)


def tensor(values):
    return torch.as_tensor(np.asarray(values, dtype=float))


# ---- a linear model: the posterior is Gaussian and known ------------------------------------------------------


def linear():
    with pyro.plate("weights", 2):
        w = pyro.sample("w", dist.Normal(1.0, 0.5))
    with pyro.plate("data", len(INPUTS)):
        pyro.sample("y", dist.Normal(w[0] + w[1] * tensor(INPUTS), 0.8), obs=tensor(INPUTS + NOISE))


def linear_posterior():
    """Mean and covariance, by the normal equations."""
    design = np.column_stack([np.ones_like(INPUTS), INPUTS])
    precision = design.T @ design / 0.8**2 + np.eye(2) / 0.5**2
    mean = np.linalg.solve(precision, design.T @ (INPUTS + NOISE) / 0.8**2 + 1 / 0.5**2)
    return mean, np.linalg.inv(precision)


def assert_linear_posterior(w):
    mean, covariance = linear_posterior()
    centred = w - tensor(mean)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert_mean(centred[..., i] * centred[..., j], covariance[i, j])
    for i in range(2):
        assert_mean(w[..., i], mean[i])


@pytest.mark.parametrize(
    "options",
    [pytest.param({"step_size": 0.1, "num_steps": 5}, marks=pytest.mark.long), {"step_size": 0.8, "metropolis": True}],
)
def test_linear_model(options):
    kernel = MSD(linear, persistence=0.5, init_strategy=init_to_sample, **options)
    assert_linear_posterior(draws(kernel)["w"])
    assert WITHOUT_NATIVE_CODE or kernel.run.transitions[0].graph.backend == "native"


@pytest.mark.long
def test_under_pyros_mcmc():
    kernel = MSD(linear, step_size=1.0, persistence=0.5, metropolis=True)
    mcmc = run(kernel, 1500, 100, num_chains=1, runner=pyro.infer.MCMC)
    assert_linear_posterior(mcmc.get_samples(group_by_chain=True)["w"])
    assert mcmc.diagnostics()["jittered metrics"] == {"chain 0": 0}


@pytest.mark.long
def test_the_metric_of_a_linear_model_makes_one_step_size_fit_all():
    """G is the posterior's precision: in its units the motion is a circle, of which half a radian is a small step.

    In those of the sites leapfrog steps of that size are unstable.
    """
    precision = np.linalg.inv(linear_posterior()[1])
    assert 0.5 * np.linalg.eigvalsh(precision).max() ** 0.5 > 2
    mcmc = run(MSD(linear, step_size=0.5, metropolis=True), num_samples=20, num_chains=50)
    rates = mcmc.diagnostics()["acceptance_rate"]
    assert np.mean(list(rates.values())) > 0.9


# ---- two unconstrained parameters: quadrature -------------------------------------------------------------------


def logistic():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    outcomes = tensor(INPUTS + NOISE > 0.3)
    pyro.sample("y", dist.Bernoulli(logits=w[0] + w[1] * tensor(INPUTS)).to_event(1), obs=outcomes)


def poisson():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(INPUTS)):
        counts = tensor(np.round(np.exp(0.3 + 0.6 * INPUTS + 0.3 * NOISE)))
        pyro.sample("y", dist.Poisson((w[0] + w[1] * tensor(INPUTS)).exp()), obs=counts)


def banana():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(w[0] + w[1] ** 2, 0.4).expand([2]).to_event(1), obs=tensor([0.8, 1.1]))


def location_and_scale():
    """Coordinates are the location and the log of the scale."""
    location = pyro.sample("a", dist.Normal(0.0, 2.0))
    scale = pyro.sample("b", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", 4):
        pyro.sample("y", dist.Normal(location, scale), obs=tensor(NOISE[:4]))


def log_logistic(a, b):
    eta = a + b * INPUTS
    return ((INPUTS + NOISE > 0.3) * eta - np.logaddexp(0, eta)).sum(-1) - (a[..., 0] ** 2 + b[..., 0] ** 2) / 8


def log_poisson(a, b):
    eta = a + b * INPUTS
    counts = np.round(np.exp(0.3 + 0.6 * INPUTS + 0.3 * NOISE))
    return (counts * eta - np.exp(eta)).sum(-1) - (a[..., 0] ** 2 + b[..., 0] ** 2) / 2


def log_banana(a, b):
    residual = (np.array([0.8, 1.1]) - a - b**2) / 0.4
    return -0.5 * (residual**2).sum(-1) - (a[..., 0] ** 2 + b[..., 0] ** 2) / 2


def log_location_and_scale(a, b):
    residual = (NOISE[:4] - a) * np.exp(-b)
    return -0.5 * (residual**2).sum(-1) - 4 * b[..., 0] - a[..., 0] ** 2 / 8 - b[..., 0] ** 2 / 2


MODELS = {
    "logistic": (logistic, log_logistic),
    "Poisson": (poisson, log_poisson),
    "location and scale": (location_and_scale, log_location_and_scale),
}


def quadrature(log_density):
    """Means of a, b, a², ab, b²."""
    grid = np.linspace(-9, 9, 901)
    a, b = np.meshgrid(grid, grid, indexing="ij")
    log_weight = log_density(a[..., None], b[..., None])
    weight = np.exp(log_weight - log_weight.max())
    return [float((weight * f).sum() / weight.sum()) for f in (a, b, a * a, a * b, b * b)]


def moments(samples):
    a, b = samples["w"].unbind(-1) if "w" in samples else (samples["a"], samples["b"].log())
    return a, b, a * a, a * b, b * b


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_exact_version_against_quadrature(name):
    """`test_draws_are_exact_after_the_adaptation` has the banana."""
    model, log_density = MODELS[name]
    kernel = MSD(model, step_size=0.25, persistence=0.5, metropolis=True, num_steps=4)
    for values, truth in zip(moments(draws(kernel, num_chains=600)), quadrature(log_density), strict=True):
        assert_mean(values, truth)


def count():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Poisson(w.exp()), obs=torch.tensor(1.0))


@pytest.mark.parametrize("target", [pytest.param("posterior", marks=pytest.mark.long), "jeffreys"])
def test_the_two_targets_differ_by_the_root_of_the_determinant(target):
    """One parameter: Fisher information plus prior precision is eʷ + 1; the means are −0.119 and −0.004."""
    w = np.linspace(-8, 6, 4001)
    log_weight = w - np.exp(w) - w**2 / 2 + (target == "jeffreys") * 0.5 * np.log(np.exp(w) + 1)
    weight = np.exp(log_weight) / np.exp(log_weight).sum()
    found = draws(MSD(count, step_size=0.3, persistence=0.5, metropolis=True, num_steps=5, target=target))["w"]
    assert_mean(found, float(weight @ w))
    assert_mean(found**2, float(weight @ w**2))


@pytest.mark.long
def test_single_precision():
    """Sites of no dimensions, whose tangents torch turns into double precision in sums with Python's numbers."""
    torch.set_default_dtype(torch.float32)

    def growth():
        top, half = (pyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in ("top", "half"))
        x = torch.linspace(0.1, 1.0, 10)
        with pyro.plate("data", 10):
            pyro.sample("y", dist.Normal(1.0 + 2.0 * top * x / (half + x), 0.2), obs=1.0 + x)

    samples = run(MSD(growth, step_size=0.1), num_samples=10, num_chains=3).get_samples()
    assert samples["top"].dtype == torch.float32
    assert samples["top"].isfinite().all()


# ---- metrics of the user's ---------------------------------------------------------------------------------------


def standardised(sites):
    w = sites["w"]
    return torch.cat([w / 2.0, 2 * torch.atan(torch.tanh((w[0] + w[1] * tensor(INPUTS)) / 4))])


def information(sites):
    w = sites["w"]
    design = torch.stack([torch.ones(len(INPUTS)), tensor(INPUTS)], -1)
    p = torch.sigmoid(design @ w)
    return design.mT @ (design * (p * (1 - p))[:, None]) + torch.eye(2) / 4


@pytest.mark.long
def test_the_same_metric_given_in_any_form_gives_the_same_draws():
    found = []
    for metric in (None, standardised, information):
        pyro.set_rng_seed(1)
        kernel = MSD(logistic, step_size=0.2, metric=metric, metropolis=True)
        found.append(run(kernel, num_samples=5, warmup_steps=0, num_chains=3).get_samples()["w"])
    assert torch.allclose(found[0], found[1])
    assert torch.allclose(found[0], found[2])


def test_a_metric_in_another_dtype_is_taken_in_that_of_the_sites():
    kernel = MSD(logistic, step_size=0.2, metric=lambda sites: standardised(sites).float())
    assert run(kernel, num_samples=3, warmup_steps=0, num_chains=2).get_samples()["w"].dtype == torch.float64


def test_a_potential_function_with_a_metric():
    kernel = MSD(
        potential_fn=lambda sites: 0.5 * sites["w"].square().sum(),
        metric=lambda s: s["w"],
        step_size=1,
        metropolis=True,
    )
    w = draws(kernel, initial_params={"w": torch.randn(400, 2)})["w"]
    assert_mean(w[..., 0] ** 2, 1.0)


@pytest.mark.long
def test_a_matrix_moves_in_a_chart():
    def model():
        U = pyro.sample("U", StiefelUniform(3, 1))
        pyro.sample("y", dist.Normal(U[..., 0], 0.5).to_event(1), obs=tensor([1.0, 0.0, 0.0]))

    with pytest.raises(ValueError, match=r"Site 'U'.*transforms"):
        run(MSD(model, step_size=0.1))
    kernel = MSD(
        model,
        step_size=0.25,
        persistence=0.5,
        metropolis=True,
        num_steps=4,
        transforms={"U": HouseholderTransform(3, 1).inv},
    )
    U = draws(kernel)["U"]
    kappa = 4.0  # |y - U|²/(2 · ½²) is -4 yᵀU but for a constant: von Mises–Fisher on the sphere
    assert_mean(U[..., 0, 0], 1 / np.tanh(kappa) - 1 / kappa)


def test_the_polar_chart_at_orthonormal_matrices():
    """Where chains begin: a trace of the chart alone has no derivative there."""

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("y", dist.Normal(U, 0.5).to_event(2), obs=torch.eye(3, 2))

    chart = {"U": biject_to(constraints.stiefel).inv}
    sampler = MSD(model, step_size=0.1, metropolis=True, transforms=chart).prepare(8, 0, None)
    assert sampler.sites["U"].mT.matmul(sampler.sites["U"]).allclose(torch.eye(2).expand(8, 2, 2))
    sampler.advance()
    assert sampler.statistics["accepted"].any()


# ---- what can go wrong ----------------------------------------------------------------------------------------


def test_a_step_that_is_too_long_diverges_is_counted_and_is_never_followed_away():
    with pytest.warns(UserWarning, match="Chains .* moved in fewer than 5 % of iterations"):
        mcmc = run(MSD(banana, step_size=100.0), num_samples=40, num_chains=5)
    assert mcmc.get_samples()["w"].isfinite().all()
    assert sum(len(found) for found in mcmc.diagnostics()["divergences"].values()) > 0


@pytest.mark.long
@pytest.mark.parametrize("metropolis", [False, True])
def test_chains_arrive_from_a_start_where_the_step_is_far_too_long(metropolis):
    """A location off by a thousand of the scale: an energy of 2·10⁶, where steps of 0.3 are all rejected."""
    start = init_to_value(values={"a": torch.tensor(20.0), "b": torch.tensor(0.02)})
    kernel = MSD(location_and_scale, step_size=0.3, metropolis=metropolis, init_strategy=start)
    draws(kernel, num_samples=20, warmup_steps=300, num_chains=20)
    assert kernel.run.statistics["lp"].min() > -30


@pytest.mark.long
def test_draws_are_made_with_the_whole_step():
    start = init_to_value(values={"a": torch.tensor(20.0), "b": torch.tensor(0.02)})
    kernel = MSD(location_and_scale, step_size=0.3, metropolis=True, init_strategy=start)
    shares = []
    hook = lambda kernel, *_: shares.append(kernel.run.statistics["step_size"] / 0.3)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warm-up is too short, so that chains may be found stuck
        run(kernel, num_samples=1, warmup_steps=6, num_chains=2, hook_fn=hook)
    assert (shares[4] < 1).any()
    assert torch.allclose(shares[6], torch.ones(2))
    assert [kernel.run.tuning.settings(iteration).adjusted for iteration in (1, 3, 4, 7)] == [False, False, True, True]


@pytest.mark.long
def test_a_branch_that_only_numpy_sees_is_not_frozen_in_the_step():
    """Twice the density on one side; a graph of the step would have forgotten the other."""

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("side", torch.tensor(np.log(2.0)) * float(w.detach().numpy() > 0), has_rsample=False)

    kernel = MSD(model, step_size=0.5, persistence=0.0, num_steps=3, metropolis=True, ignore_jit_warnings=True)
    w = run(kernel, num_samples=20, warmup_steps=5, num_chains=30).get_samples(group_by_chain=True)["w"]
    assert_mean((w > 0).double(), 2 / 3)


def test_jitter_is_reported():
    kernel = MSD(linear, step_size=1e-6, metric=lambda sites: sites["w"].sum().unsqueeze(0))
    with pytest.warns(UserWarning, match="singular at 15 draws"):
        mcmc = run(kernel, num_samples=5, warmup_steps=2, num_chains=3)
    assert mcmc.get_samples()["w"].isfinite().all()
    assert mcmc.diagnostics()["jittered_metrics"] == {f"chain {chain}": 5 for chain in range(3)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"persistence": 1.0}, "persistence=1.0, expected"),
        ({"persistence": "high"}, "persistence='high', expected"),
        ({"target": "prior"}, "target='prior', expected"),
        ({"step_size": -1}, "step_size=-1, expected"),
        ({"num_steps": 0}, "num_steps=0, expected"),
        ({"num_steps": None}, "num_steps=None, expected"),
        ({"step_size": None}, "step_size=None, expected"),
        ({"metropolis": "yes"}, "metropolis='yes', expected"),
        ({"adapt_step_size": True}, "adapt_step_size=True, expected metropolis=True with it"),
        ({"adapt_step_size": "no", "metropolis": True}, "adapt_step_size='no', expected True, False or None"),
        ({"target_accept_prob": 1.0}, "target_accept_prob=1.0, expected"),
        ({"metric_scale": 2.0}, "metric_scale=2.0, expected a dictionary"),
        ({"metric_scale": {"w": "a"}}, r"metric_scale\['w'\]='a', expected"),
        ({"metric": 3}, "metric=3, expected"),
        ({"metric_scale": {"w": 0}}, r"metric_scale\['w'\]=0, expected"),
        ({"metric_scale": {"w": 2}, "metric": standardised}, "metric_scale is only for the automatic"),
        ({"metric": lambda sites: torch.eye(3)}, r"shape \(3, 3\), expected a vector"),
        ({"metric": lambda sites: None}, "metric returns None, expected a tensor"),
        ({"metric": lambda sites: sites["w"] * torch.nan}, "not finite at the initial values of chain 0"),
        ({"metric": lambda sites: sites["w"].detach()}, "not positive definite"),
        ({"metric": lambda sites: -torch.eye(2)}, "not positive definite"),
        ({"metric": lambda sites: torch.ones(2, 2).tril()}, "not symmetric"),
        ({"metric": lambda sites: sites["w"] * sites["w"][0].item()}, r"cannot be differentiated.*\.item\(\)"),
        ({"metric": lambda sites: sites["w"] * torch.rand(2)}, "cannot be differentiated.*random"),
    ],
)
def test_arguments_out_of_range_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        run(MSD(linear, **options))


@compiled_code
@pytest.mark.long
def test_a_compiled_step_has_the_same_draws():
    found = []
    for compiled in (False, True):
        pyro.set_rng_seed(1)
        kernel = MSD(linear, step_size=0.1, jit_compile=compiled)
        found.append(run(kernel, num_samples=5, warmup_steps=0, num_chains=3).get_samples()["w"])
    assert torch.allclose(*found)


# ---- the step size of the adjusted version ----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("step_size", [0.02, 3.0])
def test_warm_up_finds_the_step_size_of_a_target_acceptance(step_size):
    """A curved posterior, from a step that is far too short and from one with which nothing is accepted."""
    kernel = MSD(banana, step_size=step_size, num_steps=3, metropolis=True, target_accept_prob=0.8)
    mcmc = run(kernel, num_samples=60, warmup_steps=120, num_chains=50)
    acceptance = np.mean(list(mcmc.diagnostics()["acceptance_rate"].values()))
    assert 0.7 < acceptance < 0.9
    steps = kernel.run.statistics["step_size"]
    assert torch.allclose(steps, torch.full_like(steps, kernel.step_size))


@pytest.mark.long
def test_draws_are_exact_after_the_adaptation():
    samples = draws(MSD(banana, persistence=0.5, metropolis=True, num_steps=4), warmup_steps=100, num_chains=300)
    for values, truth in zip(moments(samples), quadrature(log_banana), strict=True):
        assert_mean(values, truth)


@pytest.mark.long
def test_an_easy_posterior_does_not_lengthen_trajectories_beyond_a_quarter_period():
    """Half a period would end at the mirror image of each draw, and never change its square."""
    kernel = MSD(linear, step_size=0.1, num_steps=8, metropolis=True)
    run(kernel, num_samples=1, warmup_steps=100, num_chains=20)
    assert kernel.step_size == pytest.approx(np.pi / 2 / 8)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"adapt_step_size": False}, {}])
def test_a_step_size_is_kept_without_adaptation_or_with_a_short_warm_up(options):
    kernel = MSD(banana, step_size=2.0, metropolis=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains hardly move with so long a step
        run(kernel, num_samples=1, warmup_steps=18 if not options else 60, num_chains=2)
    assert kernel.step_size == 2.0
