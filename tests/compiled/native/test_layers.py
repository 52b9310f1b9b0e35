"""Layers of neural networks in native code: options, ties and NaN, both dtypes; networks of sampled weights."""

import math
import subprocess
import sys

import optree
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.nn import functional

from pyro_manifold.infer import OHMC
from tests.compiled.native.loops import side_by_side
from tests.compiled.native.random_densities import energy_and_gradient
from tests.infer.mcmc.compilers import native_code


def same_as_torch(densities, *inputs, digits=1000):
    functions = {name: energy_and_gradient(density) for name, density in densities.items()}
    tolerance = digits * torch.finfo(inputs[0].dtype).eps
    for name, *both in side_by_side(functions, *inputs):
        message = lambda text, name=name: f"{name}: {text}"  # noqa: E731
        torch.testing.assert_close(*both, rtol=tolerance, atol=tolerance, equal_nan=True, msg=message)


def weighted(value):
    """A number to which each entry contributes another part."""
    return (value * torch.linspace(0.5, 1.5, value.numel()).to(value).reshape(value.shape)).sum()


def several(*values):
    return sum(weighted(value.sin()) for value in values)


def distances(x, y):
    return several(
        *(torch.cdist(x[0, 0, :, :4], y[:2, 0], p) for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf)),
        functional.pdist(x[0, 0]),
        functional.huber_loss(x, x.detach() + 1, reduction="sum", delta=0.7),
        functional.layer_norm(x, (6,), x[0, 0, 0], x[0, 1, 0]),
    )


@pytest.mark.parametrize(
    ("chains", "dtype"),
    [
        (5, torch.float64),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, torch.float64), (1, torch.float32))),
        pytest.param(5, torch.float32, marks=pytest.mark.long),
    ],
)
def test_options(chains, dtype):
    torch.set_default_dtype(dtype)
    x, y = torch.randn(chains, 2, 4, 7, 6), torch.randn(chains, 4, 4, 2, 4)
    same_as_torch({"distances": distances}, x, y, digits=20000)


def test_after_a_write_in_place():
    """Indices are constant although nothing is known to be after a write in place."""

    def density(x):
        rows = torch.zeros(5)
        rows[1:] = x[0, 0, 0]
        rows[2:].mul_(x[0, 1, 0, 1:]).clamp_(-0.5, 0.5)
        return several(rows, functional.pdist(x[0, 0]))

    same_as_torch({"after a write": density}, torch.randn(3, 1, 2, 6, 4))


def normalised():
    """Classes of images by two linear layers with a norm between them, all with sampled weights."""
    kernel = pyro.sample("kernel", dist.Normal(0.0, 0.5).expand([3, 36]).to_event(2))
    scales = pyro.sample("scales", dist.LogNormal(0.0, 0.5).expand([3]).to_event(1))
    weight = pyro.sample("weight", dist.Normal(0.0, 0.5).expand([4, 3]).to_event(2))
    hidden = functional.layer_norm(functional.linear(IMAGES.flatten(1), kernel), (3,), scales)
    logits = functional.linear(hidden.tanh(), weight)
    pyro.factor("classes", -functional.cross_entropy(logits, torch.arange(8) % 4, reduction="sum"))


def attentive():
    """A sequence predicted by attention to another, with a recurrent layer before it."""
    weights = [pyro.sample(f"w{k}", dist.Normal(0.0, 0.5).expand([6, 2]).to_event(2)) for k in range(2)]
    hidden, states = torch.zeros(2, 2), []
    for row in SEQUENCE:
        hidden = torch.gru_cell(row, hidden, *weights)
        states.append(hidden)
    state = torch.stack(states, 1)
    attended = functional.scaled_dot_product_attention(state[:, None], state[:, None], state[:, None])[:, 0]
    pyro.sample("y", dist.Normal(attended, 0.3).to_event(3), obs=torch.zeros(2, 4, 2))


IMAGES = torch.linspace(-1, 1, 8 * 36, dtype=torch.float64).mul(9).sin().reshape(8, 1, 6, 6)
SEQUENCE = torch.linspace(-1, 1, 16, dtype=torch.float64).mul(5).cos().reshape(4, 2, 2)


@native_code
@pytest.mark.parametrize("model", [normalised, attentive])
def test_networks_are_sampled_in_native_code(model):
    run = OHMC(model, step_size=0.05, num_steps=3).prepare(4, 0, None)
    transition = run.transitions[-1]
    assert run.code.graphs["density"].backend == "traced"
    settings = transition.transition.prepared(run.tuning.settings(1), run.state)
    state = run.random.get_state()
    expected = transition.with_noise(run.state, settings, transition.transition.noise(run.state, run.random))
    run.random.set_state(state)
    run.policy.make(run.state)
    assert transition.graph.backend == "native"
    found = transition.with_noise(run.state, settings, transition.transition.noise(run.state, run.random))
    for here, there in zip(*map(optree.tree_leaves, (found, expected)), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_what_compiling_needs_is_not_imported():
    """It takes a second; nor when layers are traced."""
    code = """
import sys, torch
from pyro_manifold.compiled.passes import folded_graph
from pyro_manifold.compiled.native.decompositions import decompositions
from tests.compiled.native import test_coverage
from tests.compiled.native.layers import ATTENTION, CONVOLUTIONS, FOLDING, NORMS, POOLING, PRODUCTS, RECURRENT, RESIZING
torch.set_default_dtype(torch.float64)
torch.vmap(torch.neg)(torch.zeros(2))  # which in some versions of torch (2.6) itself imports the compiler
imported = set(sys.modules)
with torch.no_grad():
    folded_graph(lambda x: x.sin().clamp_(0, 1), torch.ones(3), decompositions=decompositions())
for part in (ATTENTION, CONVOLUTIONS, FOLDING, NORMS, POOLING, PRODUCTS, RECURRENT, RESIZING):
    for name in part:
        if name not in test_coverage.WITHOUT:
            test_coverage.source(name)
            assert "torch._dynamo" not in set(sys.modules) - imported, name
"""
    subprocess.run([sys.executable, "-c", code], check=True)
