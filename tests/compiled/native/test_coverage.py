"""Distributions of Pyro and layers of torch in native code: coverage, values and gradients.

What has none is listed here with the reason; ``docs/understand/ohmc.md`` says it in short.
"""

from __future__ import annotations

import inspect
from functools import cache

import pyro.distributions
import pytest
import torch
from torch import nn

from pyro_manifold.compiled import trace
from pyro_manifold.compiled.native import UnsupportedOperatorError, source_of
from pyro_manifold.density import BatchedPotential
from tests.compiled.native.cases import Case
from tests.compiled.native.distributions import DISTRIBUTIONS, MATRICES
from tests.compiled.native.layers import CONVOLUTIONS, LAYERS, NORMS, POOLING, RESIZING
from tests.compiled.native.loops import in_torch, loop_of, native_function
from tests.compiled.native.random_densities import energy_and_gradient

BRANCH = {
    "GaussianNLLLoss": "torch asks whether a variance is negative",
    "SineBivariateVonMises": "Pyro asks whether its normalising series converges",
    "SineSkewed": "Pyro asks whether the skewness is too large",
    "StableWithLogProb": "Pyro integrates where and as finely as values ask for",
    "Wishart of its degrees": "torch asks whether the degrees of freedom are too few",
}
"""Distributions that branch on values of sites: they have no graph, and chains run one after the other."""

NO_OPERATOR = {
    "Bilinear": "_trilinear",
    "CTCLoss": "_ctc_loss",
    "EmbeddingBag": "_embedding_bag",
    "MultiLabelMarginLoss": "multilabel_margin_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "RReLU": "rrelu_with_noise",
    "grid_sample": "grid_sampler_2d_backward",
    **dict.fromkeys(CONVOLUTIONS, "convolution"),
    **dict.fromkeys((*POOLING, "LocalResponseNorm"), "pool"),
    **{name: "(batch|group)_norm" for name in NORMS if name.startswith(("Batch", "Instance", "Group"))},
    **{name: "upsample" for name in RESIZING if name.startswith("Ups")},
    **{name: "replication_pad" for name in RESIZING if name.startswith("Replication")},
}
"""Operators without native code: those of large networks, which are faster in torch, and some that are rare."""

WITHOUT = {**dict.fromkeys(BRANCH, r"branches on, or calls .item\(\) on, a latent value"), **NO_OPERATOR}

NO_DENSITY = {
    *("Distribution", "TorchDistribution", "ExponentialFamily", "Rejector"),  # which others are made from
    "LKJCorrCholesky",  # another's former name
    *("Stable", "LinearHMM", "Empirical"),  # none, or none that has a gradient
    "GaussianScaleMixture",  # Pyro's cannot be differentiated: it writes to what the gradient needs
}
NO_FUNCTION = {
    *("Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential", "Container"),
    *("DataParallel", "SyncBatchNorm", "RNNBase", "RNNCellBase", "CrossMapLRN2d", "NLLLoss2d"),
    *("Transformer", "TransformerDecoder", "TransformerEncoder"),  # layers, one after the other
    *("AdaptiveLogSoftmaxWithLoss", "LinearCrossEntropyLoss", "TripletMarginWithDistanceLoss"),
}
"""Layers that only hold others, belong to other devices, or are another's name."""

NAMES = [*DISTRIBUTIONS, *LAYERS]
NATIVE = [name for name in NAMES if name not in WITHOUT]
FEW = {*MATRICES, *WITHOUT, *NATIVE[::7]}
"""The distributions of this package, what has no native code, and some of all others; the rest takes long."""
CHAINS = 3
FILES = 16


@cache
def case(name: str) -> Case:
    return DISTRIBUTIONS[name] if name in DISTRIBUTIONS else LAYERS[name]()


def source(name):
    """The C of density and gradient, without compiling it."""
    inputs = case(name).inputs(1)
    loop = loop_of(energy_and_gradient(case(name).density), *inputs)
    return source_of(loop, [(1, *shape) for shape in case(name).shapes], torch.float64)


INEXACT = {"Hardsigmoid": 1e-7}
"""Cases in which torch's own derivative is less exact: it has a sixth in single precision."""


def assert_same(found, expected, name):
    tolerance = INEXACT.get(name, 1e-9)
    for place, (here, there) in enumerate(zip(found, expected, strict=True)):
        message = lambda text, place=place: f"{f'gradient {place}' if place else 'density'} of {name}: {text}"  # noqa: E731
        torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance, msg=message)


# Of torch's own CTC loss, which no graph has.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_many_chains_are_one_after_the_other(name):
    inputs = case(name).inputs(CHAINS)
    expected = in_torch(energy_and_gradient(case(name).density), *inputs)
    sites = {f"x{k}": value for k, value in enumerate(inputs)}
    potential = BatchedPotential(lambda sites: case(name).density(*sites.values()), sites, warn=False)
    energy, gradient = potential(sites)
    assert_same([energy, *gradient.values()], expected, name)
    assert (potential.graph.backend == "loop") == (name in BRANCH)


def graph_of_one(name, inputs):
    """Density and gradient, traced by themselves, as models are: what one writes must not concern another."""
    graph = trace(energy_and_gradient(case(name).density), *[value[0].clone() for value in inputs])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in NATIVE if name in FEW][::2], id="few 0"),
        pytest.param([name for name in NATIVE if name in FEW][1::2], id="few 1", marks=pytest.mark.long),
        *(pytest.param(NATIVE[part::FILES], id=f"part {part}", marks=pytest.mark.long) for part in range(FILES)),
    ],
)
def test_native_code(names):
    """Densities and all gradients, many in one file: most of a compiler's time is not for them."""
    every = {name: case(name).inputs(CHAINS) for name in names}
    graphs = [graph_of_one(name, every[name]) for name in names]

    def function(*values):
        given = iter(values)
        return [
            x for name, graph in zip(names, graphs, strict=True) for x in graph(*[next(given) for _ in every[name]])
        ]

    inputs = [value for name in names for value in every[name]]
    results = iter(native_function(function, *inputs)(1, *inputs))
    for name in names:
        expected = in_torch(energy_and_gradient(case(name).density), *every[name])
        assert_same([next(results) for _ in expected], expected, name)


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_native_code_have_a_reason(name):
    with pytest.raises((UnsupportedOperatorError, ValueError), match=WITHOUT[name]):
        source(name)


def test_every_distribution_is_here():
    """New ones of Pyro and torch belong into the table."""
    known = {
        name
        for module in (pyro.distributions, torch.distributions)
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, torch.distributions.Distribution)
    }
    assert known - {name.split()[0] for name in DISTRIBUTIONS} <= NO_DENSITY


def test_every_layer_is_here():
    known = {name for name, value in vars(nn).items() if inspect.isclass(value) and issubclass(value, nn.Module)}
    without = NO_FUNCTION | {name for name in known if name.startswith("Lazy") or "Dropout" in name}
    assert {name for name in known - without if name != "FractionalMaxPool3d" and not name.startswith("MaxUnpool")} <= {
        name.split()[0] for name in LAYERS
    }
