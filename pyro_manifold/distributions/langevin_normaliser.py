r"""The matrix Langevin normalising constant, ${}_0F_1(n/2; F^\top F/4) = E\,e^{\operatorname{tr} F^\top X}$."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_manifold.distributions.langevin_columns import log_two_columns
from pyro_manifold.distributions.langevin_spectrum import log_many_columns


def log_langevin_normaliser(concentration: Tensor) -> Tensor:
    r"""Compute the log normalising constant of `MatrixLangevin`, $\log E\,e^{\operatorname{tr} F^\top X}$.

    X is uniform on the n×p matrices with orthonormal columns, and the mean is ${}_0F_1(n/2; F^\top F/4)$. With
    the singular values $d_i$ of F its logarithm is computed as

    $$
    \sum_i s(d_i) + \sum_{i<j} c(d_i, d_j) + \sum_{k=3}^p a_k e_k(q_1, \dots, q_p),
    \qquad q_i = 1 - \big(1 + 4 d_i^2 / (n-1)^2\big)^{-1/2}.
    $$

    s is the logarithm for one column and s + s + c that for two, by `pyro_manifold.distributions.langevin_table`. For
    any n and F their error is about 1e-13 relative to the larger of the value and 1, that of first derivatives 1e-12
    and that of second ones 1e-11. **p ≤ 2 is exact** and has derivatives of every order. For p ≥ 3 there are two
    derivatives. The last sum is then the contribution of the volumes of k columns beyond those of fewer, e_k an
    elementary symmetric polynomial and $a_k$ the (k-1)-th difference of $\log\Gamma((n-j)/2)$ at j = 0. It vanishes
    with any of k singular values and has the correct limit when any number of them are large; in between it follows the
    second-order saddlepoint approximation of Kume, Preston and Wood, whose three-column part is exactly
    $\frac1{2n} e_3(q)$, with n for n - 1 in q.

    The table lists the largest errors of the logarithm found, over singular values between 0.5 and 1000, equal and
    spread; they are largest where singular values are near 2n and small at both ends:

    | p | n = p | p + 1 | p + 2 | 2p | 3p |
    |---|---|---|---|---|---|
    | 3 | 0.05 | 0.02 | 0.01 | 0.005 | 0.001 |
    | 4 | 0.17 | 0.06 | 0.04 | 0.02 | 0.01 |
    | 5 | 0.33 | 0.15 | 0.10 | 0.05 | 0.02 |
    | 8 | 1.3 | 0.75 | 0.55 | 0.2 | 0.1 |

    The error enters once for each observed matrix: with many matrices of p ≥ 3 columns and n close to p, the posterior
    of F is that of a slightly different distribution.

    Args:
        concentration: F, ``(..., n, p)`` with n ≥ p.

    Returns:
        ``(...)``, dtype of F; computed in float64. NaN where F has an entry that is not finite; exact up to
        entries of 1e70.

    Raises:
        NotImplementedError: if a third derivative is requested and p ≥ 3.

    Examples:
        >>> F = torch.eye(3, 2, requires_grad=True)
        >>> value = log_langevin_normaliser(F)
        >>> round(value.item(), 4)
        0.3275
        >>> bool(torch.allclose(torch.autograd.grad(value, F)[0], langevin_mean(F)))
        True
    """
    matrix = concentration.double()
    n, p = matrix.shape[-2:]
    if n == 1:
        value = _log_cosh(matrix[..., 0, 0])
    elif p == 1:
        total = matrix.square().sum((-2, -1))
        value = log_two_columns(total, torch.zeros_like(total), n)
    elif p == 2:
        value = log_two_columns(matrix.square().sum((-2, -1)), _gram_determinant(matrix), n)
    else:
        value = log_many_columns(matrix)
    return value.to(concentration.dtype)


def langevin_mean(concentration: Tensor) -> Tensor:
    r"""Compute the mean of the matrix Langevin distribution, $\partial \log {}_0F_1 / \partial F$, shaped as F.

    Examples:
        >>> langevin_mean(torch.tensor([[1e9], [0.0]])).round().tolist()
        [[1.0], [0.0]]
    """
    mean: Tensor = torch.func.grad(lambda matrix: log_langevin_normaliser(matrix).sum())(concentration)
    return mean


def _log_cosh(x: Tensor) -> Tensor:
    # NaN where x is infinite, as for every other F
    return torch.logaddexp(x, -x) - math.log(2) + (x - x)


def _gram_determinant(matrix: Tensor) -> Tensor:
    """Return the product of both squared singular values, a polynomial for derivatives, accurate where it is small."""
    first, second = matrix.unbind(-1)
    squares, mixed = matrix.square().sum(-2), (first * second).sum(-1)
    determinant = squares.prod(-1) - mixed.square()
    # That cancels where columns are nearly parallel; the part of one column orthogonal to the other does not.
    tiny = torch.finfo(matrix.dtype).tiny
    orthogonal = second - first * (mixed / (squares[..., 0] + tiny)).unsqueeze(-1)
    accurate = squares[..., 0] * orthogonal.square().sum(-1)
    return determinant + (accurate - determinant).detach()
