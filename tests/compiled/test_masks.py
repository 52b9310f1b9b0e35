"""Masks in graphs of many chains: constants by their places, numbers put by comparing each entry, all else refused."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.compiled import trace
from pyro_manifold.density import BatchedPotential
from tests.compiled.native.loops import in_native

MASK = torch.tensor([True, False, True, False])
OF_ROWS = torch.tensor([[True, False, True, True], [False, False, True, False], [False, True, False, True]])


def assigned_numbers(x):
    y = x.clone()
    y[y > 0.3] = 0.0
    y[0][y[0] < -0.5] = 2.0
    y[1:, x[0] > 0] = x.sum()
    y[..., x[0] > 1] = torch.tensor([3.0])
    y[x[:, 0] > 0] = x[0, 0]
    y[None, 2, x[0] < -1] = 5
    return y.exp()


CONSTANT = {
    "columns": lambda x: x[:, MASK].sin(),
    "entries": lambda x: x[OF_ROWS].sin(),
    "a row": lambda x: x[1, MASK].exp() + x[MASK[:3]][:, :2],
    "with places": lambda x: x[torch.tensor([0, 2]), MASK].sin(),
    "selected": lambda x: x.masked_select(OF_ROWS).sin() * x.masked_select(MASK)[:1],
    "put": lambda x: torch.zeros(3, 4).index_put((OF_ROWS,), x.sin().flatten()[:6]),
    "put in place": lambda x: _put(x),
    "put in turn": lambda x: x.masked_scatter(OF_ROWS, x.detach().flip(0).sin()).exp(),
    "places": lambda x: x[:, MASK.nonzero()[:, 0]].sin(),
    "of data": lambda x: x[DATA > 2].sin(),
}
DATA = torch.arange(12.0).reshape(3, 4) % 5


def _put(x):
    y = torch.zeros(3, 4)
    y[OF_ROWS] = x.sin().flatten()[:6]
    y[:, MASK] += x[:, :2]
    return y


def same_for_many_chains(**functions):
    """Graphs of many chains, and native code, give what each chain gives alone."""
    x = torch.randn(5, 3, 4)
    densities = {name: (lambda sites, f=f: (f(sites["x"]) * 1.5).sum()) for name, f in functions.items()}
    batched = {name: BatchedPotential(density, {"x": x}) for name, density in densities.items()}
    natively = iter(in_native(lambda x: [value for each in batched.values() for value in each.of_one_chain(x)], x))
    for name, density in densities.items():
        assert batched[name].graph.backend == "traced", name
        energy, gradient = batched[name]({"x": x})
        leaf = x.clone().requires_grad_()
        expected = torch.stack([density({"x": row}) for row in leaf])
        (slope,) = torch.autograd.grad(expected.sum(), leaf)
        for found in ((energy, gradient["x"]), (next(natively), next(natively))):
            for here, there in zip(found, (expected.detach(), slope), strict=True):
                torch.testing.assert_close(here, there, msg=lambda text, name=name: f"{name}: {text}")


def test_masks_that_are_constants():
    same_for_many_chains(**CONSTANT)


def test_numbers_assigned_by_masks_that_depend_on_sites():
    same_for_many_chains(assigned=assigned_numbers)


def test_an_observed_multinomial_has_one_graph():
    """Its density assigns 0 where nothing was counted and the probability is 0."""
    counts = torch.tensor([[3.0, 0.0, 2.0, 1.0], [0.0, 5.0, 1.0, 0.0]])
    with pyro.validation_enabled(False):
        same_for_many_chains(counted=lambda x: -dist.Multinomial(6, logits=x[0]).log_prob(counts))


REFUSED = {
    "picked": lambda x: x[x > 0].sin().sum(),
    "selected": lambda x: x.masked_select(x > 0).sum(),
    "several": lambda x: _several(x),
    "places": lambda x: (x > 0).nonzero().sum() * x.sum(),
    "different": lambda x: x.detach().unique().sum() * x.sum(),
}


def _several(x):
    y = x.clone()
    y[x > 0] = x[x > 0] * 2
    return y.sum()


@pytest.mark.parametrize("name", REFUSED)
def test_masks_that_decide_how_many_entries_there_are_stay_with_the_model(name):
    with pytest.raises(ValueError, match="the shape of a tensor depends on a latent value, as with a mask"):
        trace(REFUSED[name], torch.randn(3, 4))
    x = torch.randn(3, 3, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batched = BatchedPotential(lambda sites: REFUSED[name](sites["x"]), {"x": x})
    assert "cannot be traced (the shape of a tensor depends on a latent value, as with a mask" in str(said[0].message)
    torch.testing.assert_close(batched({"x": x})[0], torch.stack([REFUSED[name](row) for row in x]))
