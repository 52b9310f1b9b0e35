"""Mean and dispersion of draws of orthonormal matrices, by the Euclidean distance of their entries.

The arithmetic mean of orthonormal matrices is not orthonormal. A Fréchet mean of points on a manifold is the point of
the manifold with the smallest mean squared distance to them.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_orthonormal, check_reference
from pyro_manifold.manifolds.polar import polar_factor

_STANDARD_ERRORS = 4.0


def frechet_mean(draws: Tensor) -> Tensor:
    r"""Compute the orthonormal M with the smallest mean squared distance $E\lVert X - M\rVert_F^2$ to the draws.

    $$
    \arg\min_{M^\top M = I} E\lVert X - M\rVert_F^2 = \arg\max_M \mathrm{tr}(M^\top E X)
    = \text{polar factor of } EX .
    $$

    The polar factor is the nearest orthonormal matrix. M is the maximum likelihood estimate of the mode of
    `MatrixLangevin` (Khatri & Mardia 1977, Journal of the Royal Statistical Society B 39), and unique if the arithmetic
    mean EX has full rank. Matrices known up to signs or rotations of columns have a mean near zero: align them first.

    Args:
        draws: orthonormal matrices X, ``(chains, draws, ..., n, p)``, float32 or float64.

    Returns:
        ``(..., n, p)``, orthonormal columns.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: if the arithmetic mean is rank deficient, for non-finite entries, a wrong shape, or draws that are
            not orthonormal.

    Warns:
        UserWarning: if the mean is within 4 standard errors (of independent draws) of rank deficiency.

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
    smallest = torch.linalg.svdvals(mean)[..., -1]
    if bool((smallest <= max(mean.shape[-2:]) * float(torch.finfo(mean.dtype).eps)).any()):
        raise ValueError(
            "frechet_mean: draws have a rank deficient arithmetic mean, so no one orthonormal matrix is nearest to "
            "them, as happens when signs or rotations of columns are unknown; align them first with align_signs, "
            "align_signs_and_permutations or align_rotations."
        )
    total = draws.shape[0] * draws.shape[1]
    standard_error = ((draws - mean).square().sum((-2, -1)).mean((0, 1)) / total).sqrt()
    if bool((smallest < _STANDARD_ERRORS * standard_error).any()):
        warnings.warn(
            "frechet_mean: the arithmetic mean of draws cannot be distinguished from a rank deficient one, so "
            "their Fréchet mean may be noise; align them first if signs or rotations of columns are unknown, "
            "or take more draws.",
            stacklevel=2,
        )
    return polar_factor(mean)


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
