"""Products with what all chains share are joined and keep their value."""

import pytest
import torch

from pyro_manifold.compiled import PRODUCTS, folded_graph

DATA = torch.randn(200, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BMM = torch.ops.aten.bmm.default


def products(graph):
    return [str(node.target) for node in graph.graph.nodes if "mm" in str(node.target)]


def with_data(w):
    return DATA @ w, (DATA @ w).T @ DATA, DATA.T @ (DATA @ w)


def with_a_batch(w, rows):
    return rows @ w, (rows @ w).T @ rows, rows.T @ (rows @ w)


@pytest.mark.parametrize("chains", [1, 2, 12])
def test_products_with_data_and_batches(chains):
    w, rows = torch.randn(chains, 30, 20), torch.randn(200, 30)
    cases = ((with_data, (0,), (w,)), (with_a_batch, (0, None), (w, rows)))
    for function, dimensions, inputs in cases:
        vectorised = torch.vmap(function, in_dims=dimensions)
        graph = folded_graph(vectorised, *inputs, then=PRODUCTS)
        others = [torch.randn_like(value) for value in inputs]
        for found, expected in zip(graph(*others), vectorised(*others), strict=True):
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
        if chains == 12:
            assert "aten.bmm.default" not in products(graph)


def test_products_of_matrices_of_each_chain_and_small_ones_are_left_alone():
    cases = (
        (lambda a, b: a @ b, torch.randn(4, 200, 30), torch.randn(4, 30, 200)),
        (lambda w: DATA[:5] @ w, torch.randn(4, 30, 2)),
    )
    for function, *inputs in cases:
        assert products(folded_graph(torch.vmap(function), *inputs, then=PRODUCTS)) == ["aten.bmm.default"]


def test_data_are_kept_once():
    graph = folded_graph(torch.vmap(lambda w: (2 * DATA) @ w), torch.randn(64, 30, 2))
    constants = [value for value in graph.buffers() if value.numel() >= DATA.numel()]
    assert constants
    assert all(value.untyped_storage().nbytes() <= DATA.untyped_storage().nbytes() for value in constants)
