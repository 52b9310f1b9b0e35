r"""Where a posterior has its modes, and a mixture of Gaussians about them to begin with.

From many starts one goes down at once (`find_modes`); in rounds, the worse half is left behind. About each mode that is
found the density is a Gaussian to second order (Laplace), in coordinates x about it (see `Charts`):

.. math:: q(x) = \sum_k w_k\,N(x_k; 0, H_k^{-1}), \qquad w_k \propto Z_k^{1/2}, \quad
    \log Z_k = -U(0) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H_k|,

H the Hessian of U, the potential energy of the coordinates. The weights are the roots of what Laplace says of the
modes' masses, for it can be wrong by much and particles should be in all of them; what a mode deserves is for
sequential Monte Carlo to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.descent.natural_gradient import NaturalGradient
from pyro_manifold.infer.descent.points import Descent, Place, Points, S, rows_of, with_rows
from pyro_manifold.infer.descent.quasi_newton import QuasiNewton
from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField, metric_field
from pyro_manifold.infer.smc.charts import Charts
from pyro_manifold.target.batched import BatchedPotential, Sites
from pyro_manifold.target.embedding import embedding_from_model
from pyro_manifold.target.model import ModelTarget, Target
from pyro_manifold.target.tempered import factors

_LAST_ROUND = 2000  # steps
_TOLERANCE = 1e-4  # nats
_SAME = 1e-2
_SMALLEST_WEIGHT = 1e-3  # of the largest
_MOST_MODES = 32
_SOFTEST = 1e-3
_FURTHEST = 1e8  # nats
_MOST_BYTES = 2**28  # of Jacobians


@dataclass(frozen=True)
class GaussianMixture:
    """Gaussians about points, with weights.

    Attributes:
        log_weights: ``(k,)``.
        charts: coordinates about each of k points.
        roots: lower factors L of the precisions LLᵀ, ``(k, d, d)``.
    """

    log_weights: Tensor
    charts: Charts
    roots: Tensor

    def log_density(self, sites: Sites) -> Tensor:
        """Of one point ``{site: ...}``, with respect to the base measures of the sites."""
        return self.each(sites).logsumexp(0)

    def each(self, sites: Sites) -> Tensor:
        """What each Gaussian, with its weight, has in the density, as logarithms, ``(k,)``."""
        x, log_volume = self.charts.coordinates(sites)
        whitened = (x.unsqueeze(-2) @ self.roots).squeeze(-2)
        half_logdet = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = x.shape[-1] / 2 * math.log(2 * math.pi)
        each = half_logdet - constant - whitened.square().sum(-1) / 2 - log_volume
        # What has no coordinates about a point is far from it.
        return self.log_weights + each.nan_to_num(-_FURTHEST).clamp(min=-_FURTHEST)

    def unconstrained(self) -> tuple[Sites, Tensor]:
        """Centres ``{site: (k, ...)}`` of the sites without a manifold, and factors L of their covariances LLᵀ."""
        centres, flat = self.charts.flat
        return centres, torch.linalg.cholesky(torch.cholesky_inverse(self.roots)[:, flat][:, :, flat])

    def sample(self, random: torch.Generator | None = None) -> Sites:
        """A draw ``{site: ...}``."""
        k = torch.multinomial(self.log_weights.exp(), 1, generator=random)
        noise = torch.randn(1, self.charts.size, 1, dtype=self.roots.dtype, device=self.roots.device, generator=random)
        x = torch.linalg.solve_triangular(self.roots[k].mT, noise, upper=True).squeeze(-1)
        return {name: value[0] for name, value in self.charts.at(k).sites(x)[0].items()}


class Energies:
    """Energies and gradients of any number of points, so many at a time: a graph is made for one number of them.

    Attributes:
        evaluations: how many there were, of single points.
    """

    def __init__(self, target: Target, example: Sites, width: int) -> None:
        self._width = width
        rows = {name: x[:1].expand(width, *x.shape[1:]).clone() for name, x in example.items()}
        self._batched = BatchedPotential(target.potential_fn, rows, target.manifolds)
        self.evaluations = 0

    def __call__(self, sites: Sites) -> tuple[Tensor, Sites]:
        count = len(next(iter(sites.values())))
        parts = []
        for first in range(0, count, self._width):
            rows = torch.arange(first, first + self._width).clamp(max=count - 1)
            parts.append(self._batched({name: x[rows] for name, x in sites.items()}))
            self.evaluations += self._width
        energy = torch.cat([value for value, _ in parts])[:count]
        return energy, {name: torch.cat([slope[name] for _, slope in parts])[:count] for name in sites}


class FisherMetric:
    """The metric of a model's likelihood and priors at points, so many at a time.

    Attributes:
        cost: of all metrics so far, in gradients: 2d each, half for the d directions of a Jacobian J and half for JᵀJ.
    """

    def __init__(self, field: MetricField, width: int) -> None:
        self._field, self._width = field, width
        self.cost = 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.cost += 2 * rows.shape[1] * len(rows)
        return torch.cat([self._field.at(part)[0].detach() for part in rows.split(self._width)])


def fisher_metric(target: Target, points: Points[str], starts: Sites, width: int) -> FisherMetric | None:
    """The metric of a model, if there is one that is not too large and knows of the whole likelihood."""
    first = {name: x[0] for name, x in starts.items()}
    rows = points.rows(starts)[:2]
    if not isinstance(target, ModelTarget) or factors(target.program):
        return None
    try:
        embedding = embedding_from_model(target, first)
        if embedding(first).numel() * rows.shape[1] * width * rows.element_size() > _MOST_BYTES:
            return None

        def of_row(row: Tensor) -> Tensor:
            return embedding({name: x[0] for name, x in points.parts(row.unsqueeze(0)).items()})

        return FisherMetric(metric_field(of_row, rows), width)
    except ValueError:  # of a model that has none, which is said in so many words there
        return None


def find_modes(descent: Descent[S], starts: Tensor, most: int, steps: int) -> S:
    """The different ends of descents from many starts.

    After each round one of all that have arrived at the same point stays, and of those that have not arrived the better
    half goes on.

    Args:
        descent: the way down.
        starts: ``(points, coordinates)``.
        most: how many go on to the end, whatever others have arrived.
        steps: of a round.
    """
    state = descent.begin(starts)
    while True:
        state = _advanced(descent, state, steps)
        arrived = descent.promise(state) <= _TOLERANCE
        here, there = (flags.nonzero().squeeze(1) for flags in (arrived, ~arrived))
        here = here[_different(rows_of(state, here))]
        there = there[state.energy[there].nan_to_num(torch.inf).argsort()][: max(most, len(starts) // 2)]
        last = len(there) <= most
        starts = there
        state = rows_of(state, torch.cat([here, there]))
        if last:
            state = _advanced(descent, state, _LAST_ROUND)
            return rows_of(state, _different(state))


def _different(state: Place) -> Tensor:
    """Which points to keep, the lowest first, so that no two are the same."""
    order = state.energy.nan_to_num(torch.inf).argsort()
    order = order[state.energy[order].isfinite()]
    points = state.at[order]
    same = torch.cdist(points, points, p=math.inf) < _SAME
    kept: list[int] = []
    for k in range(len(order)):
        if not bool(same[k, kept].any()):
            kept.append(k)
    return order[kept]


def _advanced(descent: Descent[S], state: S, steps: int) -> S:
    """After so many steps of those that have not arrived before."""
    for _ in range(steps):
        rows = (descent.promise(state) > _TOLERANCE).nonzero().squeeze(1)
        if not len(rows):
            break
        state = with_rows(state, rows, descent.advance(rows_of(state, rows)))
    return state


def laplace_mixture(energies: Callable[[Sites], tuple[Tensor, Sites]], target: Target, ends: Sites) -> GaussianMixture:
    """The mixture about different modes ``{site: (modes, ...)}``."""
    values, _ = energies(ends)
    charts = Charts(ends, target.manifolds)
    _, log_volume = charts.sites(values.new_zeros(len(values), charts.size))
    curvatures, directions = torch.linalg.eigh(_hessians(energies, charts, len(values), values))
    # A direction that is flat, or not yet at its minimum, gets a wide but finite Gaussian.
    curvatures = curvatures.abs().clamp(min=_SOFTEST)
    precision = (directions * curvatures.unsqueeze(-2)) @ directions.mT
    log_masses = log_volume - values - curvatures.log().sum(-1) / 2
    weights = (log_masses / 2).softmax(0)
    heaviest = weights.argsort(descending=True)[:_MOST_MODES]
    kept = heaviest[weights[heaviest] > _SMALLEST_WEIGHT * weights.max()]
    weights = weights[kept] / weights[kept].sum()
    return GaussianMixture(weights.log(), charts.at(kept), torch.linalg.cholesky(precision[kept]))


def _hessians(energies: Callable[[Sites], tuple[Tensor, Sites]], charts: Charts, count: int, like: Tensor) -> Tensor:
    """Of the coordinates' potential energy at the centres, by central differences of gradients, ``(k, d, d)``."""
    d = charts.size
    difference = float(torch.finfo(like.dtype).eps) ** 0.25
    shifts = difference * torch.eye(d, dtype=like.dtype, device=like.device).unsqueeze(1).expand(d, count, d)

    def gradients(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_()
            sites, log_volume = charts.sites(x)
            _, slopes = energies({name: value.detach().flatten(0, 1) for name, value in sites.items()})
            # The chain rule: a sum whose gradient by x is that of energy and volume.
            pulled = sum(((slopes[name] * value.flatten(0, 1)).sum() for name, value in sites.items()), x.new_zeros(()))
            return torch.autograd.grad(pulled - log_volume.sum(), x)[0]

    hessian = (gradients(shifts.clone()) - gradients(-shifts)).transpose(0, 1) / (2 * difference)
    return (hessian + hessian.mT) / 2


def mixture_about_modes(target: Target, starts: int, most: int) -> tuple[GaussianMixture, int]:
    """A mixture for a target, from descents of so many of its draws, of which so many slow ones go on to the end.

    Descents are by natural gradients where the model has a Fisher metric that is not too large, else by L-BFGS.

    Returns:
        The mixture, and what it cost in gradients of single points.
    """
    draws = [target.draw() for _ in range(starts)]
    first = {name: torch.stack([one[name] for one in draws]) for name in draws[0]}
    width = min(starts, most)
    energies = Energies(target, first, width)
    points = Points(first, energies, target.manifolds)
    metric = fisher_metric(target, points, first, width)
    # Rounds after which a good descent has left bad ones behind.
    way, steps = (QuasiNewton(points), 200) if metric is None else (NaturalGradient(points, metric), 30)
    descent: Descent[Any] = way
    ends = points.parts(find_modes(descent, points.rows(first), most, steps).at)
    mixture = laplace_mixture(energies, target, ends)
    return mixture, energies.evaluations + (0 if metric is None else metric.cost)
