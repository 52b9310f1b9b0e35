"""Mean and dispersion of draws of orthonormal matrices, by the Euclidean distance of their entries.

The arithmetic mean of orthonormal matrices is not orthonormal. A Fréchet mean of points on a manifold is the point of
the manifold with the smallest mean squared distance to them. Square orthonormal matrices are a manifold of two
components, rotations and reflections; the mean of draws of one component is on this component.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.diagnostics.checks import check_draws, check_orthonormal, check_reference
from pyro_manifold.manifolds import SpecialOrthogonal, polar_factor

_STANDARD_ERRORS = 4.0
_REMEDY = "take more draws, report angles in place of a mean, or align them if signs of columns are unknown"


def frechet_mean(draws: Tensor) -> Tensor:
    r"""Compute the orthonormal M with the smallest mean squared distance $E\lVert X - M\rVert_F^2$ to the draws.

    $$
    \arg\min_{M^\top M = I} E\lVert X - M\rVert_F^2 = \arg\max_M \mathrm{tr}(M^\top E X)
    = \text{polar factor of } EX .
    $$

    The polar factor is the nearest orthonormal matrix. If all draws of a square matrix have the same determinant, 1 as
    rotations or -1, so has M, which is the nearest matrix of this determinant. M is the maximum likelihood estimate of
    the mode of `MatrixLangevin` (Khatri & Mardia 1977, Journal of the Royal Statistical Society B 39), and unique if
    the arithmetic mean EX has full rank. Matrices known up to signs or rotations of columns have a mean near zero:
    align them first.

    Args:
        draws: orthonormal matrices X, ``(chains, draws, ..., n, p)``, float32 or float64.

    Returns:
        ``(..., n, p)``, orthonormal columns.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: if the nearest matrix is not unique (a rank deficient arithmetic mean), for non-finite entries, a
            wrong shape, or draws that are not orthonormal.

    Warns:
        UserWarning: if the arithmetic mean is within 4 standard errors (of independent draws) of one whose nearest
            matrix is not unique.

    Examples:
        >>> cosine, sine = 0.96, 0.28
        >>> draws = torch.tensor([[cosine, sine], [cosine, -sine]]).reshape(1, 2, 2, 1)
        >>> torch.allclose(frechet_mean(draws), torch.tensor([[1.0], [0.0]]), atol=1e-6)
        True
    """
    check_draws(draws, "frechet_mean")
    check_orthonormal(draws, "draws", "frechet_mean")
    draws = draws.detach()
    mean = draws.mean((0, 1))
    determinant = _determinant(draws)
    distance = _distance_from_ambiguity(mean, determinant)
    ambiguous = distance <= max(mean.shape[-2:]) * float(torch.finfo(mean.dtype).eps)
    if bool(ambiguous.any()):
        if bool(determinant[ambiguous].all()):
            raise ValueError(
                f"frechet_mean: draws are so dispersed that several matrices are nearest to them: {_REMEDY}."
            )
        raise ValueError(
            "frechet_mean: draws have a rank deficient arithmetic mean, so no one orthonormal matrix is nearest to "
            "them, as happens when signs or rotations of columns are unknown; align them first with align_signs, "
            "align_signs_and_permutations or align_rotations."
        )
    total = draws.shape[0] * draws.shape[1]
    standard_error = ((draws - mean).square().sum((-2, -1)).mean((0, 1)) / total).sqrt()
    near = distance < _STANDARD_ERRORS * standard_error
    if bool(near.any()):
        warnings.warn(
            f"frechet_mean: draws are so dispersed that their Fréchet mean may be noise: {_REMEDY}."
            if bool(determinant[near].all())
            else "frechet_mean: the arithmetic mean of draws cannot be distinguished from a rank deficient one, so "
            "their Fréchet mean may be noise; align them first if signs or rotations of columns are unknown, "
            "or take more draws.",
            stacklevel=2,
        )
    if not bool(determinant.any()):
        return polar_factor(mean)
    mixed = (determinant == 0)[..., None, None]
    return torch.where(mixed, polar_factor(mean), _nearest_of_determinant(mean, determinant))


def _determinant(draws: Tensor) -> Tensor:
    """Return the determinant ±1 that all draws of a batch element have in common, or 0."""
    n, p = draws.shape[-2:]
    if n != p or n == 1:
        return draws.new_zeros(draws.shape[2:-2])
    signs = by_matrix(torch.linalg.det, draws).sign()
    return torch.where((signs == signs[0, 0]).all(1).all(0), signs[0, 0], 0.0)


def _distance_from_ambiguity(mean: Tensor, determinant: Tensor) -> Tensor:
    """Return the distance of a mean to a matrix with several nearest orthonormal ones (of determinant ±1, or any)."""
    values = torch.linalg.svdvals(mean)
    if not bool(determinant.any()):
        return values[..., -1]
    # The last singular value has the sign of the determinant, and a turn by π changes the signs of the last two.
    both = values[..., -2] + values[..., -1] * torch.linalg.det(mean).sign() * determinant
    return torch.where(determinant == 0, values[..., -1], both)


def _nearest_of_determinant(mean: Tensor, determinant: Tensor) -> Tensor:
    """Return the nearest orthonormal matrices of determinant ±1: those of -1 are rotations with a column reversed."""
    first = torch.where(determinant < 0, -1.0, 1.0).to(mean)[..., None, None].expand_as(mean[..., :1])
    signs = torch.cat([first, torch.ones_like(mean[..., 1:])], -1)
    return SpecialOrthogonal().projection(mean * signs) * signs


def dispersion(draws: Tensor, mean: Tensor | None = None) -> Tensor:
    r"""Compute the mean squared distance $E\lVert X - M\rVert_F^2$ of orthonormal X to an orthonormal matrix M.

    The distance is Euclidean, between entries, not an angle: for p = 1 and an angle θ to the mean it is the mean of
    $4 \sin^2(\theta / 2)$. It is between 0 and 4p; for uniform draws it is 2p.

    Args:
        draws: orthonormal matrices X, ``(chains, draws, ..., n, p)``, float32 or float64.
        mean: M, ``(n, p)`` or ``(..., n, p)``; `frechet_mean` if None.

    Returns:
        ``(...)``, one number for each batch element.

    Raises:
        TypeError, ValueError: as `frechet_mean`; for a ``mean`` of another shape or not orthonormal.

    Examples:
        >>> draws = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)
        >>> float(dispersion(draws, mean=torch.tensor([[1.0], [0.0]])))
        1.0
    """
    check_draws(draws, "dispersion")
    check_orthonormal(draws, "draws", "dispersion")
    if mean is None:
        mean = frechet_mean(draws)
    else:
        mean = check_reference(mean, draws, "dispersion", name="mean")
        check_orthonormal(mean, "mean", "dispersion")
    return (draws.detach() - mean).square().sum((-2, -1)).mean((0, 1))
