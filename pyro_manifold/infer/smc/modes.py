r"""Where a posterior has its modes, and a mixture of Gaussians about them to begin with.

From many starts one goes down at once (`descend`); in rounds, the worse half is left behind. About each mode that is
found the density is a Gaussian to second order (Laplace):

.. math:: q(x) = \sum_k w_k\,N(x; m_k, H_k^{-1}), \qquad w_k \propto Z_k^{1/2}, \quad
    \log Z_k = -U(m_k) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H_k|,

H the Hessian of U. The weights are the roots of what Laplace says of the modes' masses, for it can be wrong by much and
particles should be in all of them; what a mode deserves is for sequential Monte Carlo to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.infer.smc.descent import Minima, Objective, descend
from pyro_manifold.target.batched import BatchedPotential, PotentialFunction, Sites

_ROUND = 200  # iterations
_LAST_ROUND = 2000
_TOLERANCE = 1e-4  # nats
_SAME = 1e-2
_SMALLEST_WEIGHT = 1e-3
_DIFFERENCE = 1e-4
_SOFTEST = 1e-3


@dataclass(frozen=True)
class GaussianMixture:
    """Gaussians with weights.

    Attributes:
        log_weights: ``(k,)``.
        means: ``(k, d)``.
        roots: lower factors L of the precisions LLᵀ, ``(k, d, d)``.
    """

    log_weights: Tensor
    means: Tensor
    roots: Tensor

    def log_density(self, x: Tensor) -> Tensor:
        """Of a point ``(d,)``."""
        whitened = ((x - self.means).unsqueeze(-2) @ self.roots).squeeze(-2)
        half_logdet = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = self.means.shape[-1] / 2 * math.log(2 * math.pi)
        return (self.log_weights + half_logdet - constant - whitened.square().sum(-1) / 2).logsumexp(0)

    def sample(self, random: torch.Generator | None = None) -> Tensor:
        """A draw, ``(d,)``."""
        k = int(torch.multinomial(self.log_weights.exp(), 1, generator=random))
        noise = torch.randn(self.means.shape[1], 1, dtype=self.means.dtype, device=self.means.device, generator=random)
        return self.means[k] + torch.linalg.solve_triangular(self.roots[k].mT, noise, upper=True).squeeze(-1)


class Flat:
    """Sites of one chain as a vector, and back.

    Args:
        example: ``{site: value}``.
    """

    def __init__(self, example: Sites) -> None:
        self._shapes = {name: value.shape for name, value in example.items()}

    def vectors(self, sites: Sites) -> Tensor:
        """``{site: (points, ...)}`` to ``(points, d)``."""
        return torch.cat([sites[name].reshape(len(sites[name]), -1) for name in self._shapes], 1)

    def sites(self, vectors: Tensor) -> Sites:
        """``(..., d)`` to ``{site: (..., ...)}``."""
        parts = vectors.split([shape.numel() for shape in self._shapes.values()], -1)
        return {
            name: part.reshape((*vectors.shape[:-1], *shape))
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }


def objective_of(potential_fn: PotentialFunction, flat: Flat, example: Tensor, width: int) -> Objective:
    """Energies and gradients of any number of points, so many at a time: a graph is made for one number of them."""
    rows = example[:1].expand(width, -1).clone()
    batched = BatchedPotential(potential_fn, flat.sites(rows))

    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = [], []
        for part in points.split(width):
            filled = torch.cat([part, part[-1:].expand(width - len(part), -1)])
            value, gradient = batched(flat.sites(filled))
            values.append(value[: len(part)])
            gradients.append(flat.vectors(gradient)[: len(part)])
        return torch.cat(values), torch.cat(gradients)

    return objective


def find_modes(objective: Objective, starts: Tensor, most: int) -> Minima:
    """The best ends of descents from many starts; the worse half gives up after each round.

    Args:
        objective: potential energy.
        starts: ``(points, d)``.
        most: how many go on to the end.
    """
    points, asked = starts, 0
    while len(points) > most:
        found = descend(objective, points, _ROUND, _TOLERANCE)
        asked += found.evaluations * len(points)
        points = found.points[found.values.nan_to_num(torch.inf).argsort()[: max(most, len(points) // 2)]]
    found = descend(objective, points, _LAST_ROUND, _TOLERANCE)
    return found._replace(evaluations=asked + found.evaluations * len(points))


def laplace_mixture(objective: Objective, minima: Minima) -> GaussianMixture:
    """The mixture about the different modes among some minima."""
    order = minima.values.argsort()
    different: list[int] = []
    for k in order.tolist():
        gaps = [float((minima.points[k] - minima.points[j]).abs().max()) for j in different]
        if math.isfinite(float(minima.values[k])) and min(gaps, default=math.inf) > _SAME:
            different.append(k)
    points = minima.points[different]
    values, vectors = torch.linalg.eigh(_hessians(objective, points))
    # A direction that is flat, or not yet at its minimum, gets a wide but finite Gaussian.
    values = values.abs().clamp(min=_SOFTEST)
    precision = (vectors * values.unsqueeze(-2)) @ vectors.mT
    log_masses = -minima.values[different] - values.log().sum(-1) / 2
    weights = (log_masses / 2).softmax(0)
    kept = weights > _SMALLEST_WEIGHT
    weights = weights[kept] / weights[kept].sum()
    return GaussianMixture(weights.log(), points[kept], torch.linalg.cholesky(precision[kept]))


def _hessians(objective: Objective, points: Tensor) -> Tensor:
    """By central differences of gradients, ``(points, d, d)``."""
    d = points.shape[1]
    shifts = _DIFFERENCE * torch.eye(d, dtype=points.dtype, device=points.device)
    both = torch.stack([points.unsqueeze(1) + shifts, points.unsqueeze(1) - shifts])
    _, gradients = objective(both.reshape(-1, d))
    ahead, behind = gradients.reshape(2, len(points), d, d)
    hessian = (ahead - behind) / (2 * _DIFFERENCE)
    return (hessian + hessian.mT) / 2


def mixture_about_modes(
    potential_fn: PotentialFunction, draw: Callable[[], Sites], starts: int, modes: int
) -> tuple[GaussianMixture, Flat, int]:
    """A mixture for a target on unconstrained sites, from so many draws, with at most so many modes.

    Returns:
        The mixture, how its vectors become sites, and how often the density was evaluated.
    """
    draws = [draw() for _ in range(starts)]
    flat = Flat(draws[0])
    vectors = flat.vectors({name: torch.stack([one[name] for one in draws]) for name in draws[0]})
    objective = objective_of(potential_fn, flat, vectors, min(starts, modes))
    minima = find_modes(objective, vectors, modes)
    mixture = laplace_mixture(objective, minima)
    return mixture, flat, minima.evaluations + 2 * vectors.shape[1] * modes
