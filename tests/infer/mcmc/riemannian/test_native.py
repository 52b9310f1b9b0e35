"""Trajectories of MSD as native code: the iteration that the steps make, also where the metric is singular."""

import optree
import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import MCMC, MSD
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code
from tests.infer.mcmc.riemannian.test_msd import INPUTS, tensor

pytestmark = native_code
OPTIONS = [
    pytest.param({"step_size": 0.4}, marks=pytest.mark.long),
    pytest.param({"step_size": 0.4, "target": "jeffreys", "num_steps": 3}, marks=pytest.mark.long),
    {"step_size": 0.4, "metropolis": True, "num_steps": 3, "persistence": 0.5},
]


def curved():
    """No metric is the same from point to point."""
    slope = pyro.sample("a", dist.Normal(0.0, 1.0))
    scale = pyro.sample("b", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(INPUTS)):
        pyro.sample("y", dist.Normal(torch.sin(slope * tensor(INPUTS)), scale), obs=tensor(INPUTS).cos())


def prepared(model, chains=5, **options):
    run = MSD(model, **options).prepare(chains, 0, None)
    run.policy.planned = 1000
    return run, run.transitions[0]


def leaves(tree):
    return [leaf for leaf in optree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def natively(run, trajectory):
    run.policy.make(run.state)
    assert trajectory.graph.backend == "native"


@pytest.mark.parametrize("options", OPTIONS)
def test_an_iteration_agrees_with_its_steps(options):
    run, trajectory = prepared(curved, **options)
    settings = run.tuning.settings(1)._replace(step_size=torch.linspace(0.1, 0.6, 5))
    inputs = run.state, settings, trajectory.transition.noise(run.state, run.random)
    expected = leaves(trajectory.with_noise(*inputs))
    natively(run, trajectory)
    for found, there in zip(leaves(trajectory.with_noise(*inputs)), expected, strict=True):
        torch.testing.assert_close(found, there, rtol=1e-10, atol=1e-10)


@pytest.mark.long
def test_a_regression_in_a_plate():
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        offset = pyro.sample("offset", dist.Normal(0.0, 2.0))
        x = torch.stack([tensor(INPUTS), tensor(INPUTS).square()], -1)
        with pyro.plate("rows", len(INPUTS)):
            pyro.sample("y", dist.Bernoulli(logits=x[:, :2] @ w + offset), obs=(tensor(INPUTS) > 0.4).double())

    natively(*prepared(model, step_size=0.4, metropolis=True))


@pytest.mark.long
def test_an_iteration_in_float32():
    torch.set_default_dtype(torch.float32)

    inputs = tensor(INPUTS).float()

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(w[0] + w[1] * inputs, 0.5).to_event(1), obs=inputs)

    run, trajectory = prepared(model, step_size=0.3)
    settings = trajectory.transition.prepared(run.tuning.settings(1), run.state)
    inputs = run.state, settings, trajectory.transition.noise(run.state, run.random)
    expected = leaves(trajectory.with_noise(*inputs))
    natively(run, trajectory)
    for found, there in zip(leaves(trajectory.with_noise(*inputs)), expected, strict=True):
        assert found.dtype == there.dtype != torch.float64
        torch.testing.assert_close(found, there, rtol=1e-4, atol=1e-4)


def test_a_metric_that_is_singular_in_places():
    """It needs a jitter there; elsewhere none."""

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("data", -(w.square().sum() - 1).square())

    run, trajectory = prepared(
        model, 6, step_size=0.3, metric=lambda s: torch.stack([s["w"][0], s["w"][1].clamp(min=0.0)])
    )
    natively(run, trajectory)
    position = torch.tensor([[0.5, y] for y in (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)])
    run.move_to({"w": position})
    settings = run.tuning.settings(1)._replace(step_size=torch.full((6,), 0.05))
    noise = trajectory.transition.noise(run.state, run.random)
    found = trajectory.with_noise(run.state, settings, noise)
    expected = trajectory._eagerly(run.state, settings, noise, {})
    assert found[1]["jittered"].tolist() == [True] * 3 + [False] * 3
    for x, there in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(x, there, rtol=1e-7, atol=1e-7)


def test_a_chain_that_meets_what_is_not_finite_stays():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("edge", torch.log(1.0 - w))

    kernel = MSD(
        model, step_size=0.5, metropolis=True, num_steps=3, persistence=0.5, metric=lambda sites: sites["w"].reshape(1)
    )
    with pytest.MonkeyPatch.context() as patch:
        make_native_code_at_once(patch)
        mcmc = MCMC(kernel, 300, 100, num_chains=64, initial_params={"w": torch.zeros(64)}, disable_progbar=True)
        mcmc.run()
    assert kernel.run.transitions[0].graph.backend == "native"
    w = mcmc.get_samples(group_by_chain=True)["w"]
    assert w.isfinite().all()
    grid = torch.linspace(-8, 1, 200_001)
    weights = (-grid.square() / 2).exp() * (1 - grid)
    assert_mean(w, float((weights * grid).sum() / weights.sum()))
