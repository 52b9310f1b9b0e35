"""Samplers against known laws, end to end through Pyro's MCMC."""

import pytest
from pyro.infer import NUTS

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN, NoisyMatrix
from pyro_manifold.infer import GHMC, MCMC, OHMC


def draw(kernel, num_samples, warmup_steps=300):
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)


KERNELS = {
    "OHMC": lambda target: draw(OHMC(target.model()), 1500),
    "GHMC": lambda target: draw(GHMC(target.model()), 1500),
    "NUTS, polar chart": lambda target: draw(NUTS(target.model("polar")), 400, 200),
    "NUTS, Householder chart": lambda target: draw(NUTS(target.model("householder")), 400, 200),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LANGEVIN)
def test_matrix_langevin(name, kernel):
    target = LANGEVIN[name]
    samples = KERNELS[kernel](target)
    assert_mean(target.statistic(samples["X"]), *target.expectation())


@pytest.mark.parametrize("kernel", KERNELS)
def test_two_frames_and_a_scale(kernel):
    samples = KERNELS[kernel](NoisyMatrix)
    for name, draws in NoisyMatrix.statistics(samples).items():
        assert_mean(draws, *NoisyMatrix.expectations()[name])
