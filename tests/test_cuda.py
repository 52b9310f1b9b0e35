"""The same distributions and identities on a CUDA device."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS, SVI, Trace_ELBO

from problems.monte_carlo import STANDARD_ERRORS, assert_mean, deviation
from problems.phase_space import System, langevin_bingham
from problems.targets import LANGEVIN
from pyro_manifold import optim
from pyro_manifold.distributions import MatrixBinghamVonMisesFisher, MatrixLangevin, StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC
from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.infer.mcmc.mechanics import CayleyMechanics
from pyro_manifold.manifolds import Stiefel, polar_factor

pytestmark = pytest.mark.gpu
TARGET = LANGEVIN["V(3,2)"]


@pytest.mark.parametrize("kernel", [OHMC, GHMC])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_kernel(kernel, dtype, jit_compile):
    F = torch.as_tensor(TARGET.F, dtype=dtype, device="cuda")

    def model():
        X = pyro.sample("X", StiefelUniform(3, 2, dtype=dtype, device="cuda"))
        pyro.sample("s", dist.HalfNormal(torch.ones((), dtype=dtype, device="cuda")))
        pyro.sample("R", StiefelUniform(2, 2, dtype=dtype, device="cuda"))
        pyro.sample("direction", dist.ProjectedNormal(torch.ones(3, dtype=dtype, device="cuda")))
        pyro.factor("langevin", (F * X).sum())

    mcmc = MCMC(kernel(model, jit_compile=jit_compile), num_samples=400, warmup_steps=100, disable_progbar=True)
    mcmc.run()
    samples = mcmc.get_samples(group_by_chain=True)["X"]
    assert samples.device.type == "cuda"
    assert samples.dtype == dtype
    assert mcmc.diagnostics()["orthogonality_error"]["chain 0"] < (1e-5 if dtype == torch.float32 else 1e-13)
    assert_mean(TARGET.statistic(samples).cpu(), *TARGET.expectation())
    assert mcmc.to_inferencedata().sample_stats["lp"].shape == (1, 400)


def test_draws_of_a_stored_run_are_where_those_in_memory_are(tmp_path):
    def model():
        pyro.sample("X", StiefelUniform(3, 2, device="cuda"))

    mcmc = MCMC(OHMC(model), num_samples=5, warmup_steps=5, disable_progbar=True, store=tmp_path / "run")
    mcmc.run()
    assert mcmc.get_samples()["X"].device.type == "cuda"
    assert mcmc.to_inferencedata().posterior["X"].shape == (1, 5, 3, 2)


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"metropolis": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dynamics_in_the_geometry_of_the_model(options, dtype):
    y = torch.tensor([0.5, 1.5], dtype=dtype, device="cuda")

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros((), dtype=dtype, device="cuda"), 1.0))
        with pyro.plate("data", 2):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    mcmc = MCMC(
        MSD(model, step_size=0.1, persistence=0.5, num_steps=10, **options),
        50,
        20,
        num_chains=200,
        disable_progbar=True,
    )
    mcmc.run()
    w = mcmc.get_samples(group_by_chain=True)["w"]
    assert w.device.type == "cuda"
    assert w.dtype == dtype
    assert_mean(w.cpu(), 2 / 3)
    assert_mean((w - 2 / 3).square().cpu(), 1 / 3)


@pytest.mark.parametrize("chart", ["polar", "householder"])
def test_charts(chart):
    F = torch.as_tensor(TARGET.F, device="cuda")

    def model():
        X = pyro.sample("X", StiefelUniform(3, 2, chart=chart, device="cuda"))
        pyro.factor("langevin", (F * X).sum())

    mcmc = MCMC(NUTS(model), num_samples=100, warmup_steps=50, disable_progbar=True)
    mcmc.run()
    assert_mean(TARGET.statistic(mcmc.get_samples(group_by_chain=True)["X"]).cpu(), *TARGET.expectation())


def test_exact_draws():
    distribution = MatrixLangevin(torch.as_tensor(TARGET.F, device="cuda"))
    draws = distribution.sample((20_000,))
    assert draws.device.type == "cuda"
    assert_mean(TARGET.statistic(draws).cpu(), *TARGET.expectation())


def test_density_and_draws_of_other_distributions():
    F, A = torch.randn(5, 4, 3), torch.randn(4, 4)
    X = Stiefel().random_point(5, 4, 3)
    found = MatrixLangevin(F.cuda()).log_prob(X.cuda())
    assert torch.allclose(found.cpu(), MatrixLangevin(F).log_prob(X))
    distribution = MatrixBinghamVonMisesFisher(A.cuda(), torch.eye(3, device="cuda"), F.cuda())
    assert distribution.support.check(distribution.sample((10,))).all()
    assert distribution.sample().device.type == "cuda"


def test_distribution_of_many_chains():
    F = torch.as_tensor(TARGET.F, device="cuda")
    potential = langevin_bingham(F, torch.zeros(3, 3, device="cuda"), torch.zeros(2, 2, device="cuda"))
    system = System(potential, {("X",): CayleyMechanics()}, {("X",): torch.tensor(1.0, device="cuda")})
    state = system.state({("X",): Stiefel().random_point(4096, 3, 2, device="cuda")})
    draws, _ = system.sample(state, 0.25, 6, iterations=100, burn_in=50)
    assert abs(deviation(TARGET.statistic(draws[("X",)]).cpu(), *TARGET.expectation())) < STANDARD_ERRORS


def test_polar_derivatives():
    Z = torch.randn(4, 5, 2, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(polar_factor, (Z,))
    X = Stiefel().random_point(5, 2, device="cuda").requires_grad_()
    assert torch.autograd.gradgradcheck(polar_factor, (X,))


@pytest.mark.parametrize(
    "guide_type",
    [
        AutoStiefelLowRankMultivariateNormal,
        AutoProductStiefelLowRankMultivariateNormal,
        AutoGrassmannLowRankMultivariateNormal,
    ],
)
@pytest.mark.parametrize("method", [name for name in optim.__all__ if name.startswith("Riemannian")])
def test_guides_and_optimisers(guide_type, method):
    mean = torch.arange(6.0, device="cuda")

    def model():
        pyro.sample("x", dist.Normal(mean, 0.5).to_event(1))

    guide = guide_type(model, rank=2)
    svi = SVI(model, guide, getattr(optim, method)({}), Trace_ELBO(num_particles=100, vectorize_particles=True))
    before = svi.evaluate_loss()
    for _ in range(200):
        svi.step()
    assert svi.evaluate_loss() < before
    assert {parameter.device.type for parameter in guide.parameters()} == {"cuda"}
    assert Stiefel().contains(guide.cov_factor.detach())
    assert guide.identified_covariance().factor.device.type == "cuda"
