"""The Gaussian distribution that L-BFGS gathers on its path, from which Pathfinder draws."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.descent.points import Points
from pyro_manifold.infer.descent.quasi_newton import QuasiNewtonState, two_loops

_DRAWS = 5  # as in Pathfinder


class LocalGaussian:
    r"""Gaussian distribution of each chain at one point x of a descent, in tangent space.

    With the gradient g at x and L-BFGS's estimate H of the inverse Hessian, it is $\mathcal N(x - H g, H)$, moved onto
    the manifold by its projection. H is $\gamma$ times the identity outside the span of the last steps and changes of
    gradients; with an orthonormal basis Q of that span,

    $$ H = \gamma\,(I - Q Q^\top) + Q\,(Q^\top H Q)\,Q^\top, $$

    so that draws and densities cost as much as one step of the descent, without any n × n matrix.

    Zhang, Carpenter, Gelman & Vehtari, Pathfinder: parallel quasi-Newton variational inference, JMLR 2022.

    Args:
        points: the manifolds and the potential energy.
        state: the descent of all chains at x.
    """

    def __init__(self, points: Points[Any], state: QuasiNewtonState) -> None:
        self._points, self._state = points, state
        newest, last = state.weight[:, -1], state.turned[:, -1]
        self._known = newest.squeeze(1) > 0  # without a step that shows curvature there is no Gaussian
        scale = 1 / (newest * last.square().sum(1, keepdim=True))
        self._scale = torch.where(newest > 0, scale, 1.0)  # (chains, 1)
        span = torch.cat([state.moved, state.turned], 1)
        span = span / span.norm(dim=2, keepdim=True).clamp(min=torch.finfo(span.dtype).tiny)
        self._basis = torch.linalg.qr(span.mT).Q  # (chains, coordinates, directions)
        memory = state.moved, state.turned, state.weight
        tangent = self._tangent(self._basis)
        normal = self._basis - tangent
        within = -two_loops(tangent.mT, *memory) @ tangent + self._scale.unsqueeze(2) * normal.mT @ normal
        variances, axes = torch.linalg.eigh((within + within.mT) / 2)
        # Rounding may leave a variance that is not positive, where curvatures differ by many orders of magnitude.
        self._variances = variances.clamp(min=torch.finfo(variances.dtype).tiny)
        self._basis = self._basis @ axes
        self._towards_mean = two_loops(state.slope.unsqueeze(1), *memory).squeeze(1)
        rest = points.dimension - self._variances.shape[1]
        self._log_det = self._variances.log().sum(1) + rest * self._scale.squeeze(1).log()

    def draws_and_bound(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a draw of each chain, ``(chains, coordinates)``, and a bound of the log probability around x.

        The bound, ``(chains,)``, is an estimate of E log p - E log q from a few draws, for q restricted to where p is
        positive, which adds the log of that share; -inf if it is not known. The draw returned is that with the greatest
        ratio p / q.
        """
        draws, weights = (
            torch.stack(parts) for parts in zip(*[self._draw(random) for _ in range(_DRAWS)], strict=True)
        )
        inside = weights.isfinite() & self._known
        count = inside.sum(0)
        bound = torch.where(inside, weights, 0.0).sum(0) / count + (count / _DRAWS).log()
        best = torch.where(inside, weights, -torch.inf).argmax(0)
        chains = torch.arange(len(bound), device=bound.device)
        return draws[best, chains], torch.where(count > 0, bound, -torch.inf)

    def _draw(self, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a draw of each chain and log p - log q there."""
        state, points = self._state, self._points
        noise = torch.randn(state.at.shape, generator=random, dtype=state.at.dtype, device=state.at.device)
        noise = points.tangent(state.at, noise)
        within = (self._basis.mT @ noise.unsqueeze(2)).squeeze(2)
        factors = self._variances.sqrt() - self._scale.sqrt()
        step = self._scale.sqrt() * noise + (self._basis @ (factors * within).unsqueeze(2)).squeeze(2)
        drawn = points.moved(state.at, points.tangent(state.at, self._towards_mean + step))
        energy, _ = points.energy_and_slope(drawn)
        return drawn, (noise.square().sum(1) + self._log_det + points.dimension * math.log(2 * math.pi)) / 2 - energy

    def _tangent(self, vectors: Tensor) -> Tensor:
        """Project vectors ``(chains, coordinates, count)`` to tangent space."""
        return torch.stack([self._points.tangent(self._state.at, vector) for vector in vectors.unbind(2)], 2)
