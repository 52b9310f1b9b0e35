"""Samplers against known distributions, end to end through MCMC."""

import itertools
from functools import partial

import pytest
from pyro.infer import NUTS
from pyro.infer.autoguide.initialization import init_to_sample
from torch.distributions import biject_to

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN, NoisyMatrix
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE, make_native_code_at_once
from tests.infer.mcmc.kernels import KERNELS


@pytest.fixture(autouse=True)
def _native_code_from_the_start(monkeypatch):
    """Runs as short as these would do without."""
    make_native_code_at_once(monkeypatch)


def draw(kernel, num_samples, warmup_steps=300, num_chains=64, native=False):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True)
    mcmc.run()
    assert not native or WITHOUT_NATIVE_CODE or kernel.run.code.graphs["trajectory"].backend == "native"
    return mcmc.get_samples(group_by_chain=True)


def in_chart(target, chart, **options):
    """All orthonormal matrices as coordinates of a chart, whose Jacobian the distribution then depends on.

    With trajectories of a given length: to choose it would take most of the time.
    """
    shapes = {"U": (4, 2), "V": (3, 2)} if target is NoisyMatrix else {"X": target.F.shape}
    charts = {site: biject_to(StiefelUniform(*shape, chart=chart).support).inv for site, shape in shapes.items()}
    return OHMC(target.model(chart), transforms=charts, trajectory_length=2.0, **options)


def by_kernel(case, target, **options):
    return draw(case.make(target.model(), **options), 300, native=bool(case.native))


WAYS = {
    **{name: partial(by_kernel, case) for name, case in KERNELS.items() if case.exact},
    # A chain that comes by where Z is nearly singular stays there, unless steps are short: one did in one run of 300
    # with an acceptance probability of 0.95, none with 0.99.
    "polar chart": lambda target, **options: draw(
        in_chart(target, "polar", target_accept_prob=0.99, **options), 50, 150
    ),
    "Householder chart": lambda target, **options: draw(in_chart(target, "householder", **options), 50, 150),
}


SHORT = {("V(3,2)", "OHMC"), ("V(3,2)", "polar chart")}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pair if pair in SHORT else pytest.param(*pair, marks=pytest.mark.long)
        for pair in itertools.product(LANGEVIN, WAYS)
    ],
)
def test_matrix_langevin(name, way):
    target = LANGEVIN[name]
    samples = WAYS[way](target)
    assert_mean(target.statistic(samples["X"]), *target.expectation())


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_two_matrices_and_a_scale(way):
    """Starts are draws of the prior: a chain that never leaves a start far out would widen the standard error."""
    samples = WAYS[way](NoisyMatrix, init_strategy=init_to_sample)
    assert (samples["scale"].std(1) > 0).all()
    for name, draws in NoisyMatrix.statistics(samples).items():
        assert_mean(draws, *NoisyMatrix.expectations()[name])


@pytest.mark.long
@pytest.mark.parametrize("chart", ["polar", "householder"])
def test_nuts_of_pyro_with_the_registered_transforms(chart):
    target = LANGEVIN["V(3,2)"]
    samples = draw(NUTS(target.model(chart)), 400, 200, num_chains=1)
    assert_mean(target.statistic(samples["X"]), *target.expectation())


@pytest.mark.long
def test_one_mass_for_a_matrix():
    target = LANGEVIN["V(10,4)"]
    samples = draw(OHMC(target.model(), column_masses=False), 300)
    assert_mean(target.statistic(samples["X"]), *target.expectation())
