"""Functions of a few numbers are computed before they are expanded."""

import copy

import pytest
import torch

from pyro_manifold.compiled import BROADCAST_SINKING, rewrite, trace

ATEN = torch.ops.aten


def rewritten(function, *inputs):
    """The graph before and after."""
    module = trace(function, *inputs)
    late = copy.deepcopy(module)
    for graph in (module.graph, late.graph):
        graph.eliminate_dead_code()
    rewrite(late, BROADCAST_SINKING)
    late.graph.eliminate_dead_code()
    late.recompile()
    return module, late


def entries(module):
    """Return the entries of the largest result of an elementwise function."""
    values = [
        node.meta["val"] for node in module.graph.nodes if torch.Tag.pointwise in getattr(node.target, "tags", ())
    ]
    return max(value.numel() for value in values)


ONES = torch.ones(5, 20, dtype=torch.float32)
CASES = {
    "logarithm": (lambda s, x: s.expand(20).log().sum() + x.sum(), 1),
    "several": (lambda s, x: ((s.expand(5, 20) ** 2 * 3).sqrt() / s.expand(20)).sum(), 1),
    "by row": (lambda s, x: (x[:5].unsqueeze(1).expand(5, 20).exp() * s).sum(), 5),
    "reshaped": (lambda s, x: s.expand(5, 20).exp().view(5, 20).unsqueeze(0).unsqueeze(-1).log().sum(), 1),
    "a constant of another dtype": (lambda s, x: (ONES / s.expand(5, 20)).sum((0, 1)), 1),
    "with data": (lambda s, x: (x / s.expand(20).square()).sum(), 20),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_of_few_numbers_see_few_numbers(case):
    function, expected = CASES[case]
    inputs = torch.tensor(1.7), torch.randn(20)
    before, after = rewritten(function, *inputs)
    torch.testing.assert_close(after(*inputs), before(*inputs))
    assert entries(before) > expected or case == "with data"
    assert entries(after) == expected


def test_what_is_viewed_otherwise_stays_in_memory():
    """A matrix product takes rows of several chains as one, which entries that are repeated cannot be."""

    def function(s, x):
        rows = s.reshape(3, 1, 1).expand(3, 4, 5).exp().view(12, 5)
        return rows @ x

    inputs = torch.randn(3), torch.randn(5, 2)
    before, after = rewritten(function, *inputs)
    torch.testing.assert_close(after(*inputs), before(*inputs))


def test_chains_keep_their_own_numbers():
    def function(s, x):
        scale = s.reshape(3, 1, 1).expand(3, 4, 5)
        return (x / scale - scale.log()).view(3, 20).sum(1), (scale.square() + 1).view(3, 20).unsqueeze(2).sum((1, 2))

    inputs = torch.rand(3) + 1, torch.randn(4, 5)
    before, after = rewritten(function, *inputs)
    torch.testing.assert_close(after(*inputs), before(*inputs))
    assert sum(node.target == ATEN.log.default and node.meta["val"].numel() == 3 for node in after.graph.nodes) == 1


def test_indices_that_are_all_equal_stay_what_they_are():
    places = torch.tensor([1, 1, 1])
    inputs = torch.tensor(2.0), torch.randn(4)
    before, after = rewritten(lambda s, x: x[places] * s + places, *inputs)
    assert torch.equal(before(*inputs), after(*inputs))
