"""Gaussian distributions about points of a descent, from which Pathfinder draws."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points
from pyro_manifold.infer.descent.quasi_newton import QuasiNewtonState, two_loops

_DRAWS = 5  # as in Pathfinder
_TENSORS = "at", "slope", "towards_mean", "basis", "variances", "scale", "known"


@dataclass(frozen=True, eq=False)
class LocalGaussian:
    r"""Gaussian distribution of each chain about one point x, in tangent space.

    With the gradient g at x and an estimate H of the inverse Hessian, it is $\mathcal N(x - H g, H)$, moved onto the
    manifold by its projection. H is $\gamma$ times the identity outside the span of the columns of Q, which are
    orthonormal,

    $$ H = \gamma\,(I - Q Q^\top) + Q\,\operatorname{diag}(v)\,Q^\top, $$

    so that draws and densities cost as much as products with Q.

    Zhang, Carpenter, Gelman & Vehtari, Pathfinder: parallel quasi-Newton variational inference, JMLR 2022.

    Attributes:
        points: the manifolds and the potential energy.
        at: x of all chains, ``(chains, coordinates)``.
        slope: g, in tangent space.
        towards_mean: -Hg.
        basis: Q, ``(chains, coordinates, directions)``.
        variances: v, ``(chains, directions)``.
        scale: γ, ``(chains, 1)``.
        known: whether there is such a Gaussian, ``(chains,)``.
    """

    points: Points[Any]
    at: Tensor
    slope: Tensor
    towards_mean: Tensor
    basis: Tensor
    variances: Tensor
    scale: Tensor
    known: Tensor

    @classmethod
    def of_path(cls, points: Points[Any], state: QuasiNewtonState) -> Self:
        """Return the Gaussian with the H that L-BFGS has gathered from its last steps; γ is that of its first guess.

        Args:
            points: the manifolds and the potential energy.
            state: the descent of all chains at x.
        """
        newest, last = state.weight[:, -1], state.turned[:, -1]
        scale = 1 / (newest * last.square().sum(1, keepdim=True))
        scale = torch.where(newest > 0, scale, 1.0)
        span = torch.cat([state.moved, state.turned], 1)
        span = span / span.norm(dim=2, keepdim=True).clamp(min=torch.finfo(span.dtype).tiny)
        basis = torch.linalg.qr(span.mT).Q
        memory = state.moved, state.turned, state.weight
        tangent = _tangent(points, state.at, basis)
        normal = basis - tangent
        within = -two_loops(tangent.mT, *memory) @ tangent + scale.unsqueeze(2) * normal.mT @ normal
        variances, axes = torch.linalg.eigh((within + within.mT) / 2)
        # Rounding may leave a variance that is not positive, where curvatures differ by many orders of magnitude.
        variances = variances.clamp(min=torch.finfo(variances.dtype).tiny)
        towards_mean = two_loops(state.slope.unsqueeze(1), *memory).squeeze(1)
        # Without a step that shows curvature there is no Gaussian.
        known = newest.squeeze(1) > 0
        return cls(points, state.at, state.slope, towards_mean, basis @ axes, variances, scale, known)

    def with_exact_curvature(self) -> Self:
        """Return the Gaussian with the inverse of the exact Hessian, by differences of gradients along these widths.

        The Hessian is that of the energy: with that of the volume element of manifolds, Gaussians are narrower than the
        density is around them, and weights of their draws are worse. It takes two evaluations for each degree of
        freedom, and is not known where the Hessian has an eigenvalue that is not positive.
        """
        chains, size = self.at.shape
        identity = torch.eye(size, dtype=self.at.dtype, device=self.at.device).expand(chains, size, size)
        # The projection to tangent space has the eigenvalues 0 and, in its last directions, 1.
        tangent = torch.linalg.eigh(_tangent(self.points, self.at, identity))[1][..., size - self.points.dimension :]
        shares = (tangent.mT @ self.basis).square()
        widths = (self.scale + (shares * (self.variances - self.scale).unsqueeze(1)).sum(2)).clamp(min=0).sqrt()
        steps = torch.finfo(self.at.dtype).eps ** 0.25 * widths
        columns = self._changes_of_slope(tangent, steps)
        hessian = (tangent.mT @ columns).nan_to_num(0.0, 0.0, 0.0)
        curvatures, axes = torch.linalg.eigh((hessian + hessian.mT) / 2)
        positive = curvatures[:, 0] > 0
        variances = torch.where(positive.unsqueeze(1), 1 / curvatures, 1.0)
        basis = tangent @ axes
        towards_mean = -(basis @ (variances.unsqueeze(2) * (basis.mT @ self.slope.unsqueeze(2)))).squeeze(2)
        return replace(self, towards_mean=towards_mean, basis=basis, variances=variances, known=positive)

    @property
    def centre(self) -> Tensor:
        """The mean on the manifolds, ``(chains, coordinates)``."""
        return self.points.moved(self.at, self.towards_mean)

    def at_rows(self, rows: Tensor) -> LocalGaussian:
        """Return the Gaussians of some of the chains."""
        return LocalGaussian(self.points, *[getattr(self, name)[rows] for name in _TENSORS])

    def where(self, kept: Tensor, other: LocalGaussian) -> LocalGaussian:
        """Return these Gaussians where ``kept`` is true, and the others elsewhere; of the same points."""
        width = max(self.basis.shape[2], other.basis.shape[2])
        ours, theirs = self._padded(width), other._padded(width)
        pairs = ((getattr(ours, name), getattr(theirs, name)) for name in _TENSORS)
        found = [torch.where(kept.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs]
        return LocalGaussian(self.points, *found)

    def _padded(self, width: int) -> LocalGaussian:
        """Return the same Gaussians with as many directions; those added are zero, of variance γ."""
        missing = width - self.basis.shape[2]
        basis = torch.nn.functional.pad(self.basis, (0, missing))
        variances = torch.cat([self.variances, self.scale.expand(-1, missing)], 1)
        return replace(self, basis=basis, variances=variances)

    def _changes_of_slope(self, directions: Tensor, steps: Tensor) -> Tensor:
        """Return the derivatives of the slope along directions, by central differences; both as columns."""
        chains, size, count = directions.shape
        moves = (steps.unsqueeze(1) * directions).permute(2, 0, 1).flatten(0, 1)
        at = self.at.repeat(count, 1)
        ahead, behind = (self.points.energy_and_slope(self.points.moved(at, sign * moves))[1] for sign in (1, -1))
        changes = self.points.tangent(at, ahead - behind).view(count, chains, size).permute(1, 2, 0)
        return changes / (2 * steps.unsqueeze(1))

    def draws_and_bound(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a draw of each chain, ``(chains, coordinates)``, and a bound of the log probability around x.

        The bound, ``(chains,)``, is an estimate of E log p - E log q from a few draws, for q restricted to where p is
        positive, which adds the log of that share; -inf if it is not known. The draw returned is that with the greatest
        ratio p / q.
        """
        draws, _, weights = self.draws(_DRAWS, random)
        bound, _ = _bound(weights)
        return draws[weights.argmax(0), torch.arange(len(bound), device=bound.device)], bound

    def bound(self, random: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
        """Return the bound of `draws_and_bound` and its standard error, ``(chains,)`` each."""
        return _bound(self.draws(count, random)[2])

    def draws(self, count: int, random: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return draws ``(count, chains, coordinates)``, and energies and log p - log q there, ``(count, chains)``.

        On manifolds densities are with respect to volumes of the ambient space. Where p is 0, or q not known, the
        difference is -inf.
        """
        chains, size = self.at.shape
        points, root, at = self.points, self.scale.sqrt(), self.at.repeat(count, 1)
        noise = torch.randn(count * chains, size, generator=random, dtype=at.dtype, device=at.device)
        noise = points.tangent(at, noise).view(count, chains, size)
        within = (noise.unsqueeze(2) @ self.basis).squeeze(2)
        factors = self.variances.sqrt() - root
        step = root * noise + (self.basis @ (factors * within).unsqueeze(3)).squeeze(3)
        step = points.tangent(at, (self.towards_mean + step).flatten(0, 1))
        drawn = points.moved(at, step)
        energy, _ = points.energy_and_slope(drawn)
        rest = points.dimension - self.variances.shape[1]
        log_det = self.variances.log().sum(1) + rest * self.scale.squeeze(1).log()
        log_q = -(noise.square().sum(2) + log_det + points.dimension * math.log(2 * math.pi)) / 2
        weight = (points.log_volume(at, step) - energy).view(count, chains) - log_q
        weight = torch.where(weight.isfinite() & self.known, weight, -torch.inf)
        return drawn.view(count, chains, size), energy.view(count, chains), weight


def _bound(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bound of log p - log q, ``(count, chains)``, and its standard error, infinite for less than two."""
    inside = weights.isfinite()
    found = inside.sum(0)
    mean = torch.where(inside, weights, 0.0).sum(0) / found
    squares = torch.where(inside, (weights - mean).square(), 0.0).sum(0)
    bound = torch.where(found > 0, mean + (found / len(weights)).log(), -torch.inf)
    return bound, torch.where(found > 1, squares.sqrt() / found, torch.inf)


def _tangent(points: Points[Any], at: Tensor, vectors: Tensor) -> Tensor:
    """Project vectors ``(chains, coordinates, count)`` to tangent space."""
    return torch.stack([points.tangent(at, vector) for vector in vectors.unbind(2)], 2)
