"""Views of views: an index composed of two or three maps must be the index that torch composes, in both directions."""

import itertools
import random

import pytest
import torch
from torch.nn.functional import pad

from pyro_manifold.compiled.native import Place, flat, shifted, strided
from tests.compiled.native.loops import in_native, in_torch

VIEWS = {
    "flip the first": lambda x: x.flip(0),
    "flip the last": lambda x: x.flip(-1),
    "roll the last": lambda x: x.roll(-2, -1),
    "roll all": lambda x: x.roll(3),
    "all but the first": lambda x: x[1:],
    "every second": lambda x: x[..., ::2],
    "every second from 1": lambda x: x[1::2],
    "select": lambda x: x[x.shape[0] // 2],
    "select the last": lambda x: x[..., -1],
    "diagonal": lambda x: x.diagonal(0, 0, -1),
    "diagonal below": lambda x: x.diagonal(-1, -2, -1),
    "put on a diagonal": lambda x: torch.diag_embed(x, 1),
    "lower triangle": lambda x: x.tril(),
    "pad": lambda x: pad(x, (1, 2)),
    "pad two": lambda x: pad(x, (0, 1, 2, -1)),
    "cat": lambda x: torch.cat([x, 2 * x]),
    "stack behind": lambda x: torch.stack([2 * x, x], -1),
    "index the last": lambda x: x[..., torch.tensor([[0, -1], [-1, 0]])],
    "index two": lambda x: x[torch.tensor([0, -1, 0]), ..., torch.tensor([-1, 0, 0])],
    "gather": lambda x: x.gather(-1, torch.arange(x.numel()).reshape(x.shape).flip(0) % x.shape[-1]),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "expand behind": lambda x: x[..., :1].expand(*x.shape[:-1], 3),
    "transpose": lambda x: x.transpose(0, -1),
    "in a matrix": lambda x: x.reshape(2, -1),
    "by strides": lambda x: (2 * x).as_strided((2, 2), (1, 2), 1),
    "windows": lambda x: 2 * x.unfold(0, 2, 1),
    "put a slice": lambda x: x.slice_scatter(2 * x[1:].flip(0), 0, 1),
    "put by index": lambda x: x.index_put([torch.tensor([0, -1])], x[:1] * 2),
    "add by index": lambda x: x.index_add(0, torch.tensor([0, 0]), x[-2:]),
    "cumulative sum": lambda x: x.cumsum(0),
    "in order": lambda x: x.sort(dim=-1, stable=True)[0],
    "where it is largest": lambda x: x[x.reshape(x.shape[0], -1).argmax(0)],
    "by rank": lambda x: x.scatter_add(0, x.argsort(dim=0, stable=True), x),
}
LARGEST = 80
OF_A_FILE = 60
NAMES = list(VIEWS)


def _result(chain, x):
    """The last of the views; None if one of them does not exist, is empty or large, or torch has no gradient of it."""
    for name in chain:
        try:
            x = VIEWS[name](x)
        except (RuntimeError, IndexError, ValueError):
            return None
        if not 0 < x.numel() <= LARGEST or x.dim() > 4:
            return None
    return x


def _third(first, second):
    """One for each pair, so that each comes as third about equally often."""
    return NAMES[(7 * NAMES.index(first) + 3 * NAMES.index(second)) % len(NAMES)]


PAIRS = list(itertools.product(VIEWS, repeat=2))
TRIPLES = [(first, second, _third(first, second)) for first, second in PAIRS]


def _chains():
    example = torch.randn(3, 4)
    return [chain for chain in [*PAIRS, *TRIPLES] if _result(chain, example) is not None]


CHAINS = _chains()


def _forwards_and_backwards(chains):
    """Chains of views of an input or of what is computed from it, and gradients through them."""

    def function(x):
        found = []
        for number, chain in enumerate(chains):
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                result = _result(chain, leaf * leaf if number % 2 else leaf)
                found += [result.detach(), *torch.autograd.grad(result.sin().sum(), leaf)]
        return found

    return function


def test_there_are_chains_of_all_views():
    assert len(CHAINS) > 1500
    for place in range(3):
        assert {chain[place] for chain in CHAINS if len(chain) > place} == set(VIEWS)


def test_chains_that_begin_and_end_with_each_view():
    mixed = random.Random(0).sample(CHAINS, len(CHAINS))
    by_ends = [{chain[end]: chain for chain in mixed} for end in (0, -1)]
    compare(sorted({*by_ends[0].values(), *by_ends[1].values()}))


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, len(CHAINS), OF_A_FILE))
def test_chains_of_views(first):
    compare(CHAINS[first : first + OF_A_FILE])


def compare(chains):
    function, x = _forwards_and_backwards(chains), torch.randn(2, 3, 4)
    found, expected = in_native(function, x), in_torch(function, x)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        what = f"{'gradient' if number % 2 else 'value'} of {' of '.join(reversed(chains[number // 2]))}"
        assert one.shape == other.shape, what
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, msg=lambda text, what=what: f"{what}: {text}")


def test_gradient_of_a_walk_from_zero():
    """Ordered vectors: the backward pass of a cumulative sum flips, sums and flips, and is then cut."""
    ends = torch.tensor([0.0])

    def function(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            walk = torch.cat([ends, leaf.exp()]).cumsum(0)
            return list(torch.autograd.grad((walk - torch.arange(8.0)).square().sum(), leaf))

    x = torch.randn(3, 7)
    torch.testing.assert_close(in_native(function, x), in_torch(function, x), rtol=1e-12, atol=1e-12)


def test_strides_through_a_copy():
    """A copy has a storage of its own, also where it is left out of a graph elsewhere."""

    def function(x):
        return [(x[1:] + 0).as_strided((2, 2), (1, 2), 1), x[1:].clone().as_strided((2, 3), (1, 2), 0)]

    x = torch.randn(2, 3, 4)
    for found, expected in zip(in_native(function, x), in_torch(function, x), strict=True):
        assert torch.equal(found, expected)


def test_places_are_whole():
    """Any expression can be put into a place without changing its meaning."""
    next_one = shifted(Place("i0"), 1)
    assert Place(f"4 - {next_one}") == "(4 - (i0 + 1))"
    assert strided(Place(f"4 - {next_one}"), 2) == "((4 - (i0 + 1)) * 2)"
    assert shifted(Place("3"), 2) == "5"
    assert flat([next_one, Place("j")], (3, 4)) == "(i0 + 1) * 4 + j"
