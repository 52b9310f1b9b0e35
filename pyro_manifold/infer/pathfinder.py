"""Pathfinder on manifolds: draws from Gaussians about the best points of quasi-Newton paths, in seconds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor

from pyro_manifold.density import (
    BatchedDensity,
    Batches,
    ModelOptions,
    Program,
    Sites,
    Target,
    one_thread_at_a_time,
    refuse_guide,
)
from pyro_manifold.diagnostics import (
    Notes,
    Posterior,
    SamplerWarning,
    check_flag,
    deterministic_values,
    smoothed_weights,
    summarise,
    to_inferencedata,
)
from pyro_manifold.infer.descent import Energies, LocalGaussian, Points, QuasiNewton
from pyro_manifold.infer.mcmc import check_positive_integer
from pyro_manifold.infer.mcmc.transitions import Block, Problem
from pyro_manifold.infer.predictive_groups import with_draws
from pyro_manifold.infer.smc import systematic_resampling

GOOD_KHAT = 0.7
"""Largest k̂ of reliable importance weights (Vehtari et al. 2024)."""
_PAIRS = 30
_MOST_STEPS = 1000
_PATIENCE = 40  # steps without a larger bound, after which the paths end
_TOLERANCE = 1e-4  # nats
_CANDIDATES = 4  # for each draw
_FEWEST_CANDIDATES = 1000
_AT_ONCE = 10  # points of each path that are evaluated at once
_COMPARED = 30  # draws by which the two Gaussians of a path are compared
_MOST_EXACT = 200  # degrees of freedom
_CLOSE = 3.0  # nats; of paths whose bounds are lower by more there are no draws
_BARRIER = 1.0  # nats between two paths, below which both have found the same mode
_BETWEEN = 8  # points at which a barrier is sought; even, since the middle of antipodes has no nearest point
_NEARLY_EQUAL = 0.9  # effective fraction of weights above which the shape of their tail does not matter
_FAR = 1e10  # in unconstrained space, for coordinates on which the density does not depend; its root in float32
_FLAT = 1.5  # the largest weight by the least of the tail: below, a shape would be fitted to differences of rounding


class PoorApproximation(SamplerWarning):
    """Warning of draws whose importance weights are unreliable, so that they are a first look only."""


def pathfinder(
    model: Callable[..., Any],
    *args: Any,
    num_draws: int = 1000,
    num_paths: int = 8,
    transforms: Mapping[str, Any] | None = None,
    max_plate_nesting: int | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    **kwargs: Any,
) -> Pathfinder:
    r"""Draw approximately from the posterior of a model, in seconds, and measure how approximately.

    From each of several starts L-BFGS descends along the product of the manifolds and unconstrained spaces of the
    sites. About each point x of the path it has gathered the curvature, which makes a Gaussian in tangent space,
    $\mathcal N(x - Hg, H)$ with the gradient g and the inverse Hessian H; polar factors take it to the manifold. Of
    each path that Gaussian is kept that has the largest evidence lower bound (ELBO), or the one with the exact Hessian
    there, if its bound is larger. Draws of the paths with nearly the largest bound, within 3 nats, are then resampled
    by their smoothed importance weights. The weights contain the volume element of the polar factor
    (`Manifold.log_volume_of_projection`).

    The shape k̂ of the tail of the weights measures the approximation: below 0.7 the draws can be used as they are.
    Above it they are a first look at scales and modes. k̂ does not show a mode that no path has found, nor tails that
    are much heavier than those of a Gaussian. Paths between which the density has a barrier are in modes of their own,
    each of which gets its mass, however many paths have found it.

    Args:
        model: a Pyro model.
        *args: its arguments.
        num_draws: number of draws that are returned.
        num_paths: number of paths, which are vectorised.
        transforms: transforms to unconstrained space for some of the sites, as in `OHMC`.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        init_strategy: a function of `pyro.infer.autoguide.initialization`, which starts the paths.
        **kwargs: keyword arguments of the model.

    Returns:
        A `Pathfinder`, with the draws.

    Raises:
        ValueError: for a model without continuous sites or with discrete ones that cannot be summed out, and where no
            path has a point about which the density resembles a Gaussian.
        NotImplementedError: if the model subsamples its data.

    Warns:
        SamplerWarning: if k̂ is above 0.7.

    Source: Zhang, Carpenter, Gelman & Vehtari, Pathfinder: parallel quasi-Newton variational inference, JMLR 23 (2022),
    algorithms 1 to 3; the manifolds, exact Hessian and its choice are of this package.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> _ = pyro.set_rng_seed(0)
        >>> def model(y):
        ...     U = pyro.sample("U", StiefelUniform(4, 2))
        ...     pyro.sample("y", dist.Normal(U, 0.1).to_event(2), obs=y)
        >>> found = pathfinder(model, torch.eye(4, 2))
        >>> found.get_samples()["U"].shape, found.khat < 0.7
        (torch.Size([1000, 4, 2]), True)
    """
    check_positive_integer(num_draws=num_draws, num_paths=num_paths)
    if not callable(model):
        raise ValueError(f"pathfinder: model={model!r}, expected a Pyro model, and its arguments after it.")
    refuse_guide(model)
    program = Program(model, args, kwargs, None, ModelOptions(transforms, max_plate_nesting, init_strategy))
    found = _approximation(program, num_draws, num_paths)
    if found.khat > GOOD_KHAT:
        warnings.warn(
            PoorApproximation(
                f"pathfinder: the tail of the importance weights has k̂ = {found.khat:.2f}, above {GOOD_KHAT}: draws "
                "are a first look at the posterior, and their means and intervals may be wrong. Draw by "
                "MCMC(OHMC(model)).",
                remedy="MCMC",
            ),
            stacklevel=2,
        )
    return found


@dataclass(frozen=True, eq=False)
class Pathfinder:
    """Draws by `pathfinder`, and how good they are.

    Attributes:
        posterior: the draws with the model, as one chain; see `pyro_manifold.diagnostics.Posterior`.
        khat: shape k̂ of the tail of the importance weights; -∞ if the weights are nearly equal.
        ess: effective sample size of the importance weights of all candidates, four for each draw and at least 1,000;
            the draws are about as precise as so many independent ones, but at most as their own number.
        bounds: evidence lower bound of each path up to a constant, ``(num_paths,)``; -inf for a path without one.
    """

    posterior: Posterior
    khat: float
    ess: float
    bounds: Tensor

    def get_samples(self, *, deterministic: bool = False, align: bool = False) -> Sites:
        """Return the draws, ``{site: (draws, ...)}``.

        Args:
            deterministic: as in `MCMC.get_samples`.
            align: as in `MCMC.get_samples`.
        """
        check_flag(deterministic=deterministic, align=align)
        draws = (self.posterior.aligned() if align else self.posterior).flat
        if deterministic and self.posterior.program is not None:
            draws |= deterministic_values(self.posterior.program, draws)
        return draws

    def summary(self, prob: float = 0.9, *, align: bool = True, max_rows: int | None = None) -> None:
        """Print the table of `MCMC.summary`, and k̂ below it."""
        check_flag(align=align)
        print(summarise(self.posterior, prob, align=align, max_rows=max_rows))

    def to_inferencedata(self, **options: Any) -> Any:
        """Export the draws to ArviZ, with the options of `MCMC.to_inferencedata`."""
        return to_inferencedata(self.posterior, **with_draws(self.posterior, options))


@one_thread_at_a_time
def _approximation(program: Program, num_draws: int, num_paths: int) -> Pathfinder:
    target = program.target
    if not {*target.manifolds, *target.transforms}:
        raise ValueError("pathfinder: the model has no continuous site, expected at least one; others are summed out.")
    # Most of the time of an evaluation does not depend on the number of points.
    problem = Problem.build(target, num_paths * _AT_ONCE, None, batched=_batched)
    points = Points(problem.position, Energies(problem.potential, problem.chains), problem.manifolds)
    if not points.dimension:
        raise ValueError("pathfinder: no site can move, as the matrices of V(1, 1), ±1, cannot.")
    gaussian, bounds = best_gaussians(points, points.rows(problem.position)[:num_paths], problem.random)
    if not bool(bounds.isfinite().any()):
        raise ValueError(
            "pathfinder: no path has a point about which the density has a finite mass and positive curvature: the "
            "posterior may be improper, flat as a uniform prior is, or linear in a direction; see MCMC(OHMC(model))."
        )
    unbounded = _sites_without_effect(problem, points, gaussian.centre[bounds.argmax()])
    if unbounded:
        raise ValueError(
            f"pathfinder: the posterior does not depend on {unbounded} and is improper: give them proper priors."
        )
    close = (bounds >= bounds.max() - _CLOSE).nonzero().squeeze(1)
    candidates = max(_CANDIDATES * num_draws, _FEWEST_CANDIDATES)
    gaussian = gaussian.at_rows(close)
    drawn, energy, weights = gaussian.draws(-(-candidates // len(close)), problem.random)
    # Each path estimates the mass of its mode: paths in the same mode share it, those in other modes add theirs.
    weights = weights - same_mode(points, gaussian.centre).sum(1).log()
    weights = torch.where(_is_plausible(energy, points), weights, -torch.inf)
    if not bool(weights.isfinite().any()):
        raise ValueError("pathfinder: the log density is not finite at any draw of the Gaussians that were found.")
    # Path by path, since systematic resampling of every k-th of the others would leave out whole paths.
    drawn, energy, weights = drawn.transpose(0, 1), energy.mT, weights.mT
    smoothed, khat = smoothed_weights(weights.flatten().cpu().numpy())
    ess = float(1 / np.exp(2 * smoothed).sum())
    khat = -math.inf if ess > _NEARLY_EQUAL * weights.numel() or _has_no_tail(weights.flatten()) else khat
    chosen = systematic_resampling(torch.as_tensor(smoothed).to(weights.device)[None], num_draws, problem.random)[0]
    chosen = chosen[torch.randperm(num_draws, generator=problem.random, device=chosen.device)]
    sites = problem.layout.unpack(points.parts(drawn.flatten(0, 1)[chosen]))
    values = {name: value.unsqueeze(0) for name, value in target.values(sites).items()}
    line = (
        f"k̂ {khat:.2f} of the importance weights, whose effective sample size is {ess:.0f} of {weights.numel()}; "
        f"{num_draws} draws were chosen by them, whose ess and r_hat are not those of the approximation"
    )
    statistics = {"lp": -energy.flatten()[chosen].unsqueeze(0)}
    notes = Notes(lines=[line], attributes={"khat": khat})
    return Pathfinder(Posterior(values, statistics, program, notes), khat, ess, bounds)


def _batched(target: Target, example: Sites) -> BatchedDensity:
    return BatchedDensity(target.on, Batches(), example, target.manifolds)


def best_gaussians(points: Points[Block], start: Tensor, random: torch.Generator) -> tuple[LocalGaussian, Tensor]:
    """Return the Gaussian of each path with the largest evidence lower bound, and the bounds ``(paths,)``.

    Args:
        points: the manifolds and the potential energy.
        start: starting points, ``(paths, coordinates)``.
        random: random number generator.
    """
    descent = QuasiNewton(points, _PAIRS)
    state = descent.begin(start)
    best, since_better = LocalGaussian.of_path(points, state), 0
    bounds = torch.full_like(state.energy, -torch.inf)
    for _ in range(_MOST_STEPS):
        state = descent.advance(state)
        gaussian = LocalGaussian.of_path(points, state)
        _, bound = gaussian.draws_and_bound(random)
        if bool((bound > bounds).any()):  # more draws, since the largest of many bounds is one that is too large
            bound, _ = _plausible_bound(gaussian, random)
        better = bound > bounds
        best, bounds = gaussian.where(better, best), torch.maximum(bound, bounds)
        since_better = 0 if bool(better.any()) else since_better + 1
        arrived = bool((descent.predicted_decrease(state) <= _TOLERANCE).all())
        if arrived or (since_better >= _PATIENCE and bool(bounds.isfinite().any())):
            break
    if points.dimension > _MOST_EXACT:
        return best, bounds
    exact = best.with_exact_curvature()
    # The largest of many estimates is too large: both are estimated again. Where they tie, weights that vary less win.
    (bounds, error), (others, other_error) = (_plausible_bound(each, random) for each in (best, exact))
    tie = (bounds - others).abs() <= 2 * (error**2 + other_error**2).sqrt()
    kept = torch.where(tie, error < other_error, bounds > others)
    return best.where(kept, exact), torch.where(kept, bounds, others)


def _sites_without_effect(problem: Problem, points: Points[Block], at: Tensor) -> list[str]:
    """Return the sites with a coordinate in unconstrained space on which the density does not depend.

    With more than 200 coordinates none is sought.
    """
    parts = points.parts(at.unsqueeze(0))
    flags = {block: torch.full_like(x, float(block not in problem.manifolds)) for block, x in parts.items()}
    coordinates = points.rows(flags)[0].nonzero().squeeze(1)
    if not 0 < len(coordinates) <= _MOST_EXACT:
        return []
    moves = torch.zeros(len(coordinates), len(at), dtype=at.dtype, device=at.device)
    moves.scatter_(1, coordinates.unsqueeze(1), _FAR if at.dtype == torch.float64 else _FAR**0.5)
    here, *there = (points.energy_and_slope(at + sign * moves)[0] for sign in (0, 1, -1))
    rounding = 100 * torch.finfo(at.dtype).eps * (1 + here.abs())
    flat = torch.stack([(energy - here).abs() <= rounding for energy in there]).all(0)
    moved = problem.layout.unpack(points.parts(moves[flat]))
    return sorted(name for name, x in moved.items() if bool((x != 0).any()) and name in problem.target.transforms)


def _has_no_tail(log_weights: Tensor) -> bool:
    """Return whether the largest weights are so nearly equal that their tail has no shape."""
    count = len(log_weights)
    tail = log_weights.topk(min(math.ceil(0.2 * count), math.ceil(3 * count**0.5))).values
    return float(tail[0] - tail[-1]) < math.log(_FLAT)


def same_mode(points: Points[Block], centres: Tensor) -> Tensor:
    """Return whether the density has no barrier between two points, ``(paths, paths)``.

    Args:
        points: the manifolds and the potential energy.
        centres: means of the Gaussians of the paths, ``(paths, coordinates)``.
    """
    count = len(centres)
    found = torch.eye(count, dtype=torch.bool, device=centres.device)
    if count == 1:
        return found
    first, second = torch.triu_indices(count, count, 1, device=centres.device)
    shares = torch.linspace(0, 1, _BETWEEN + 2, dtype=centres.dtype, device=centres.device).view(-1, 1, 1)
    along = (shares * (centres[second] - centres[first])).flatten(0, 1)
    at = points.moved(centres[first].repeat(len(shares), 1), along)
    energy = points.energy_and_slope(at)[0].view(len(shares), -1)
    barrier = energy[1:-1].amax(0) - torch.maximum(energy[0], energy[-1])
    # Between antipodes the way jumps from one to the other.
    gaps = at.view(len(shares), -1, centres.shape[1]).diff(dim=0).norm(dim=2)
    rounding = torch.finfo(at.dtype).eps ** 0.5 * centres.norm(dim=1).amax()
    joined = (barrier < _BARRIER) & (gaps.amax(0) <= gaps.sum(0) / 2 + rounding)
    found[first, second] = found[second, first] = joined
    return found


def _plausible_bound(gaussian: LocalGaussian, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the bound of each path and its standard error; -inf where energies are no more than rounding errors."""
    bound, error = gaussian.bound(random, _COMPARED)
    absurd = error.isfinite() & (error > _implausible(gaussian.points))
    return torch.where(absurd, -torch.inf, bound), error


def _is_plausible(energy: Tensor, points: Points[Block]) -> Tensor:
    """Return whether draws are no poles or overflows of the density, which have energies far below all others."""
    typical = energy[energy.isfinite()].median() if bool(energy.isfinite().any()) else energy.new_zeros(())
    return energy > typical - _implausible(points)


def _implausible(points: Points[Block]) -> float:
    """Return a difference of energies, in nats, that no draws of one Gaussian have."""
    return 10.0 * points.dimension + 500
