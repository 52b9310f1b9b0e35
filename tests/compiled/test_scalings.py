"""Constants leave sums and products without changing values."""

import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.compiled import folded_graph


def nodes(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def normal_and_gradient(x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        density = dist.Normal(x.new_zeros(()), 0.3, validate_args=False).expand(x.shape).to_event(x.dim()).log_prob(x)
        return density.detach(), torch.autograd.grad(density, x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_normal_density_is_a_square_and_a_sum(dtype):
    x = torch.randn(4, 3, dtype=dtype)
    graph = folded_graph(normal_and_gradient, x)
    whole = [name for name in nodes(graph) if any(word in name for word in ("pow", "mul", "div", "neg", "sub", "add"))]
    assert len(whole) == 4  # a square, the gradient, and two of the sum
    for found, expected in zip(graph(2 * x), normal_and_gradient(2 * x), strict=True):
        assert torch.allclose(found, expected)
        assert found.dtype == dtype


FUNCTIONS = {
    "a term that another function needs": lambda x: ((3 * x).sum(), (3 * x).exp()),
    "columns": lambda x: (((1 - x / 2) * 4 + 1).sum(0, keepdim=True),),
    "views between": lambda x: ((2 * x + 1).view(-1).unsqueeze(0).sum((0, 1)),),
    "what lies across memory": lambda x: ((2 * x.mT).reshape(-1).sum(0) + (2 * x.mT.contiguous()).view(-1).sum(0),),
    "sums of one term": lambda x: ((5 * x).unsqueeze(-1).sum(-1),),
    "broadcasting": lambda x: ((x[:1] * torch.full((4, 3), 2.0)).sum(), x[0] * torch.ones(4, 3)),
    "constants that differ": lambda x: ((x * torch.arange(3.0)).sum(-1),),
    "factors of factors": lambda x: (-(x / 4) * torch.tensor(3.0) + x.exp(),),
    "differences": lambda x: (x.exp() - 2 * x, 2 * x - x.exp(), 2 - x, x - (1 + x)),
    "a factor of zero": lambda x: ((0 * x).sum(), (0 * x + 3).sum()),
    "another dtype": lambda x: ((2 * x).sum(dtype=torch.float32), (2 * (x > 0)).sum(), (2 * x.float()).sum()),
    "integers": lambda x: ((x > 0).long() * 3 + 1, ((x > 0).long() * 3 + 1).sum()),
    "infinities": lambda x: ((2 * (x - x).log() + 1).sum(), (torch.inf * x.exp()).sum()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_shapes_and_dtypes_stay(name):
    function, x = FUNCTIONS[name], torch.randn(4, 3)
    graph = folded_graph(function, torch.randn(4, 3))
    for found, expected in zip(graph(x), function(x), strict=True):
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert torch.allclose(found, expected, equal_nan=True)
