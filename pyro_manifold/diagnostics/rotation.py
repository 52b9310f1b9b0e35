r"""Rotation of draws of loadings towards columns that can be interpreted: varimax and promax.

The likelihood of a factor model determines loadings only up to a rotation, so the rotation may be chosen after
sampling, as in maximum likelihood. Each draw gets the rotation that is best for it; the signs and order of the columns,
which the criterion leaves open, are then made common to all draws.
"""

from __future__ import annotations

import itertools
import math
import warnings
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics.alignment import (
    Alignment,
    align_rotations,
    nearest_rotations,
    nearest_signed_permutations,
)
from pyro_manifold.diagnostics.checks import check_draws, check_flag, check_reference, check_tall

_MOST_SWEEPS = 1000
_ROUNDING = 100  # times the machine precision: slopes below are rounding errors
_MOST_ROUNDS = 50


class ObliqueRotation(NamedTuple):
    r"""Obliquely rotated loadings: ``rotated.draws = draws @ rotated.transformation``.

    Where $Y = Z X^\top$, scores become ``Z @ torch.linalg.inv(T).mT``, with standard deviation 1 and the correlations
    given here if those of Z are independent with standard deviation 1.

    Attributes:
        draws: pattern loadings XT, ``(chains, draws, ..., n, p)``.
        transformation: T, ``(chains, draws, ..., p, p)``, invertible, not orthogonal.
        correlations: of the factors, $(T^\top T)^{-1}$, ``(chains, draws, ..., p, p)``, with a diagonal of ones.
    """

    draws: Tensor
    transformation: Tensor
    correlations: Tensor


def varimax(
    draws: Tensor, reference: Tensor | None = None, *, normalise: bool = True, per_draw: bool = True
) -> Alignment:
    r"""Rotate each draw of loadings by varimax, with signs and order of columns common to all draws.

    The rotation T of loadings X with n rows maximises the variance of the squared entries of $L = XT$ within columns,

    $$ \sum_j \Bigl[ \frac1n \sum_i L_{ij}^4 - \Bigl( \frac1n \sum_i L_{ij}^2 \Bigr)^2 \Bigr] , $$

    so that entries are large or near zero. The maximum is found by rotations of two columns at a time, each by the best
    angle. They start at the varimax of the mean of the draws (aligned by rotations), so that draws with several local
    maxima take the one near that of the others. The signed permutation of a draw's columns is then the one nearest to
    the mean of the rotated draws. Columns are in decreasing order of their sums of squares in the varimax of the mean,
    with the largest entry positive, unless ``reference`` determines them.

    Args:
        draws: X, ``(chains, draws, ..., n, p)`` with p ≤ n, float32 or float64. Batch elements are rotated
            independently of each other.
        reference: R, ``(n, p)`` or ``(..., n, p)``: signs and order of columns are those nearest to R. None takes
            the mean of the rotated draws.
        normalise: divide rows by their norms while the rotation is found (Kaiser), so that all rows count equally. Use
            False for columns that are orthonormal.
        per_draw: False rotates all draws towards the varimax of their mean, by the orthogonal matrix of each draw that
            is nearest (Procrustes). The draws are then less dispersed, and single draws are not at their maximum.

    Returns:
        `Alignment`: the rotated draws, T and the matrix whose signs and order the columns have, of the draws' dtype
        and detached from any graph.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries or shapes that do not match.

    Source: Kaiser 1958, Psychometrika 23:187–200; for draws, Papastamoulis & Ntzoufras 2022, Statistics and
    Computing 32:23.

    Examples:
        >>> simple = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.0, 0.7], [0.0, 0.6]])
        >>> turn = torch.tensor([[0.8, -0.6], [0.6, 0.8]])
        >>> draws = torch.stack([simple @ turn, simple @ turn.mT]).unsqueeze(0)
        >>> torch.allclose(varimax(draws).draws, simple.expand(1, 2, 4, 2), atol=1e-6)
        True
    """
    _check(draws, normalise, per_draw, "varimax")
    draws = draws.detach()
    mean = _varimax_of_mean(draws, normalise)
    if reference is not None:
        reference = check_reference(reference, draws, "varimax")
        mean = mean @ nearest_signed_permutations(mean.mT @ reference)
    turns = nearest_rotations(draws.mT @ mean)
    if not per_draw:
        return Alignment(draws @ turns, turns, mean)
    turns = turns @ _best_turns(draws @ turns, normalise)
    rotated = draws @ turns
    if reference is None:
        reference = _common_order(rotated, mean)
    order = nearest_signed_permutations(rotated.mT @ reference)
    return Alignment(rotated @ order, turns @ order, reference)


def promax(
    draws: Tensor,
    power: float = 4.0,
    reference: Tensor | None = None,
    *,
    normalise: bool = True,
    per_draw: bool = True,
) -> ObliqueRotation:
    r"""Rotate each draw of loadings obliquely by promax, which lets factors be correlated.

    The varimax loadings L of a draw are regressed on a target with small entries made smaller,
    $P_{ij} = \operatorname{sign}(L_{ij}) \lvert L_{ij} \rvert^{k}$ with the power k:

    $$ U = (L^\top L)^{-1} L^\top P, \qquad T = U \operatorname{diag}\bigl((U^\top U)^{-1}\bigr)^{1/2}, $$

    so that factors have standard deviation 1. Pattern loadings are $LT$ and correlations of factors
    $(T^\top T)^{-1}$. The covariance $XX^\top$ of the model is $(LT) (T^\top T)^{-1} (LT)^\top$.

    Args:
        draws: X, ``(chains, draws, ..., n, p)`` with p ≤ n, float32 or float64, of rank p.
        power: k > 1; larger powers give more highly correlated factors. 4 is usual.
        reference: as for `varimax`.
        normalise: as for `varimax`. The target is of loadings that are not normalised, as in R's ``promax``.
        per_draw: as for `varimax`.

    Returns:
        `ObliqueRotation`: pattern loadings, the transformation from X, and correlations of the factors.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries, shapes that do not match, loadings of lower rank, or a power of 1 or less.

    Source: Hendrickson & White 1964, British Journal of Statistical Psychology 17:65–70.

    Examples:
        >>> simple = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.0, 0.7], [0.0, 0.6]])
        >>> factors = torch.linalg.cholesky(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        >>> rotated = promax((simple @ factors).expand(1, 2, 4, 2))
        >>> round(float(rotated.correlations[0, 0, 0, 1]), 2)
        0.49
    """
    if not isinstance(power, Real) or isinstance(power, bool) or not 1 < float(power) < math.inf:
        raise ValueError(f"promax: power is {power!r}, expected a number above 1, such as 4.")
    _check(draws, normalise, per_draw, "promax")
    orthogonal = varimax(draws, reference, normalise=normalise, per_draw=per_draw)
    L = orthogonal.draws
    target = L.sign() * L.abs() ** float(power)
    Q, R = torch.linalg.qr(L)
    diagonal = R.diagonal(dim1=-2, dim2=-1).abs()
    if bool((diagonal.amin(-1) <= L.shape[-2] * torch.finfo(L.dtype).eps * diagonal.amax(-1)).any()):
        raise ValueError(
            "promax: draws has loadings of rank below p, expected p independent columns; use fewer columns."
        )
    U = torch.linalg.solve_triangular(R, Q.mT @ target, upper=True)
    inverse = torch.linalg.inv(U)
    T = U * (inverse @ inverse.mT).diagonal(dim1=-2, dim2=-1).sqrt().unsqueeze(-2)
    back = torch.linalg.inv(T)
    return ObliqueRotation(L @ T, orthogonal.transformation @ T, back @ back.mT)


def _check(draws: Tensor, normalise: bool, per_draw: bool, owner: str) -> None:
    check_draws(draws, owner)
    check_tall(draws, "draws", owner)
    check_flag(normalise=normalise, per_draw=per_draw)


def _varimax_of_mean(draws: Tensor, normalise: bool) -> Tensor:
    """Return the varimax of the mean of the draws, ``(..., n, p)``, however the draws are rotated."""
    mean = align_rotations(draws).reference
    mean = mean @ torch.linalg.svd(mean, full_matrices=False).Vh.mT  # principal axes: a unique start
    mean = mean @ _best_turns(mean, normalise)
    order = mean.square().sum(-2).argsort(-1, descending=True)
    mean = mean.gather(-1, order.unsqueeze(-2).expand_as(mean))
    largest = mean.gather(-2, mean.abs().argmax(-2, keepdim=True))
    return mean * torch.where(largest < 0, -1.0, 1.0).to(mean)


def _best_turns(loadings: Tensor, normalise: bool) -> Tensor:
    """Return rotations with the largest varimax criterion, ``(..., p, p)``, by sweeps over pairs of columns."""
    n, p = loadings.shape[-2:]
    X = loadings.reshape(-1, n, p)
    if normalise:
        X = X / X.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(X.dtype).tiny)
    # The rows of the identity are rotated along with those of X.
    both = torch.cat([X, torch.eye(p).to(X).expand(len(X), p, p)], -2)
    active = torch.arange(len(X), device=X.device)  # most matrices take ten sweeps, a few take a hundred
    for _ in range(_MOST_SWEEPS):
        part = both[active]
        slope = _sweep(part, n)
        both[active] = part
        active = active[slope > _ROUNDING * torch.finfo(X.dtype).eps]
        if not len(active):
            break
    else:
        warnings.warn(
            f"varimax: {len(active)} of {len(X)} rotations have not converged after {_MOST_SWEEPS} sweeps, since the "
            "criterion is nearly flat; use fewer columns, or rotate by the mean alone with per_draw=False.",
            stacklevel=4,
        )
    return nearest_rotations(both[:, n:]).reshape(*loadings.shape[:-2], p, p)  # removes rounding errors


def _sweep(both: Tensor, n: int) -> Tensor:
    """Rotate each pair of columns of ``(matrices, n + p, p)`` in place; return the largest slope of each matrix."""
    largest = both.new_zeros(len(both))
    for j, k in itertools.combinations(range(both.shape[-1]), 2):
        first, second = both[..., j].clone(), both[..., k].clone()
        angle, slope = _best_angle(first[:, :n], second[:, :n])
        cosine, sine = angle.cos().unsqueeze(-1), angle.sin().unsqueeze(-1)
        both[..., j], both[..., k] = cosine * first + sine * second, cosine * second - sine * first
        largest = torch.maximum(largest, slope)
    return largest


def _best_angle(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rotation of two columns ``(..., n)`` with the largest criterion, within ±π/4 (Kaiser 1958).

    The second tensor is the angle times the second derivative of the criterion there, in units of its rounding errors
    divided by the machine precision. The angle itself would not tend to zero where the criterion is nearly flat.
    """
    n = x.shape[-1]
    u, v = x.square() - y.square(), 2 * x * y
    a, b = u.sum(-1), v.sum(-1)
    sine = 2 * (u * v).sum(-1) - 2 * a * b / n
    cosine = (u.square() - v.square()).sum(-1) - (a.square() - b.square()) / n
    size = torch.hypot(sine, cosine) / (u.square() + v.square()).sum(-1).clamp(min=torch.finfo(x.dtype).tiny)
    angle = torch.where(size <= 8 * torch.finfo(x.dtype).eps, 0.0, torch.atan2(sine, cosine) / 4)
    return angle, angle.abs() * size


def _common_order(rotated: Tensor, mean: Tensor) -> Tensor:
    """Return the mean of rotated draws with the signs and order nearest to it, ``(..., n, p)``."""
    order = nearest_signed_permutations(rotated.mT @ mean)
    for _ in range(_MOST_ROUNDS):
        mean = (rotated @ order).mean((0, 1))
        previous, order = order, nearest_signed_permutations(rotated.mT @ mean)
        if bool((order == previous).all()):
            break
    return mean
