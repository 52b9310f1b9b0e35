"""LU of several large matrices on two threads, where torch's own hangs: in a process of its own, which is ended."""

import subprocess
import sys

import pytest
import torch

from pyro_manifold.compiled import by_matrix
from pyro_manifold.compiled.large_matrices import LARGEST_IN_BATCH

ROWS = LARGEST_IN_BATCH + 40

PROGRAM = f"""
import torch
from pyro_manifold.compiled import vectorise
from pyro_manifold.contrib.learned_sampler.training.stein import stein_scores
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel, polar_factor
from pyro_manifold.manifolds.polar_volume import log_volume_of_polar_retraction
from pyro_manifold.manifolds.stiefel import cayley_flow, geodesic_flow

torch.set_default_dtype(torch.float64)
torch.set_num_threads(2)
n = {ROWS}
noise = torch.Generator().manual_seed(0)
draw = lambda *shape: torch.randn(*shape, generator=noise)

def alone(function, *batches):
    return [torch.stack(parts) for parts in zip(*[function(*one) for one in zip(*batches)])]

def same(function, *batches):
    together = function(*batches)
    assert all(torch.allclose(x, y, atol=1e-8) for x, y in zip(together, alone(function, *batches))), function

for rows in (n, n + 20, 3 * n):
    points = Stiefel().random_point(3, rows, n, dtype=torch.float64, generator=noise)
    tangents = Stiefel().tangent_projection(points, draw(3, rows, n) / 10)
    same(lambda X, r: cayley_flow(X, r, 0.5), points, tangents)
    same(lambda X, r: geodesic_flow(X, r, 0.5), points, tangents)
    same(lambda X, r: (torch.autograd.functional.jvp(polar_factor, X + r, r)[1],), points, tangents)
    same(lambda X, r: (log_volume_of_polar_retraction(X, r),), points, tangents)
rotations = SpecialOrthogonal().random_point(3, n, n, dtype=torch.float64, generator=noise)
assert SpecialOrthogonal().membership_error(rotations).max() < 1e-10

B = draw(n, n) / n
identity = torch.eye(n)

def density(x):
    return (torch.linalg.slogdet(identity + x[0] * B)[1] + torch.linalg.solve(identity + x @ x * B, B)[0, 0],)

x = draw(4, 2)
together = vectorise(density, [x])
assert together.backend == "traced", together.backend
assert torch.allclose(together(x)[0], torch.stack([density(one)[0] for one in x]))

sets = draw(4, n, 2)
assert torch.allclose(stein_scores(sets), torch.stack([stein_scores(one) for one in sets]))
print("right")
"""


def test_on_two_threads():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90)
    assert process.stdout == "right\n", process.stderr[-2000:]


@pytest.mark.parametrize(("batch", "of_right"), [((3,), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((3,), ())])
def test_batches(batch, of_right):
    noise = torch.Generator().manual_seed(0)
    matrices = torch.eye(ROWS) + torch.randn(*batch, ROWS, ROWS, generator=noise) / ROWS
    right = torch.randn(*of_right, ROWS, 2, generator=noise)
    found = by_matrix(torch.linalg.solve, matrices, right)
    assert found.shape == (*torch.broadcast_shapes(batch, of_right), ROWS, 2)
    assert torch.allclose(matrices @ found, right.expand_as(found), atol=1e-8)
    assert by_matrix(torch.linalg.det, torch.empty(0, ROWS, ROWS)).shape == (0,)
    signs, logarithms = by_matrix(torch.linalg.slogdet, matrices)
    assert signs.shape == logarithms.shape == batch
    assert torch.allclose(logarithms, torch.linalg.slogdet(matrices)[1])
