"""Pyro's own inference on Stiefel sites, through the registered charts."""

import pyro
import pytest
import torch
from pyro.infer import HMC, SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro.optim import ClippedAdam

from problems.importance import haar
from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC
from pyro_manifold.manifolds import Stiefel
from tests.parameters import long_except

CHARTS = ["polar", "householder"]
GUIDES = [AutoNormal, AutoMultivariateNormal]
over_charts = pytest.mark.parametrize("chart", CHARTS)


def log_normaliser(target):
    """Log E exp(tr FᵀX) over Haar measure, with standard error."""
    import numpy as np

    values = (target.F * haar(np.random.default_rng(5), 100_000, *target.F.shape)).sum((-2, -1))
    weights = np.exp(values)
    return np.log(weights.mean()), weights.std() / weights.mean() / len(values) ** 0.5


@pytest.mark.parametrize(
    ("guide_type", "chart"),
    [
        (AutoNormal, "polar"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [(AutoMultivariateNormal, "polar"), *((each, "householder") for each in GUIDES)]
        ),
    ],
)
def test_elbo_is_a_lower_bound_of_the_evidence(guide_type, chart):
    target = LANGEVIN["V(3,2)"]
    model = target.model(chart)
    guide = guide_type(model, init_scale=0.5)
    particles = {"vectorize_particles": True, "max_plate_nesting": 0}
    svi = SVI(model, guide, ClippedAdam({"lr": 0.02, "betas": (0.9, 0.99)}), Trace_ELBO(num_particles=4, **particles))
    for _ in range(300):
        svi.step()
    losses = torch.tensor([Trace_ELBO(num_particles=200, **particles).loss(model, guide) for _ in range(5)])
    evidence, error = log_normaliser(target)
    bound = -losses.mean()
    assert bound < evidence + 4 * (losses.std() / 5**0.5 + error)
    assert bound > evidence - 1.0, "a Gaussian over the chart fits this target to within a nat"
    X = Predictive(model, guide=guide, num_samples=50)()["X"]
    assert constraints.stiefel.check(X).all()
    assert constraints.stiefel.check(guide.median()["X"])


@pytest.mark.long
@over_charts
def test_hmc_of_pyro(chart):
    target = LANGEVIN["sphere"]
    pyro_mcmc = MCMC(HMC(target.model(chart), num_steps=7, step_size=0.2), 500, 200, disable_progbar=True)
    pyro_mcmc.run()
    assert_mean(target.statistic(pyro_mcmc.get_samples(group_by_chain=True)["X"]), *target.expectation())


@pytest.mark.parametrize("chart", long_except(CHARTS, "polar"))
def test_plates_and_delta_guides(chart):
    def model():
        with pyro.plate("groups", 3):
            U = pyro.sample("U", StiefelUniform(4, 2, chart=chart))
            pyro.factor("f", 3 * U[..., 0, 0])

    for guide_type in (AutoNormal, AutoDelta):
        pyro.clear_param_store()
        guide = guide_type(model)
        svi = SVI(model, guide, ClippedAdam({"lr": 0.05}), Trace_ELBO())
        for _ in range(80):
            svi.step()
        median = guide.median()["U"]
        assert median.shape == (3, 4, 2)
        assert (median[:, 0, 0] > 0.7).all()


def test_parameter_stays_on_the_manifold_under_any_optimiser():
    """The leaf is a matrix, its polar factor the parameter, and autograd hands on the Riemannian gradient."""
    A = torch.randn(6, 6)
    A = A @ A.mT
    X0 = Stiefel().random_point(6, 2)

    def model():
        X = pyro.param("X", X0, constraint=constraints.stiefel)
        pyro.factor("negative_rayleigh", (X * (A @ X)).sum())

    def guide():
        pass

    svi = SVI(model, guide, ClippedAdam({"lr": 0.05}), Trace_ELBO())
    svi.loss_and_grads(model, guide)
    leaf = pyro.get_param_store()._params["X"]
    assert torch.allclose(leaf, X0)
    assert torch.allclose(leaf.grad, Stiefel().tangent_projection(X0, -2 * A @ X0))
    for _ in range(500):
        svi.step()
    X = pyro.param("X").detach()
    assert constraints.stiefel.check(X)
    top = torch.linalg.eigvalsh(A)[-2:].sum()
    assert torch.allclose((X * (A @ X)).sum(), top, rtol=1e-4)


def test_param_store_round_trip(tmp_path):
    X0 = Stiefel().random_point(5, 2)
    pyro.param("X", X0, constraint=constraints.stiefel)
    pyro.param("Y", X0, constraint=constraints.householder_stiefel(5, 2))
    state = pyro.get_param_store().get_state()
    pyro.clear_param_store()
    pyro.get_param_store().set_state(state)
    assert torch.allclose(pyro.param("X"), X0)
    assert torch.allclose(pyro.param("Y"), X0)
