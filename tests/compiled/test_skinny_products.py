"""Rewriting of narrow matrix products in traced graphs."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_manifold.compiled import PRODUCTS, run

MM, BMM = torch.ops.aten.mm.default, torch.ops.aten.bmm.default


def shapes_of_left_factors(graph):
    return [tuple(node.args[0].meta["val"].shape) for node in graph.graph.nodes if node.target in (MM, BMM)]


def test_narrow_products_are_turned_round_and_keep_their_value():
    def function(A, B, C):
        narrow = A @ B
        return narrow.reshape(-1), (A.mT @ B).reshape(2, -1), A @ C, B.mT @ B

    A, B, C = torch.randn(2, 150, 150), torch.randn(2, 150, 3), torch.randn(2, 150, 40)
    graph = make_fx(function)(A, B, C)
    expected = function(A, B, C)
    products = [node for node in graph.graph.nodes if node.target is BMM]
    assert len(products) == 4
    run(PRODUCTS, graph)
    for found, wanted in zip(graph(A, B, C), expected, strict=True):
        assert torch.allclose(found, wanted)
        assert found.stride() == wanted.stride()
    assert [node in graph.graph.nodes for node in products] == [False, False, True, True]


def test_small_products_are_left_alone():
    graph = make_fx(lambda A, B: A @ B)(torch.randn(20, 20), torch.randn(20, 2))
    before = graph.code
    assert run(PRODUCTS, graph).code == before
