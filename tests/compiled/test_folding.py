"""Folded graphs are the function that was traced, with fewer nodes."""

from unittest import mock

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_manifold.compiled import folded_graph, trace
from pyro_manifold.compiled.native import decompositions


def second_derivative(q, v):
    def curve(q):
        written = torch.zeros(3)
        written[1:] = q.sin() * torch.arange(2.0)
        return (written.exp() + 0.0 * q.sum()) * torch.eye(3)

    return torch.func.jvp(lambda q: torch.func.jvp(curve, (q,), (v,))[1], (q,), (v,))[1]


def test_a_folded_graph_is_the_function_elsewhere_too():
    example = torch.randn(2), torch.randn(2)
    graph = folded_graph(second_derivative, *example)
    assert len(graph.graph.nodes) < len(make_fx(second_derivative)(*example).graph.nodes) / 2
    for _ in range(2):  # twice, so that a constant that was written to would show
        q, v = torch.randn(2, 2)
        assert torch.allclose(graph(q, v), second_derivative(q, v))
        assert graph(q, v).abs().sum() > 0


def test_what_is_computed_again_is_computed_once():
    def curve(q):
        return (q * torch.arange(2.0)).sin().exp()

    q = torch.randn(2)
    once, twice = folded_graph(curve, q), folded_graph(lambda q: curve(q) + 2 * curve(q), q)
    assert len(twice.graph.nodes) == len(once.graph.nodes) + 1
    assert torch.allclose(twice(q), 3 * curve(q))
    for size in (1, 2):
        assert folded_graph(lambda q, size=size: q * torch.ones(()).expand(size), q)(q).equal(q)
    apart = folded_graph(lambda q: (q * torch.arange(2.0)).sum() - (q * torch.ones(2)).sum(), q)
    assert torch.allclose(apart(q), -q[0])


def test_zero_times_what_is_not_finite_is_nan():
    """A chain that has left the support is detected in the graph as in the model."""
    zeros, x = torch.zeros(4), torch.tensor([0.5, torch.inf, -torch.inf, torch.nan])

    def function(x):
        return zeros * x.exp(), 0.0 * x, zeros / x.exp(), torch.func.jvp(lambda q: zeros * q, (x,), (x,))[1]

    graph = folded_graph(function, torch.ones(4))
    for found, expected in zip(graph(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_operators_of_constants_with_several_results_are_folded():
    """Operators without C code are folded, as in a network without sites before a regression."""
    data, layer = torch.randn(5, 3), torch.nn.LayerNorm(3)
    with torch.no_grad():
        layer.weight.normal_()

    def function(x):
        values, vectors = torch.linalg.eigh(data.T @ data)
        return (layer(data) @ x).detach(), values * x, vectors @ x

    x = torch.randn(3)
    graph = folded_graph(function, torch.ones(3), decompositions=decompositions())
    names = {node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"}
    assert not any("layer_norm" in name or "eigh" in name for name in names)
    for found, expected in zip(graph(x), function(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_copies_of_constants_may_be_written_to():
    """Missing values are put among data in this way."""
    data = torch.arange(6.0)

    def function(x):
        whole = data.clone()
        whole[[1, 4]] = x
        whole[2:-1].mul_(3)
        return whole

    kept = data.clone()
    x = torch.tensor([0.5, -2.0])
    graph = folded_graph(function, torch.ones(2))
    for _ in range(2):
        assert torch.equal(graph(x), function(x))
    assert torch.equal(data, kept)


@pytest.mark.parametrize("change", [lambda x: x.pow_(3), lambda x: x.pow_(x + 3), lambda x: x.ldexp_(torch.ones(4))])
def test_in_place_operators_whose_functions_have_other_names(change):
    """``pow_.Scalar`` is ``pow.Tensor_Scalar``, and ``pow.Scalar`` something else."""

    def function(x):
        return change(x * 2)

    x = torch.rand(4)
    torch.testing.assert_close(folded_graph(function, x)(x), function(x))


def of_new_values(x):
    y = x.exp()
    before = y + 1
    y.mul_(2).add_(x, alpha=3)
    y.clamp_(min=0.5)
    after = y.view(2, 2)
    inside = (x > 0).logical_and_(y < 9)
    return before, after.sum(0), y, inside


def of_views(x):
    y = x.exp()
    view = y.view(2, 2)
    y.mul_(2)
    return view.sum(0), y


def of_an_input(x):
    return x.clone(), x.sin_()


def with_other_dtypes(x):
    return x.float().add_(x), x.exp().gt_(2.0)


def by_a_mask(x):
    y = x.exp()
    y[x < 0] = -torch.inf  # as half-normal and half-Cauchy distributions do
    return y, y.sum()


@pytest.mark.parametrize(
    ("function", "traces"),
    [(of_new_values, 1), (by_a_mask, 1), (of_views, 2), (of_an_input, 2), (with_other_dtypes, 2)],
)
def test_writes_to_new_values_need_no_second_trace(function, traces):
    x = torch.randn(4)
    with mock.patch("pyro_manifold.compiled.functionalisation.trace", wraps=trace) as again:
        graph = folded_graph(lambda x: function(x), x.clone())
    assert 1 + again.call_count == traces
    x = torch.randn(4)
    for found, expected in zip(graph(x.clone()), function(x.clone()), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_norms_have_graphs_of_their_derivatives(p):
    gradient = torch.func.grad(lambda x: (x - 1).norm(p=p))
    x = torch.randn(5)
    torch.testing.assert_close(folded_graph(gradient, x)(x), gradient(x))
