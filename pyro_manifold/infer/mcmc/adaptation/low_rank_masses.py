"""Estimation of inverse mass matrices that are a diagonal plus a matrix of low rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.mass_estimators import DiagonalEstimator, InverseMassEstimator
from pyro_manifold.infer.mcmc.mechanics import LowRankMetric, Metric
from pyro_manifold.store import Serialisable

_MOST_COORDINATES = 256, 10_000
"""Limits of the number of coordinates, in one chain and in all chains: the states of a window are stored."""

_MOST_DIRECTIONS = 8

_FAR_FROM_ONE = 2.0
"""Smallest ratio of inverse masses for which a direction is used."""

_MANY_STEPS, _FEWER_STEPS = 8.0, 3.0
"""Smallest ratio of the largest to the smallest scale for which directions are used without being requested, and the
factor by which they must reduce it. Below it, trajectories are short, and compiling code for directions takes longer
than they save, but for:"""

_SOME_STEPS, _ALIKE = 2.5, 1.5
"""The same for directions that leave scales within a factor of 1.5: one trajectory length then suits all coordinates,
whose draws are nearly independent or better. Regressions with ratios of 3 to 5 have three to six times the effective
draws, with shorter trajectories."""

_WEIGHT_OF_IDENTITY = 0.01  # in draws: more would make long directions look short

_LEAST_CORRELATION = 0.63
"""Smallest correlation of draws and gradients along an eigenvector, which is 1 for a Gaussian, for any number of draws.
In general it estimates 1/√(Var x · Var ∇U), for E[x ∇U] = 1. In a funnel, whose neck requires other masses than its
mouth, that is 0.1 to 0.45, and with directions chains would get stuck in the neck."""

_STILL_CORRELATED = 0.5
"""The same where directions are in use: otherwise those of a latent time series, with correlations of 0.6 to 0.8, are
lost in the last window of some runs."""

_KURTOSIS = 8.0
"""Largest kurtosis of gradients along an eigenvector: 3 for a Gaussian, up to 7 for regressions and latent time series,
and 9 to 100 if the scale of a group of effects may vanish."""

_DRAWS_PER_COORDINATE = 2.0  # with fewer draws than coordinates, draws and gradients vary along other directions
_FEWEST_DRAWS = 100
"""Fewest draws of a window for directions that were not requested: the first windows of chains in the neck of a funnel
resemble those of a Gaussian."""


def may_have_directions(position: Tensor) -> bool:
    """Return whether a block ``(chains, size)`` has more than one coordinate, and not too many."""
    size, (most, most_of_chains) = position.shape[1], _MOST_COORDINATES
    return 1 < size <= most and position.numel() <= most_of_chains


class LowRankEstimator(InverseMassEstimator):
    r"""Inverse masses of a block and of directions across its coordinates, the same for all chains.

    With D the diagonal inverse masses of `DiagonalEstimator`, and C and G the covariances within chains of draws and of
    gradients relative to D, the inverse mass matrix is close to their geometric mean

    $$ N = G^{-1/2} (G^{1/2} C G^{1/2})^{1/2} G^{-1/2}, \quad
    M^{-1} = D^{1/2} \Big(\sigma I + \sum_{i=1}^k (\eta_i - \sigma) w_i w_i^\top\Big) D^{1/2}, $$

    which is exact for a Gaussian: with at most eight eigenvectors w of N and their eigenvalues η, chosen such that the
    remaining eigenvalues differ least, and σ the geometric mean of the remaining ones. Eigenvectors whose eigenvalue is
    within a factor of 2 of σ are left out. All are left out if the posterior is far from a Gaussian along any of them:
    if the correlation of draws and gradients along it, which is 1 for a Gaussian, is below 0.63 (0.5 where directions
    are in use), or the kurtosis of gradients, which is 3 for a Gaussian, exceeds 8.

    Args:
        position: positions ``(chains, size)``, used for their shape.
        optional: whether directions are left out if neither would trajectories become much shorter nor scales alike.

    Source: Seyboldt, Carlson & Carpenter, arXiv 2603.18845, whose metric has neither σ nor this criterion.
    """

    def __init__(self, position: Tensor, optional: bool) -> None:
        self._diagonal = DiagonalEstimator(position)
        self._example = position
        self._optional, self._least_correlation = optional, _LEAST_CORRELATION
        self._states: list[tuple[Tensor, Tensor]] = []
        self._count = min(_MOST_DIRECTIONS, position.shape[1] - 1)

    def initial(self) -> Tensor:
        """Return the inverse mass without directions, ``(1, 1 + k, 1 + size)``; see `LowRankMetric.from_flat`."""
        return self._without_directions(self._diagonal.initial())

    def _without_directions(self, inverse_mass: Tensor) -> Tensor:
        flat = inverse_mass.new_zeros(1, 1 + self._count, 1 + inverse_mass.shape[1])
        flat[:, 0, 0], flat[:, 0, 1:] = not self._optional, inverse_mass
        return flat

    def fitted(self, given: Tensor) -> Tensor:
        if given.dim() == 1:
            return self._without_directions(self._diagonal.fitted(given))
        like = self.initial()
        if given.shape != like.shape[1:]:
            raise ValueError(f"the shape {tuple(given.shape)}, expected {tuple(like.shape[1:])}")
        rows = given.detach().to(like).clone()
        rows[0, 0] = 1
        weights, directions = rows[1:, 0], rows[1:, 1:]
        if not bool(rows.isfinite().all() & (rows[0, 1:] > 0).all() & (weights > -1).all()):
            raise ValueError("values that are not finite, variances that are not positive, or weights of -1 or less")
        used = directions[weights != 0]
        if not torch.allclose(used @ used.mT, torch.eye(len(used)).to(used), rtol=0, atol=1e-4):
            raise ValueError("directions that are not orthonormal")
        return rows.unsqueeze(0)

    def metric(self, value: Tensor) -> Metric | LowRankMetric:
        """Return the masses. Directions remain in use, without weight too, since code has been compiled for them."""
        if not bool(value[0, 0, 0]):
            return Metric.from_inverse_mass(self.diagonal(value))
        self._optional = False
        self._least_correlation = _STILL_CORRELATED if bool(value[0, 1:, 0].any()) else _LEAST_CORRELATION
        return LowRankMetric.from_flat(value)

    def reported(self, value: Tensor) -> Tensor:
        return value[0] if bool(value[0, 1:].any()) else self.diagonal(value)[0]

    def diagonal(self, value: Tensor) -> Tensor:
        return value[:, 0, 1:]

    def update(self, position: Tensor, gradient: Tensor) -> None:
        # States are stored and evaluated at the end, since small operations in each iteration would slow down warm-up.
        self._diagonal.update(position, gradient)
        self._states.append((position, gradient))

    def estimate(self) -> Tensor:
        inverse_mass = self._diagonal.estimate()
        fewest = max(_DRAWS_PER_COORDINATE * inverse_mass.shape[1], _FEWEST_DRAWS if self._optional else 0)
        if not self._count or len(self._states) * len(self._example) < fewest:
            return self._without_directions(inverse_mass)
        scales = inverse_mass.sqrt()
        draws, gradients = (torch.stack(values, 1) for values in zip(*self._states, strict=True))
        draws, gradients = _centred(draws / scales), _centred(gradients * scales)
        values, vectors = torch.linalg.eigh(geometric_mean(_covariance(draws), _covariance(gradients)))
        outside, usual = _far_from_others(values, self._count)
        used = (values[outside] / usual).log().abs() > math.log(_FAR_FROM_ONE)
        along, slopes = draws @ vectors, gradients @ vectors
        used &= (_correlations(along, slopes).min() > self._least_correlation) & (_kurtosis(slopes).max() < _KURTOSIS)
        left = values.scatter(0, outside, torch.where(used, usual, values[outside]))
        if not bool(used.any()) or (self._optional and not _worthwhile(values, left)):
            return self._without_directions(inverse_mass)
        flat = self._without_directions(usual * inverse_mass)
        flat[0, 0, 0] = 1
        flat[0, 1:, 0] = torch.where(used, values[outside] / usual - 1, 0.0)
        flat[0, 1:, 1:] = vectors[:, outside].mT * used.unsqueeze(-1)
        return flat

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the states of the present window."""
        parts = zip(("positions", "gradients"), zip(*self._states, strict=True), strict=False)
        return {"diagonal": self._diagonal.state_dict(), **{name: torch.stack(values) for name, values in parts}}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore the states of a window."""
        self._diagonal.load_state_dict(saved["diagonal"])
        parts = [saved[name].to(self._example.device) for name in ("positions", "gradients") if name in saved]
        self._states = [*zip(*parts, strict=True)]


def _worthwhile(values: Tensor, left: Tensor) -> bool:
    """Return whether trajectories take fewer steps or all scales become alike, by the eigenvalues before and after."""
    before, after = (float((each.max() / each.min()).sqrt()) for each in (values, left))
    return (before > _MANY_STEPS and before / after > _FEWER_STEPS) or (before > _SOME_STEPS and after < _ALIKE)


def _centred(values: Tensor) -> Tensor:
    """Return ``(chains, iterations, size)`` without the means of chains, ``(chains · iterations, size)``."""
    return (values - values.mean(1, keepdim=True)).flatten(0, 1)


def _covariance(centred: Tensor) -> Tensor:
    """Return the covariance of centred rows, shrunk slightly towards the identity.

    One that is not finite is replaced by the identity: gradients overflow far away.
    """
    identity = torch.eye(centred.shape[-1], dtype=centred.dtype, device=centred.device)
    found = (centred.mT @ centred + _WEIGHT_OF_IDENTITY * identity) / (len(centred) + _WEIGHT_OF_IDENTITY)
    return torch.where(found.isfinite().all(), found, identity)


def _kurtosis(centred: Tensor) -> Tensor:
    """Return the kurtosis of each column."""
    return centred.pow(4).mean(0) / centred.square().mean(0).square()


def _correlations(x: Tensor, y: Tensor) -> Tensor:
    """Return the correlation of each centred column of x with that of y."""
    return (x * y).mean(0) / (x.square().mean(0) * y.square().mean(0)).sqrt()


def _far_from_others(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return indices of ``count`` of the smallest and largest sorted values, and the geometric mean of the others.

    The split between smallest and largest minimises the ratio of the largest to the smallest remaining value.
    """
    logs, left = values.log(), len(values) - count
    first = int((logs[left - 1 :] - logs[: count + 1]).argmin())
    places = torch.arange(len(values), device=values.device)
    return torch.cat([places[:first], places[first + left :]]), logs[first : first + left].mean().exp()


def geometric_mean(spread: Tensor, curvature: Tensor) -> Tensor:
    r"""Compute the symmetric positive N with $N G N = C$, for a covariance C and a curvature G.

    With $G = LL^\top$ and $L^\top C L = V \Lambda V^\top$, it is
    $L^{-\top} V \Lambda^{1/2} V^\top L^{-1}$; the identity where G is singular by rounding.
    """
    identity = torch.eye(curvature.shape[-1], dtype=curvature.dtype, device=curvature.device)
    lower, failed = torch.linalg.cholesky_ex(curvature)
    lower = torch.where(failed > 0, identity, lower)
    values, vectors = torch.linalg.eigh(lower.mT @ spread @ lower)
    half = torch.linalg.solve_triangular(lower.mT, vectors * values.clamp(min=0).pow(0.25), upper=True)
    return torch.where(failed > 0, identity, half @ half.mT)
