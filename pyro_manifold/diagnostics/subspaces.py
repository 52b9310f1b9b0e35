"""Spans of columns: the identified part of loadings when any rotation of the columns is allowed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_matrices, check_tall


class SubspaceSummary(NamedTuple):
    r"""Mean and spread of the spans of draws.

    Attributes:
        mean: orthonormal basis of the mean subspace, ``(..., n, p)``, the best determined direction first. Signs of
            columns are arbitrary.
        concentration: eigenvalues of the mean projector that belong to ``mean``, ``(..., p)``, decreasing:
            $E\lVert P v_j\rVert^2$, 1 for a direction that lies in all draws, about p/n for uniform draws.
        angles: principal angles between each draw and ``mean`` in radians, ``(chains, draws, ..., p)``, increasing.
    """

    mean: Tensor
    concentration: Tensor
    angles: Tensor


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    r"""Compute the principal angles between the spans of the columns of two matrices, in radians, increasing.

    The first is the smallest angle between a vector of one span and a vector of the other; each next one is the
    smallest for vectors orthogonal to those before. With orthonormal bases Q and R of the spans,

    $$ \theta_k = \mathrm{atan2}(\sigma_k, \gamma_k), $$

    $\gamma$ the singular values of $Q^\top R$ in decreasing, $\sigma$ those of
    $(I - QQ^\top) R$ in increasing order. Cosines alone lose all angles below the root of the machine precision,
    sines alone all those that near to π/2 (Björck & Golub 1973, Mathematics of Computation 27, 579–594).

    Args:
        first: ``(..., n, p)``, float32 or float64, with independent columns; orthonormal or not.
        second: ``(..., n, q)``; leading dimensions broadcast.

    Returns:
        ``(..., min(p, q))``, between 0 and π/2.

    Raises:
        TypeError: for anything but real floating point tensors.
        ValueError: for non-finite entries, shapes that do not match, or linearly dependent columns.

    Examples:
        >>> first = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
        >>> second = torch.tensor([[1.0], [1e-12]], dtype=torch.float64)
        >>> f"{principal_angles(first, second).item():.3e}"
        '1.000e-12'
    """
    owner = "principal_angles"
    check_matrices(first, "first", owner)
    check_matrices(second, "second", owner)
    if first.shape[-2] != second.shape[-2]:
        raise ValueError(
            f"{owner}: first has shape {tuple(first.shape)} and second {tuple(second.shape)}, but their columns must "
            "have the same length; transpose the one that has them as rows."
        )
    dtype = torch.promote_types(first.dtype, second.dtype)
    wide = _orthonormal_basis(first.to(dtype), "first", owner)
    narrow = _orthonormal_basis(second.to(dtype), "second", owner)
    if wide.shape[-1] < narrow.shape[-1]:  # the sines are those of the smaller space
        wide, narrow = narrow, wide
    inner = wide.mT @ narrow
    cosines = torch.linalg.svdvals(inner)
    sines = torch.linalg.svdvals(narrow - wide @ inner).flip(-1)
    return torch.atan2(sines, cosines)


def _orthonormal_basis(matrix: Tensor, name: str, owner: str) -> Tensor:
    """Return orthonormal columns with the span of ``matrix``; raise one sentence if its columns are dependent."""
    check_tall(matrix, name, owner)
    basis, triangle = torch.linalg.qr(matrix.detach())
    singular_values = torch.linalg.svdvals(triangle)
    smallest = max(matrix.shape[-2:]) * float(torch.finfo(matrix.dtype).eps)
    if not bool((singular_values[..., -1] > smallest * singular_values[..., 0]).all()):
        raise ValueError(
            f"{owner}: {name} has linearly dependent columns, so their span has fewer than {matrix.shape[-1]} "
            "dimensions; leave out the redundant columns."
        )
    return basis


def mean_projector(draws: Tensor) -> Tensor:
    r"""Compute the posterior mean $E\,QQ^\top$ of the orthogonal projector onto the span, invariant to rotations.

    Orthonormal draws are their own basis Q; other loadings are orthonormalised first. It is n×n: for large n
    `subspace_summary` has the same information without it.

    Args:
        draws: ``(chains, draws, ..., n, p)``, float32 or float64, with independent columns.

    Returns:
        ``(..., n, n)``, symmetric, trace p, eigenvalues in [0, 1].

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries, a wrong shape, or linearly dependent columns.

    Examples:
        >>> draws = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)
        >>> mean_projector(draws).tolist()
        [[0.5, 0.0], [0.0, 0.5]]
    """
    check_draws(draws, "mean_projector")
    stacked = _stack(_orthonormal_basis(draws, "draws", "mean_projector"))
    return stacked @ stacked.mT / (draws.shape[0] * draws.shape[1])


def subspace_summary(draws: Tensor) -> SubspaceSummary:
    r"""Compute the mean subspace of draws, how well each of its directions is determined, and the angles to each draw.

    The mean subspace is spanned by the p leading eigenvectors of `mean_projector`; it minimises the mean of
    $\sum_k \sin^2 \theta_k$, θ the principal angles to a draw (Srivastava & Klassen 2002, IEEE Transactions on
    Signal Processing 50, 299–308). With N draws in all the cost is that of an eigenvalue problem of size min(n, Np), on
    a matrix no larger than the draws; if both are above a few thousand, thin the draws.

    Args:
        draws: ``(chains, draws, ..., n, p)``, float32 or float64, with independent columns.

    Returns:
        `SubspaceSummary` of the draws' dtype.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries, a wrong shape, or linearly dependent columns.

    Examples:
        >>> draws = torch.eye(4, 2).expand(2, 10, 4, 2)
        >>> summary = subspace_summary(draws)
        >>> bool(torch.allclose(summary.concentration, torch.ones(2))), bool(summary.angles.max() < 1e-3)
        (True, True)
    """
    check_draws(draws, "subspace_summary")
    basis = _orthonormal_basis(draws, "draws", "subspace_summary")
    mean, concentration = _leading_directions(basis)
    return SubspaceSummary(mean, concentration, principal_angles(basis, mean))


def _stack(basis: Tensor) -> Tensor:
    """Concatenate the columns of all N draws to S of shape ``(..., n, Np)``: SSᵀ/N is the mean projector."""
    return basis.flatten(0, 1).movedim(0, -2).flatten(-2)


def _leading_directions(basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the leading p eigenvectors and eigenvalues of SSᵀ/N, from the smaller of SSᵀ and SᵀS."""
    p = basis.shape[-1]
    stacked = _stack(basis)
    n, columns = stacked.shape[-2:]
    if n <= columns:
        eigenvalues, vectors = torch.linalg.eigh(stacked @ stacked.mT)
        leading = vectors[..., -p:]
    else:
        eigenvalues, vectors = torch.linalg.eigh(stacked.mT @ stacked)
        # The columns of S times eigenvectors are orthogonal; QR scales them to length 1.
        leading = torch.linalg.qr(stacked @ vectors[..., -p:].flip(-1))[0].flip(-1)
    concentration = eigenvalues[..., -p:].flip(-1) / (basis.shape[0] * basis.shape[1])
    return leading.flip(-1), concentration.clamp(0, 1)
