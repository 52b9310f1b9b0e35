"""Traced graphs are the function that was traced, in a form that torch can differentiate."""

import torch

from pyro_manifold.graphs.tracing import forward_differentiable, trace


def curve(x):
    return (2.0 * torch.atanh(x) + 1.0) / 3.0


def test_the_rewritten_graph_is_the_same_function():
    for shape in ((), (3,)):
        x = 0.4 * torch.ones(shape)
        graph = forward_differentiable(trace(curve, x))
        assert torch.allclose(graph(-x), curve(-x))
        assert torch.allclose(graph(1e-9 * x), curve(1e-9 * x), atol=0.0)


def test_tangents_keep_single_precision():
    x = torch.tensor(0.4, dtype=torch.float32)
    _, tangent = torch.func.jvp(forward_differentiable(trace(curve, x)), (x,), (torch.ones_like(x),))
    assert tangent.dtype == torch.float32


def test_reverse_derivatives_of_tangents_of_atanh_can_be_traced():
    """This ends the process with torch's own atanh."""
    x = torch.tensor([0.1, 0.5])
    graph = forward_differentiable(trace(curve, x))

    def pull(x):
        return torch.func.vjp(torch.func.jacfwd(graph), x)[1](torch.eye(2))[0]

    assert torch.allclose(trace(pull, x)(x), 2 / 3 * 2 * x / (1 - x**2) ** 2)
