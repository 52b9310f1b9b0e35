r"""Search for the modes of a posterior, and a mixture of Gaussians about them (Laplace approximation).

Descents from many starts run in parallel (`find_modes`); after each round the worse half is dropped. About each mode
the density is approximated by a Gaussian (Laplace), in local coordinates x (see `LocalCoordinates`):

$$
q(x) = \sum_k w_k\,N(x_k; 0, H_k^{-1}), \qquad w_k \propto Z_k^{1/2}, \quad
\log Z_k = -U(0) + \tfrac{d}{2} \log 2\pi - \tfrac12 \log |H_k|,
$$

H the Hessian of U, the potential energy as a function of the coordinates. The weights are square roots of the Laplace
estimates of the modes' masses: these can be far off, and all modes should have particles. Sequential Monte Carlo then
estimates the masses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.density import (
    BatchedPotential,
    ModelTarget,
    Sites,
    Target,
    embedding_from_model,
    factors,
    refuse_cut_gradients,
)
from pyro_manifold.infer.descent import (
    Descent,
    Energies,
    NaturalGradient,
    Place,
    Points,
    QuasiNewton,
    S,
    rows_of,
    with_rows,
)
from pyro_manifold.infer.mcmc.riemannian import MetricField, metric_field
from pyro_manifold.infer.smc.local_coordinates import LocalCoordinates
from pyro_manifold.manifolds import Manifold

_LAST_ROUND = 2000  # steps
_TOLERANCE = 1e-4  # nats
_NEAR = 0.1  # units
_SAME = 1e-3  # nats
_SMALLEST_WEIGHT = 1e-3  # relative to the largest
_MOST_MODES = 32
_SOFTEST = 1e-3  # curvature, in units
_COARSE = 0.1  # step relative to a mode's width, above which differences are repeated with smaller steps
_REPEATS = 2
_FURTHEST = 1e8  # nats
_MOST_BYTES = 2**28  # memory for Jacobians


class NoModeError(ValueError):
    """Error if there is no mode with finite second derivatives."""


@dataclass(frozen=True)
class GaussianMixture:
    """Mixture of Gaussians about points, in local coordinates.

    Attributes:
        log_weights: log weights, ``(k,)``.
        local: local coordinates about each of k points.
        roots: lower factors L of the precisions LLᵀ, ``(k, d, d)``.
    """

    log_weights: Tensor
    local: LocalCoordinates
    roots: Tensor

    @property
    def centres(self) -> Sites:
        """Centres of the Gaussians, ``{site: (k, ...)}``."""
        return self.local.sites(self.roots.new_zeros(self.roots.shape[:2]))[0]

    def at(self, rows: list[int]) -> GaussianMixture:
        """Return the mixture of some of the Gaussians, with renormalised weights."""
        kept = torch.tensor(rows, device=self.roots.device)
        return GaussianMixture(self.log_weights[kept].log_softmax(0), self.local.at(kept), self.roots[kept])

    def log_density(self, sites: Sites) -> Tensor:
        """Compute the log density of one point ``{site: ...}``, on manifolds with respect to uniform distributions."""
        return self.each(sites).logsumexp(0)

    def each(self, sites: Sites) -> Tensor:
        """Compute the log of the weighted density of each Gaussian at a point, ``(k,)``."""
        x, log_volume = self.local.coordinates(sites)
        whitened = (x.unsqueeze(-2) @ self.roots).squeeze(-2)
        half_logdet = self.roots.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        constant = x.shape[-1] / 2 * math.log(2 * math.pi)
        each = half_logdet - constant - whitened.square().sum(-1) / 2 - log_volume
        # Points without coordinates about a centre count as far from it.
        return self.log_weights + each.nan_to_num(-_FURTHEST).clamp(min=-_FURTHEST)

    def unconstrained(self) -> tuple[Sites, Tensor]:
        """Return centres ``{site: (k, ...)}`` of Euclidean sites, and factors L of their covariances LLᵀ."""
        centres, flat, units = self.local.flat
        roots = torch.linalg.cholesky(torch.cholesky_inverse(self.roots)[:, flat][:, :, flat])
        return centres, units.unsqueeze(-1) * roots

    def sample(self, random: torch.Generator | None = None) -> Sites:
        """Return one draw ``{site: ...}``."""
        return {name: value[0] for name, value in self.draws(1, random).items()}

    def draws(self, count: int, random: torch.Generator | None = None) -> Sites:
        """Return independent draws ``{site: (count, ...)}``."""
        k = torch.multinomial(self.log_weights.exp(), count, replacement=True, generator=random)
        options: Any = {"dtype": self.roots.dtype, "device": self.roots.device}
        noise = torch.randn(count, self.local.size, 1, generator=random, **options)
        x = torch.linalg.solve_triangular(self.roots[k].mT, noise, upper=True).squeeze(-1)
        return self.local.at(k).sites(x)[0]


class FisherMetric:
    """Metric of a model's likelihood and priors (Fisher information plus prior precision), evaluated in batches.

    Attributes:
        cost: cost of all evaluations so far, in gradients: 2d for each metric, half for the Jacobian J and half for
            JᵀJ.
    """

    def __init__(self, field: MetricField, width: int) -> None:
        self._field, self._width = field, width
        self.cost = 0

    def __call__(self, rows: Tensor) -> Tensor:
        self.cost += 2 * rows.shape[1] * len(rows)
        return torch.cat([self._field.at(part)[0].detach() for part in rows.split(self._width)])


def fisher_metric(target: Target, points: Points[str], starts: Sites, width: int) -> FisherMetric | None:
    """Return the Fisher metric of a model; None if there is none, it is too large, or the model has `pyro.factor`s."""
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
    except ValueError:  # the model has no metric
        return None


def find_modes(descent: Descent[S], points: Points[str], starts: Tensor, most: int, steps: int) -> S:
    """Find the distinct end points of descents from many starts.

    After each round duplicates among the converged descents are removed, and of the others only the better half is
    continued.

    Args:
        descent: descent method.
        points: manifolds and energy.
        starts: starting points, ``(points, coordinates)``.
        most: number of unconverged descents that are continued to the end.
        steps: number of steps per round.
    """
    state = descent.begin(starts)
    while True:
        state = advanced(descent, state, steps)
        done = arrived(descent, state)
        here, there = (flags.nonzero().squeeze(1) for flags in (done, ~done))
        here = here[different(points, rows_of(state, here))]
        there = there[state.energy[there].nan_to_num(torch.inf).argsort()][: max(most, len(starts) // 2)]
        last = len(there) <= most
        starts = there
        state = rows_of(state, torch.cat([here, there]))
        if last:
            state = advanced(descent, state, _LAST_ROUND)
            return rows_of(state, different(points, state))


def arrived(descent: Descent[S], state: S) -> Tensor:
    """Return which descents have converged, ``(points,)``."""
    return descent.predicted_decrease(state) <= _TOLERANCE


def different(points: Points[str], state: Place) -> Tensor:
    """Return the indices of distinct points, by increasing energy.

    Two points are duplicates if they are near in scaled coordinates, have the same energy, and have no barrier between
    them, that is the same energy at their midpoint.
    """
    left = state.energy.nan_to_num(torch.inf).argsort()
    left = left[state.energy[left].isfinite()]
    kept: list[Tensor] = []
    while len(left):
        first, left = left[0], left[1:]
        kept.append(first)
        steps = state.at[first] - state.at[left]
        same = (steps.abs().amax(1) < _NEAR) & (state.energy[left] - state.energy[first] < _SAME)
        rows = same.nonzero().squeeze(1)
        if len(rows):
            middle, _ = points.energy_and_slope(points.moved(state.at[left[rows]], steps[rows] / 2))
            same[rows] = (middle - state.energy[first]).abs() < _SAME
        left = left[~same]
    return torch.stack(kept) if kept else left


def advanced(descent: Descent[S], state: S, steps: int) -> S:
    """Run up to ``steps`` steps of those descents that have not converged."""
    for _ in range(steps):
        rows = (~arrived(descent, state)).nonzero().squeeze(1)
        if not len(rows):
            break
        state = with_rows(state, rows, descent.advance(rows_of(state, rows)))
    return state


def laplace_mixture(
    energies: Callable[[Sites], tuple[Tensor, Sites]],
    manifolds: Mapping[str, Manifold],
    ends: Sites,
    units: Sites | None = None,
) -> GaussianMixture:
    """Build the mixture of Gaussians about distinct modes ``{site: (modes, ...)}``.

    Args:
        energies: computes energies and gradients.
        manifolds: manifolds of the sites that have one.
        ends: modes.
        units: scales of coordinates; see `units_of`.

    Raises:
        NoModeError: if no mode has finite second derivatives.
    """
    values, _ = energies(ends)
    local = LocalCoordinates(ends, manifolds, units)
    if not local.size:
        raise NoModeError("init='modes': no site can move, as the matrices of V(1, 1), ±1, cannot: use init='prior'.")
    hessians = _hessians(energies, local, len(values), values)
    fine = hessians.isfinite().flatten(1).all(1).nonzero().squeeze(1)
    if not len(fine):
        raise NoModeError(
            "init='modes': the log density has no finite second derivatives at the end of any descent: use "
            "init='prior'."
        )
    values, local, hessians = values[fine], local.at(fine), hessians[fine]
    _, log_volume = local.sites(values.new_zeros(len(values), local.size))
    curvatures, directions = torch.linalg.eigh(hessians)
    # In directions that are flat, or in which the descent has not converged, the Gaussian is wide but finite.
    curvatures = curvatures.abs().clamp(min=_SOFTEST)
    precision = (directions * curvatures.unsqueeze(-2)) @ directions.mT
    log_masses = log_volume - values - curvatures.log().sum(-1) / 2
    weights = (log_masses / 2).softmax(0)
    heaviest = weights.argsort(descending=True)[:_MOST_MODES]
    kept = heaviest[weights[heaviest] > _SMALLEST_WEIGHT * weights.max()]
    weights = weights[kept] / weights[kept].sum()
    return GaussianMixture(weights.log(), local.at(kept), torch.linalg.cholesky(precision[kept]))


def _hessians(
    energies: Callable[[Sites], tuple[Tensor, Sites]], local: LocalCoordinates, count: int, like: Tensor
) -> Tensor:
    """Compute Hessians in local coordinates, ``(k, d, d)``, by central differences of gradients.

    Steps are small relative to the units of coordinates; for a mode that is narrower than that, they are adapted to its
    width.
    """
    d = local.size
    small = float(torch.finfo(like.dtype).eps) ** 0.25

    def gradients(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.requires_grad_()
            sites, log_volume = local.sites(x)
            _, slopes = energies({name: value.detach().flatten(0, 1) for name, value in sites.items()})
            # Chain rule: the gradient of this sum with respect to x is that of energy and log volume.
            pulled = sum(((slopes[name] * value.flatten(0, 1)).sum() for name, value in sites.items()), x.new_zeros(()))
            return torch.autograd.grad(pulled - log_volume.sum(), x)[0]

    steps = like.new_full((count, d), small)
    for _ in range(1 + _REPEATS):
        shifts = torch.diag_embed(steps).transpose(0, 1)  # (coordinate, mode, coordinate)
        hessian = (gradients(shifts.clone()) - gradients(-shifts)).transpose(0, 1) / (2 * steps.unsqueeze(-1))
        narrow = hessian.diagonal(dim1=-2, dim2=-1).abs().sqrt()
        if not bool((steps * narrow > _COARSE).any()):
            break
        steps = torch.where(steps * narrow > _COARSE, small / narrow, steps)
    return (hessian + hessian.mT) / 2


def units_of(draws: Sites, manifolds: Mapping[str, Manifold]) -> Sites:
    """Compute scales of coordinates: half the range of the middle 68 % of draws, or 1 if draws are constant.

    Args:
        draws: ``{site: (draws, ...)}`` from a distribution at least as wide as a mode, the prior.
        manifolds: manifolds of the sites that have one; their coordinates are of order one without scaling.
    """
    units = {}
    for name in draws.keys() - manifolds.keys():
        x = draws[name].sort(0)[0]
        width = (x[math.floor(0.84 * (len(x) - 1))] - x[math.ceil(0.16 * (len(x) - 1))]) / 2
        units[name] = torch.where(width.isfinite() & (width > 0), width, 1.0)
    return units


def mixture_about_modes(target: Target, starts: int, most: int) -> tuple[GaussianMixture, int]:
    """Build a mixture about the modes of a target, by descents from its prior draws.

    Descents use natural gradients if the model has a Fisher metric of limited size, else L-BFGS. ``starts`` is their
    number, and ``most`` the number of slow descents that are continued to the end.

    Returns:
        The mixture, and its cost in gradients of single points.
    """
    draws = [target.draw() for _ in range(starts)]
    first = {name: torch.stack([one[name] for one in draws]) for name in draws[0]}
    refuse_cut_gradients(target.potential_fn, first, target.manifolds)
    width = min(starts, most)
    rows = {name: x[:1].expand(width, *x.shape[1:]).clone() for name, x in first.items()}
    energies = Energies(BatchedPotential(target.potential_fn, rows, target.manifolds), width)
    units = units_of(first, target.manifolds)
    points = Points(first, energies, target.manifolds, units)
    metric = fisher_metric(target, points, first, width)
    # Length of a round after which good descents can be distinguished from bad ones.
    way, steps = (QuasiNewton(points), 200) if metric is None else (NaturalGradient(points, metric), 30)
    descent: Descent[Any] = way
    ends = points.parts(find_modes(descent, points, points.rows(first), most, steps).at)
    mixture = laplace_mixture(energies, target.manifolds, ends, units)
    return mixture, energies.evaluations + (0 if metric is None else metric.cost)
