"""Gradients of traced steps against Pyro's own, in expectation and, where the noise is the same, exactly."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer import autoguide as pyros

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import SVI
from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.optim import RiemannianAdam
from tests.infer.mcmc.compilers import native_code

PARTICLES = 2


def model(x, y, subsample_size=None):
    """Sites of several supports, one of them on a manifold, and a plate."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    axis = pyro.sample("axis", StiefelUniform(3, 1))
    with pyro.plate("groups", 2):
        level = pyro.sample("level", dist.Normal(0.0, 2.0))
    with pyro.plate("data", len(y), subsample_size=subsample_size) as rows:
        mean = (x[rows] * (weights + axis.squeeze(-1))).sum(-1) + level.sum()
        pyro.sample("y", dist.Normal(mean, scale), obs=y[rows])


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator)
    return x, x.sum(-1) + torch.randn(12, generator=generator)


GUIDES = {
    "stiefel": lambda m: AutoStiefelLowRankMultivariateNormal(m, rank=2),
    "stiefel, closed entropy": lambda m: AutoStiefelLowRankMultivariateNormal(m, rank=2, path_derivative=False),
    "stiefel of rank 0": lambda m: AutoStiefelLowRankMultivariateNormal(m, rank=0),
    "product": lambda m: AutoProductStiefelLowRankMultivariateNormal(m, rank=2),
    "grassmann": lambda m: AutoGrassmannLowRankMultivariateNormal(m, rank=2, factor_scale=0.3),
    "low rank": lambda m: pyros.AutoLowRankMultivariateNormal(m, rank=2),
    "full rank": pyros.AutoMultivariateNormal,
    "diagonal": pyros.AutoDiagonalNormal,
    "mean field": pyros.AutoNormal,
    "flow": lambda m: pyros.AutoIAFNormal(m, hidden_dim=[8], num_transforms=1),
}


def moved(guide, *args):
    """The guide, away from its initial values, so that no gradient is zero by symmetry."""
    guide(*args)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in guide.parameters():
            value += 0.1 * torch.randn(value.shape, generator=generator)
    return guide


def native(guide, args):
    """An `SVI` that never moves, with native code."""
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 0.0}), Trace_ELBO(num_particles=PARTICLES))
    svi.step(*args)
    svi._steps.compile()
    assert svi.backend == "native"
    return svi


def assert_native_code_is_the_graph(svi):
    """With the same noise and batch."""
    steps = svi._steps
    batch, objective = steps._graph.density.batch(steps._arguments, steps.number), steps._graph.objective
    objective(batch)
    expected = objective._of_all(objective.noise, *objective._parameters, *batch.values())
    for found, value in zip(objective.outputs, expected, strict=True):
        torch.testing.assert_close(found, value)


def evaluations(svi, args, count):
    """Losses and gradients along one direction for each parameter, of Pyro and of `SVI`."""
    loss, guide, parameters = Trace_ELBO(num_particles=PARTICLES), svi.guide, svi._steps._parameters
    generator = torch.Generator().manual_seed(5)
    directions = {name: torch.randn(value.shape, generator=generator) for name, value in parameters.items()}
    pyros_own, ours = [], []
    for _ in range(count):
        value = loss.loss_and_grads(model, guide, *args)
        along = [float((directions[name] * p.grad).sum()) for name, p in parameters.items()]
        pyros_own.append([value, *along])
        for parameter in parameters.values():
            parameter.grad = None
        value = svi.evaluate_loss(*args)
        gradients = svi._steps._graph.objective.outputs[1:]
        ours.append([value, *[float((directions[n] * g).sum()) for n, g in zip(parameters, gradients, strict=True)]])
    return torch.tensor(pyros_own), torch.tensor(ours)


@native_code
@pytest.mark.parametrize(
    ("kind", "drawn"),
    [
        ("mean field", 4),
        pytest.param("product", 4, marks=pytest.mark.long),
        *[pytest.param(kind, None, marks=pytest.mark.long) for kind in GUIDES],
    ],
)
def test_loss_and_gradients_have_the_means_of_pyros_own(kind, drawn):
    args = (*data(), drawn)
    svi = native(moved(GUIDES[kind](model), *args), args)
    assert_native_code_is_the_graph(svi)
    pyros_own, ours = evaluations(svi, args, 100)
    for expected, found in zip(pyros_own.T, ours.T, strict=True):
        assert_mean(found, expected.mean(), float(expected.std()) / len(expected) ** 0.5)


def test_path_derivative_vanishes_at_the_posterior():
    def normal():
        pyro.sample("x", dist.Normal(torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.5, 1.0, 2.0])).to_event(1))

    guide = AutoStiefelLowRankMultivariateNormal(normal, rank=1)
    svi = SVI(normal, guide, RiemannianAdam({"lr": 0.0}), Trace_ELBO(num_particles=2))
    svi.step()
    with torch.no_grad():
        guide.loc.copy_(torch.tensor([1.0, -2.0, 0.5]))
        guide.scale_unconstrained.copy_(torch.tensor([0.5, 1.0, 2.0]).expm1().log())
        guide.relative_factor.zero_()
    assert abs(svi.evaluate_loss()) < 1e-12  # log p and log q are equal at each draw
    for gradient in svi._steps._graph.objective.outputs[1:]:
        assert gradient.abs().max() < 1e-12


@native_code
def test_float32():
    torch.set_default_dtype(torch.float32)
    args = data()
    svi = SVI(
        model, AutoStiefelLowRankMultivariateNormal(model, rank=2), RiemannianAdam({"lr": 0.03}), Trace_ELBO(PARTICLES)
    )
    losses = svi.run(40, *args)
    svi._steps.compile()
    assert svi.backend == "native"
    losses = torch.cat([losses, svi.run(400, *args)])
    assert losses.isfinite().all()
    assert losses[-100:].mean() < losses[:20].mean() - 10
    assert svi.guide.median()["axis"].dtype == torch.float32
