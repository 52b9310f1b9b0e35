"""The table of passes, and rules as its entries."""

import math

import pytest
import scipy.special
import torch

from pyro_manifold.compiled import ATEN, SIMPLIFICATION, Pass, call, folded_graph, passes, run, simplified, trace


def operators(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def logarithm_of_one_more(module, node):
    """Replace log(1 + x) by log1p(x)."""
    inner = node.args[0]
    if inner.target is not ATEN.add.Tensor or inner.args[1] != 1 or inner.kwargs:
        return None
    return call(module.graph, ATEN.log1p.default, (inner.args[0],))


LOGARITHMS = Pass("logarithms near one", {ATEN.log.default: logarithm_of_one_more})


def test_a_rule_is_a_function_and_a_line():
    function, x = (lambda x: (x.exp() + 1).log() + (x.exp() + 2).log()), torch.randn(4)
    plain, graph = (folded_graph(function, x, then=then) for then in ((), (LOGARITHMS, passes.DEAD_CODE)))
    assert operators(plain).count(ATEN.log.default) == 2
    assert [operators(graph).count(operator) for operator in (ATEN.log.default, ATEN.log1p.default)] == [1, 1]
    torch.testing.assert_close(graph(x), function(x))
    replaced = next(node for node in graph.graph.nodes if node.target is ATEN.log1p.default)
    assert replaced.meta["val"].shape == x.shape
    assert replaced.meta["val"].is_meta


def test_a_graph_is_simplified_without_another_trace():
    function, x = (lambda x: (x * 1 + torch.ones(4).sum()).exp() + (x + 0).exp()), torch.randn(4)
    graph = trace(function, torch.randn(4))
    before, found = graph.code, simplified(graph, then=(LOGARITHMS,))
    assert graph.code == before
    assert found.code == folded_graph(function, torch.randn(4)).code
    assert len(operators(found)) < len(operators(graph))
    torch.testing.assert_close(found(x), function(x))


def test_passes_for_functions_leave_graphs_that_write_alone():
    def function(x):
        y = torch.zeros(4)
        y += x
        return y

    graph = trace(function, torch.ones(4))
    before = graph.code
    assert run(SIMPLIFICATION, graph).code == before


@pytest.mark.parametrize("name", ["SIMPLIFICATION", "PRODUCTS", "FUNCTIONALISATION", "VECTORISATION", "FORWARD_MODE"])
def test_names_of_passes_are_those_of_one_change(name):
    changes = {}
    for each in getattr(passes, name):
        assert changes.setdefault(each.name, each.change) is each.change


def test_shapes_of_inputs_are_constants():
    def function(x):
        return torch.arange(3.0).exp() * x + torch.zeros_like(x)

    x = torch.randn(3)
    module = run(SIMPLIFICATION, trace(function, x))
    assert operators(module) == [ATEN.mul.Tensor]
    torch.testing.assert_close(module(x), function(x))


def test_a_graph_raises_where_the_factorisation_of_the_model_fails():
    """The operator that raises has no result, and so no users."""
    module = run(SIMPLIFICATION, trace(torch.linalg.cholesky, torch.eye(2)))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        module(-torch.eye(2))


def test_log_of_the_normal_distribution_for_forward_mode():
    """Values and tangents on both sides of the place where the formulas meet, and far away, without a loop of vmap."""
    x = torch.tensor([-40.0, -5.0, -1.0, -0.999, 0.0, 3.0, 40.0], dtype=torch.float64)
    graph = run(passes.FORWARD_MODE, trace(torch.special.log_ndtr, x[:1].clone()))
    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        rows = torch.func.vmap(lambda at: torch.func.jvp(graph, (at,), (torch.ones_like(at),)))
        values, slopes = rows(x[:, None])
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    expected = torch.as_tensor(scipy.special.log_ndtr(x.numpy()))
    torch.testing.assert_close(values[:, 0], expected, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(slopes[:, 0], torch.exp(-x.square() / 2 - expected) / math.sqrt(2 * math.pi))
