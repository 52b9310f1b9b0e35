"""Matrices in C against torch: derivatives of functions of matrices, and matrices that have no factor or inverse."""

import pytest
import torch

from tests.compiled.native.loops import in_native, in_torch, side_by_side
from tests.compiled.native.test_operators import close


@pytest.fixture(autouse=True)
def _numbers_of_the_dtype(request):
    given = getattr(request.node, "callspec", None)
    torch.set_default_dtype(given.params.get("dtype", torch.float64) if given else torch.float64)


GRADIENTS = {
    "solve": lambda a, b: torch.linalg.solve(a, b).sin().sum(),
    "solve of a transpose": lambda a, b: torch.linalg.solve(a.mT, b).sin().sum(),
    "determinant": lambda a, b: torch.linalg.slogdet(a)[1] + (a.mT @ a).logdet() + torch.linalg.slogdet(a.mT)[1],
    "det": lambda a, b: torch.linalg.det(a) + torch.linalg.det(a.mT),
    "det of a singular matrix": lambda a, b: torch.linalg.det(_singular(a)) + torch.linalg.det(_singular(a).mT).exp(),
    "log of a singular determinant": lambda a, b: (
        torch.logdet(_singular(a)) + torch.linalg.slogdet(2 * _singular(a))[1]
    ),
    "inverse": lambda a, b: (torch.linalg.inv(a) @ b).cos().sum(),
    "cholesky": lambda a, b: torch.linalg.cholesky(a @ a.mT + torch.eye(4).to(a)).sin().sum(),
    "eigenvalues": lambda a, b: torch.linalg.eigvalsh(a @ a.mT).log().sum() + torch.linalg.eigvalsh(a + a.mT)[0],
}


def _singular(a):
    """Return a matrix with a row of zeros, which elimination moves last and leaves zero in any rounding."""
    return torch.cat([a[:2], 0 * a[2:3], a[3:]])


def gradient_of(function):
    def of_one_chain(a, b):
        a = a.clone().requires_grad_()
        with torch.enable_grad():
            return [torch.autograd.grad(function(a, b), a)[0]]

    return of_one_chain


def test_gradients_of_matrices():
    """Backward formulas use factors of the forward ones, which LAPACK takes of a transpose or not."""
    inputs = [torch.randn(5, 4, 4) + 3 * torch.eye(4)[torch.randperm(4)], torch.randn(5, 4, 3)]
    functions = {name: gradient_of(function) for name, function in GRADIENTS.items()}
    for name, found, expected in side_by_side(functions, *inputs):
        close(found, expected, 20000, name)


def test_what_has_no_factor_is_nan():
    """A chain whose matrix has no Cholesky factor must be seen to diverge, and its neighbours must not."""
    matrices = torch.stack([torch.eye(3), -torch.eye(3), 2 * torch.eye(3), torch.full((3, 3), torch.nan)])
    (found,) = in_native(lambda a: [torch.linalg.cholesky_ex(a)[0].sum()], matrices)
    assert found.isfinite().tolist() == [True, False, True, False]


def determinants(a):
    return [a.det(), a.mT.det(), *torch.linalg.slogdet(a), a.logdet(), torch.linalg.det(torch.stack([a, 2 * a]))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_determinants_of_singular_matrices(dtype):
    """Zero, as in torch, where a solution would be NaN; a neighbour keeps its own.

    Elimination divides by powers of two alone, also of the transpose, so that no library rounds.
    """
    second = torch.tensor([[1.0, 2, 4], [2, 4, 8], [1, 0, 4]])
    matrices = torch.stack([torch.zeros(3, 3), second, torch.diag(torch.tensor([1.0, 0, 2])), torch.eye(3), second / 0])
    found, expected = (way(determinants, matrices.to(dtype)) for way in (in_native, in_torch))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    (solved,) = in_native(lambda a: [torch.linalg.solve(a, a[:, 0])], matrices[[3, 2]].to(dtype))
    assert solved.isnan().any(1).tolist() == [False, True]


@pytest.mark.parametrize("way", [in_native, in_torch])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_determinants_that_rounding_keeps_from_zero(dtype, way):
    """Each library rounds the factors of a singular matrix in its own way: to any sign, but not to NaN."""
    factors = torch.randn(6, 3, 2)
    singular = torch.cat([torch.tensor([[[1.0, 2, 3], [2, 4, 6], [1, 0, 1]]]), factors @ factors.flip(0).mT])
    det, of_transpose, sign, logarithm, logdet, several = way(determinants, singular.to(dtype))
    unit = 100 * torch.finfo(dtype).eps * torch.linalg.matrix_norm(singular.to(dtype)) ** 3
    assert (det.abs() <= unit).all()
    assert (of_transpose.abs() <= unit).all()
    assert (several.abs() <= unit[:, None] * torch.tensor([1.0, 8.0])).all()
    assert (logarithm <= unit.log()).all()
    assert set(sign.tolist()) <= {-1.0, 0.0, 1.0}
    assert logdet.isnan().equal(sign < 0)  # the logarithm of a negative number, as everywhere
