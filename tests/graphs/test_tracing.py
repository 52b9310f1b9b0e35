"""Traced graphs are the function that was traced, in a form that torch can differentiate."""

import pytest
import torch

from pyro_manifold.graphs.tracing import forward_differentiable, trace

ATANH = torch.ops.aten.atanh.default


def curve(x):
    return (2.0 * torch.atanh(x) + 1.0) / 3.0


def rewritten(function, *example):
    """The graph without atanh. Looked at before it is traced again, which would end the process with torch's own."""
    graph = trace(function, *example)
    assert ATANH in {node.target for node in graph.graph.nodes}
    forward_differentiable(graph)
    assert ATANH not in {node.target for node in graph.graph.nodes}
    return graph


def test_the_rewritten_graph_is_the_same_function():
    for shape in ((), (3,)):
        x = 0.4 * torch.ones(shape)
        graph = rewritten(curve, x)
        assert torch.allclose(graph(-x), curve(-x))


def test_the_logarithms_for_atanh_keep_all_digits_near_zero_and_the_poles():
    x = torch.cat([10.0 ** torch.arange(-300, 0, 13), 1 - 10.0 ** torch.arange(-15, 0)])
    x = torch.cat([-x, x])
    assert torch.allclose(rewritten(torch.atanh, x)(x), torch.atanh(x), rtol=1e-15, atol=0.0)


def test_tangents_keep_single_precision():
    x = torch.tensor(0.4, dtype=torch.float32)
    _, tangent = torch.func.jvp(rewritten(curve, x), (x,), (torch.ones_like(x),))
    assert tangent.dtype == torch.float32


def test_reverse_derivatives_of_tangents_of_atanh_can_be_traced():
    x = torch.tensor([0.1, 0.5])
    graph = rewritten(curve, x)

    def pull(x):
        return torch.func.vjp(torch.func.jacfwd(graph), x)[1](torch.eye(2))[0]

    assert torch.allclose(trace(pull, x)(x), 2 / 3 * 2 * x / (1 - x**2) ** 2)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_cumulative_products_and_their_derivative_are_plain_multiplications(size):
    """Zeros too: torch's own derivative looks for them, in ways that follow the values."""
    x = torch.randn(3, size)
    x[0, size // 2] = 0

    def gradient(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            value = (leaf.cumprod(1).sin() + torch.cumprod(leaf, dim=-1)).sum()
        return torch.autograd.grad(value, leaf)[0]

    expected = gradient(x)
    graph = trace(gradient, x.clone())
    names = {node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"}
    assert not any(name.startswith(("cumprod", "max", "scatter", "gather")) for name in names)
    torch.testing.assert_close(graph(x), expected)
    other = torch.randn(3, size)
    torch.testing.assert_close(graph(other), gradient(other))
