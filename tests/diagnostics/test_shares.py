"""Comparability of log densities, and their use for particles that nothing else distinguishes."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import Particles, Posterior, comparable_log_density, shares_of_particles
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC

# So few particles are for speed.
pytestmark = pytest.mark.filterwarnings("ignore:The log evidences of 2 runs differ")


def model():
    U = pyro.sample("U", StiefelUniform(3, 2))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    pyro.factor("likelihood", 3 * U[0, 0] - scale)


def of_smc(kernel=None, **options):
    smc = SMC(kernel or OHMC(model), 64, 2, disable_progbar=True, **options)
    smc.run()
    return smc


def of_chains():
    mcmc = MCMC(OHMC(model), 20, 20, num_chains=2, disable_progbar=True)
    mcmc.run()
    return mcmc


@pytest.fixture(scope="module")
def finished():
    """Chains and particles of the model."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    return of_chains(), of_smc()


def test_the_log_density_of_particles_is_that_of_chains(finished):
    mcmc, smc = finished
    target = mcmc.program.target
    positions = target.positions({name: x.flatten(0, 1)[:5] for name, x in smc.result.samples.items()})
    expected = [-target.potential_fn({name: x[k] for name, x in positions.items()}) for k in range(5)]
    found = comparable_log_density(smc.posterior, mcmc.posterior)
    torch.testing.assert_close(found.flatten()[:5], torch.stack(expected))


def test_draws_without_a_density_are_not_compared(finished):
    mcmc, smc = finished
    assert comparable_log_density(smc.posterior, Posterior(mcmc.posterior.draws)) is None
    assert comparable_log_density(Posterior({"U": torch.ones(2, 5)}), mcmc.posterior) is None


@pytest.mark.parametrize(
    ("kernel", "options"),
    [(OHMC(lambda: model()), {}), pytest.param(None, {"init": "modes", "num_starts": 2}, marks=pytest.mark.long)],
)
def test_other_models_or_coordinates_are_not_compared(finished, kernel, options):
    assert comparable_log_density(of_smc(kernel, **options).posterior, finished[0].posterior) is None


def test_the_log_density_alone_distinguishes_particles():
    x, y = torch.randn(4, 250, 20), torch.randn(4, 256, 20)
    density, other = -torch.randn(4, 250, 20).square().sum(-1) / 2, -torch.randn(4, 256, 20).square().sum(-1) / 2
    other[:, :32] -= 80
    for given, expected in ((None, 0.0), (other, 1 / 8)):
        shares, _ = shares_of_particles([[0, 1, 2, 3]], {"x": x}, Particles({"x": y}, given), [], density)
        assert float(shares[-1]) == pytest.approx(expected, abs=1e-12)
