"""Tensors that do not lie row by row: many chains in one graph, and native code, give what each chain gives alone."""

import pytest
import torch

from pyro_manifold.compiled import WITHOUT_STRIDES, run, trace
from pyro_manifold.density import BatchedPotential
from tests.compiled.native.loops import in_native, in_torch


def _first_row(x):
    y = x.clone()
    y[0] = 2 * y[-1]
    return y


def _first_column(x):
    y = x.clone()
    y.mT[0] = 3.0
    return y


def _diagonal(x):
    y = x.clone()
    y.diagonal(0, 0, -1).mul_(2)
    return y


def _in_a_view(x):
    buffer = torch.zeros(x.numel())
    buffer.view(x.shape).copy_(x)
    return buffer.reshape(x.shape)


def _scattered(x):
    return torch.zeros(x.shape).scatter_(-1, (torch.arange(x.numel()).reshape(x.shape) * 7) % x.shape[-1], x)


def _written_elsewhere(x):
    """Through strides, and read through others afterwards."""
    y = x.clone()
    corner = y.as_strided((2, 2), (1, 2))
    corner.mul_(3)
    return y.as_strided((3,), (1,), 1)


STEPS = {
    "transposed": lambda x: x.transpose(0, -1),
    "expanded": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "every second": lambda x: x[..., ::2],
    "all but the first": lambda x: x[1:],
    "strided": lambda x: x.as_strided((2, 2), (1, 2), x.storage_offset()),
    "strided again": lambda x: x.as_strided((2, 3), (0, 1), x.storage_offset()),
    "by its strides": lambda x: x.as_strided(x.shape, x.stride(), x.storage_offset()),
    "windows": lambda x: x.unfold(0, 2, 1),
    "in two rows": lambda x: x.reshape(2, -1),
    "solved": lambda x: torch.linalg.solve(x @ x.mT + torch.eye(x.shape[-2]), x),
    "first row": _first_row,
    "first column": _first_column,
    "diagonal": _diagonal,
    "in a view": _in_a_view,
    "scattered": _scattered,
    "elsewhere": _written_elsewhere,
    "in order": lambda x: x.sort(dim=0, stable=True)[0],
    "like": lambda x: torch.empty_strided(x.shape, x.stride()).copy_(x),
}
CHAINS = [
    *[(step,) for step in STEPS],
    ("transposed", "strided"),
    ("transposed", "strided", "strided again"),
    ("strided", "strided again", "expanded"),
    ("every second", "strided"),
    ("all but the first", "strided", "in a view"),
    ("transposed", "in a view"),
    ("first column", "by its strides", "in a view"),
    ("first column", "strided", "first row"),
    ("solved", "diagonal"),
    ("solved", "first row", "transposed"),
    ("solved", "strided"),
    ("first column", "solved", "in a view"),
    ("in a view", "transposed", "expanded"),
    ("expanded", "transposed", "scattered"),
    ("windows", "first row", "in two rows"),
    ("transposed", "like", "diagonal"),
    ("transposed", "in order", "first column"),
]


def density_of(chain):
    def potential(sites):
        x = sites["x"] * 1.5
        for step in chain:
            x = STEPS[step](x)
        return (x.sin() * torch.arange(x.numel()).reshape(x.shape).cos()).sum()

    return potential


@pytest.mark.long
def test_what_does_not_lie_row_by_row():
    example, other = torch.randn(2, 3, 3, 4)
    densities = [density_of(chain) for chain in CHAINS]
    batched = [BatchedPotential(potential, {"x": example}) for potential in densities]
    natively = iter(in_native(lambda x: [value for each in batched for value in each.of_one_chain(x)], other))
    for chain, potential, each in zip(CHAINS, densities, batched, strict=True):
        assert each.graph.backend == "traced"
        energy, gradient = each({"x": other})
        leaf = other.clone().requires_grad_()
        expected = torch.stack([potential({"x": row}) for row in leaf])
        (slope,) = torch.autograd.grad(expected.sum(), leaf)
        for found in ((energy, gradient["x"]), (next(natively), next(natively))):
            for here, there in zip(found, (expected.detach(), slope), strict=True):
                message = lambda text, chain=chain: f"{' of '.join(reversed(chain))}: {text}"  # noqa: E731
                torch.testing.assert_close(here, there, msg=message)


def test_native_strides_through_what_lies_in_columns():
    """The gradient of a write into a solution, which LAPACK leaves in columns."""

    def gradient(x):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            y = torch.linalg.solve(leaf @ leaf.mT + torch.eye(3), leaf).clone()
            y.diagonal().mul_(2)
            return list(torch.autograd.grad((y.sin() * torch.arange(12.0).reshape(3, 4)).sum(), leaf))

    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(in_native(gradient, x), in_torch(gradient, x))


def test_strided_views_that_are_written_to_later_stay_views():
    def function(x):
        y = x.clone()
        before, after = y.as_strided((2, 2), (1, 2)), y[0]
        after.mul_(3)
        return before * 1

    graph = run(WITHOUT_STRIDES, trace(function, torch.randn(3, 4)))
    assert torch.ops.aten.as_strided.default in {node.target for node in graph.graph.nodes}
    x = torch.randn(3, 4)
    assert torch.equal(graph(x), function(x))
    graph = run(WITHOUT_STRIDES, trace(lambda x: x.mT.as_strided((2, 2), (1, 2)) * 1, torch.randn(3, 4)))
    assert torch.ops.aten.as_strided.default not in {node.target for node in graph.graph.nodes}
    assert torch.equal(graph(x), x.as_strided((2, 2), (1, 2)))
