r"""Lower bound of the evidence from the modes of a posterior, to detect modes missed by particles or replicas.

1. Parallel L-BFGS descents start at draws from the posterior and at states visited on the path from the prior.
2. A mixture q of Gaussians is built about their end points (`laplace_mixture`). The next starts are the visited states
   with the largest excess of the posterior density over the prediction of these Gaussians,

   $$ -U(x) - \log \sum_k \hat Z_k\,N(x; m_k, H_k^{-1}): $$

   since in the basin of an unknown mode the density is much larger than predicted. This is repeated until no new mode
   is found.
3. Importance sampling gives $\hat Z = \frac1n \sum_i e^{-U(x_i)} / q(x_i)$ with $x_i \sim q$.

$E \hat Z \le Z$ for any shape of the modes, so that by Markov's inequality $\hat Z$ exceeds c Z with
probability at most 1/c. The check is one-sided: if q fits badly, $\hat Z$ is too small and uninformative, while
an estimate of the evidence that is significantly below the bound has missed mass. Priors must be normalised.

A mode whose basin contains each of N independent visited states with probability s is missed with probability
$(1 - s)^N$, by any method that evaluates the density at these states only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density import INVERSE_TEMPERATURE, Sites, Target, split
from pyro_manifold.infer.descent import Energies, Points, QuasiNewton
from pyro_manifold.infer.mcmc.transitions import Problem
from pyro_manifold.infer.smc.annealing import Particles, Visited
from pyro_manifold.infer.smc.initialisation import unnormalised_priors
from pyro_manifold.infer.smc.local_coordinates import have_local_coordinates
from pyro_manifold.infer.smc.modes import (
    GaussianMixture,
    NoModeError,
    advanced,
    arrived,
    different,
    laplace_mixture,
    units_of,
)
from pyro_manifold.manifolds import Manifold

_SHARE_OF_GRADIENTS = 0.1
"""Largest cost of the check, as a share of that of the run."""

_ROUNDS = 3
_IMPORTANCE_DRAWS = 4  # number of calls
_MOST_WORK = 2**26  # multiplications in the comparison of visited states with Gaussians
_LARGEST = 512  # number of coordinates, as Hessians are decomposed
_AT_ONCE = 1024  # points
_SAME = 0.1  # nats below the maximum of the log density of a Gaussian
_SURE = 2.0  # standard errors
_SIGNIFICANT = 3.0  # standard errors
_WITHOUT_ERROR = 1.0  # significant difference in nats if the standard error is unknown or imprecise
_ROUNDING = 1e-6  # relative to the log evidence, and at least this many nats
_NEVER_MISSED = 5  # -log 0.01
_DIFFERENCE_OF_SHARES = 0.05  # missing share of a mode that is reported
_NEARLY_NONE = 0.25  # fraction of the draws that a mode should have


@dataclass(frozen=True)
class Bound:
    """Lower bound of the evidence, and the mode with the largest deficit of draws; NaN if there is no bound.

    Attributes:
        log_evidence: log of the unbiased estimate of the mass about the modes.
        error: standard error of ``log_evidence``, from the importance weights.
        share: share of the mode in this mass, for the mode with the largest difference to its share of draws.
        present: share of the draws in this mode.
        basin: share of the first visited states in the region of this mode.
        evaluations: number of evaluations of the density with its gradient.
        first: number of the first visited states.
    """

    log_evidence: float = math.nan
    error: float = math.nan
    share: float = 0.0
    present: float = 0.0
    basin: float = 0.0
    evaluations: int = 0
    first: int = 0

    @property
    def sure(self) -> float:
        """Log evidence minus two standard errors; minus infinity if there is no bound."""
        left = 1 - _SURE * self.error
        return self.log_evidence + math.log(left) if left > 0 else -math.inf

    def error_with(self, log_evidence: float, error: float) -> float:
        """Return the standard error of an estimate, or its distance below the bound if that is larger."""
        short = self.sure - log_evidence
        return error if math.isnan(error) or error > short else short

    def contradicts(self, log_evidence: float, error: float, degrees: int) -> bool:
        """Return whether an estimate is significantly below the bound.

        Args:
            log_evidence: estimate of the log evidence.
            error: its standard error. A difference of three standard errors is significant if the error is precise, or
                if a mode has nearly no draws. Otherwise the threshold is the corresponding quantile of Student's t, or
                1 nat (at least three standard errors) if that is less. If the error is NaN, 1 nat is significant.
            degrees: degrees of freedom of the standard error.
        """
        from scipy.special import ndtr, stdtrit  # imported here, because the import takes time

        rounding = _ROUNDING * max(1.0, abs(log_evidence))
        if math.isnan(error) or degrees < 1:
            return self.sure - log_evidence > _WITHOUT_ERROR + rounding
        significant = _SIGNIFICANT * error
        if not self._has_no_draws:
            chance = float(stdtrit(degrees, ndtr(_SIGNIFICANT))) * error
            significant = min(chance, max(_WITHOUT_ERROR, significant))
        return self.sure - log_evidence > significant + rounding

    @property
    def _has_no_draws(self) -> bool:
        """True if the mode with the largest deficit has nearly no draws, although it should have some."""
        return self.share > _DIFFERENCE_OF_SHARES and self.present < _NEARLY_NONE * self.share

    def sentence(self, owner: str, log_evidence: float, error: float, remedy: str) -> str:
        """Return the warning for draws that have missed mass.

        Args:
            owner: name of the method with this estimate.
            log_evidence: estimate of the log evidence.
            error: its standard error, without the bound.
            remedy: suggested remedy.
        """
        modes = ""
        if self.share - self.present > _DIFFERENCE_OF_SHARES:
            modes = (
                f", and a mode with {self.share:.2f} of that mass has {self.present:.2f} of the draws, so that the "
                "proportions of modes among draws are wrong too"
            )
        return (
            f"The log evidence {log_evidence:.2f} ± {error:.2f} of {owner} is too low: importance sampling at the "
            f"modes that descents find gives at least {self.sure:.2f}{modes}: {remedy}."
        )

    @property
    def enough_starts(self) -> int:
        """Number of descents from prior draws that reach the basin of this mode with probability 0.99."""
        return math.ceil(_NEVER_MISSED / self.basin) if self.basin else 0


def posterior_energies(
    batched: Callable[[Sites], tuple[Tensor, Sites]], width: int, like: Tensor
) -> Callable[[Sites], tuple[Tensor, Sites]]:
    """Return a function for energies and gradients of a tempered target at β = 1, without the site β.

    Args:
        batched: energies and gradients of the tempered target, for ``width`` rows per call.
        width: number of rows.
        like: tensor with the dtype and device.
    """
    one = like.new_ones(width, 1)

    def energies(sites: Sites) -> tuple[Tensor, Sites]:
        energy, gradient = batched({**sites, INVERSE_TEMPERATURE: one})
        return energy, split(gradient)[1]

    return energies


def evidence_about_modes(
    energies: Energies[str],
    manifolds: Mapping[str, Manifold],
    draws: Sites,
    visited: Visited,
    calls: int,
    random: torch.Generator,
) -> Bound:
    """Compute the lower bound of the evidence; see the formulas of this module.

    Args:
        energies: energies of the posterior.
        manifolds: manifolds of the sites that have one.
        draws: draws from the posterior, ``{site: (draws, ...)}``.
        visited: visited states, draws from the prior first.
        calls: number of calls of ``energies`` in the run; the bound costs a small share of these.
        random: random number generator.

    Returns:
        The bound, of the integral over uniform distributions of sites on manifolds (see `Target.log_measure`), with
        values of NaN if a site has no local coordinates, there are more than 512 coordinates, or no
        descent converges.
    """
    manifolds = {name: manifold for name, manifold in manifolds.items() if name in draws}
    budget = int(_SHARE_OF_GRADIENTS * calls)
    size = sum(x[0].numel() for x in draws.values())
    if (
        not have_local_coordinates(manifolds)
        or size > _LARGEST
        or not len(visited.energy)
        or budget <= _IMPORTANCE_DRAWS
    ):
        return Bound()
    first = visited.at(slice(len(next(iter(draws.values())))))
    units = units_of(first.sites, manifolds)
    points = Points(draws, energies, manifolds, units)
    search = _Search(energies, manifolds, units, points, budget - _IMPORTANCE_DRAWS)
    half = energies.width // 2
    starts = [_spread(search.points.rows(draws), half), _spread(search.points.rows(visited.sites), half)]
    try:
        mixture = search.mixture(torch.cat(starts), visited)
    except (NoModeError, torch.linalg.LinAlgError):  # no eigendecomposition of a Hessian
        mixture = None
    if mixture is None:
        return Bound(evaluations=energies.evaluations)
    return _importance(energies, mixture, draws, visited, random)


class _Ends(NamedTuple):
    """End points of descents, with their energies."""

    at: Tensor
    energy: Tensor


@dataclass(frozen=True)
class _Search:
    """Search for modes within a budget of evaluations.

    Attributes:
        energies: energies of the posterior.
        manifolds: manifolds of the sites that have one.
        units: scales of the coordinates of other sites.
        points: sites as rows.
        budget: largest number of calls of ``energies``.
    """

    energies: Energies[str]
    manifolds: Mapping[str, Manifold]
    units: Sites
    points: Points[str]
    budget: int

    def mixture(self, starts: Tensor, visited: Visited) -> GaussianMixture | None:
        """Return the mixture of Gaussians about all modes found; None if no descent converges."""
        ends = self._descents(starts)
        found = self._about(ends)
        for _ in range(_ROUNDS):
            if found is None or self._left < 2:
                break
            before = len(found.log_weights)
            more = self._descents(self.points.rows(least_explained(found, visited, self.energies.width).sites))
            ends = self._different(_Ends(torch.cat([ends.at, more.at]), torch.cat([ends.energy, more.energy])))
            found = self._about(ends)
            if found is None or len(found.log_weights) <= before:
                break
        return found

    @property
    def _left(self) -> int:
        return self.budget - self.energies.evaluations // self.energies.width

    def _descents(self, starts: Tensor) -> _Ends:
        """Return the distinct end points of descents that converge within half of the remaining budget."""
        descent = QuasiNewton(self.points)
        state = advanced(descent, descent.begin(starts), self._left // 2)
        there = arrived(descent, state)
        return self._different(_Ends(state.at[there], state.energy[there]))

    def _different(self, ends: _Ends) -> _Ends:
        """Remove duplicates and sort by energy; keep only as many as a quarter of the budget allows Hessians of."""
        rows = different(self.points, ends)[: max(1, self.budget * self.energies.width // (8 * ends.at.shape[1]))]
        return _Ends(ends.at[rows], ends.energy[rows])

    def _about(self, ends: _Ends) -> GaussianMixture | None:
        """Build the mixture about these end points, with one Gaussian for end points that share the same centre."""
        if not len(ends.at):
            return None
        mixture = laplace_mixture(self.energies, self.manifolds, self.points.parts(ends.at), self.units)
        at_centres = each_of(mixture, mixture.centres)  # row: centre; column: Gaussian
        same = at_centres.diagonal() - at_centres < _SAME
        kept: list[int] = []
        for k in range(len(same)):
            if not bool(same[k, kept].any()):
                kept.append(k)
        return mixture.at(kept)


def _spread(rows: Tensor, count: int) -> Tensor:
    """Select ``count`` evenly spaced rows, or all if there are fewer."""
    return rows[torch.linspace(0, len(rows) - 1, min(count, len(rows)), device=rows.device).long()]


def least_explained(mixture: GaussianMixture, visited: Visited, count: int) -> Visited:
    """Return the states with the largest excess of density over the mixture; limits the number of states compared."""
    _, size, _ = mixture.roots.shape
    visited = visited.at(slice(max(count, _MOST_WORK // (len(mixture.log_weights) * size**2))))
    # Weights are square roots of masses: adding the log weights again gives masses.
    predicted = (each_of(mixture, visited.sites) + mixture.log_weights).logsumexp(-1)
    excess = -visited.energy - predicted
    return visited.at(excess.topk(min(count, len(excess))).indices)


def each_of(mixture: GaussianMixture, sites: Sites) -> Tensor:
    """Compute the log of the weighted density of each Gaussian at each point, ``(points, k)``."""
    return torch.vmap(mixture.each, chunk_size=_AT_ONCE)(sites)


def _importance(
    energies: Energies[str], mixture: GaussianMixture, draws: Sites, visited: Visited, random: torch.Generator
) -> Bound:
    count = _IMPORTANCE_DRAWS * energies.width
    sites = mixture.draws(count, random)
    each = each_of(mixture, sites)
    log_weights = (-energies(sites)[0] - each.logsumexp(-1)).nan_to_num(-torch.inf, -torch.inf, -torch.inf)
    total = log_weights.logsumexp(0)
    if not bool(total.isfinite()):
        return Bound(evaluations=energies.evaluations)
    weights = (log_weights - total).exp()
    modes = len(mixture.log_weights)

    def shares(labels: Tensor, weights: Tensor) -> Tensor:
        return weights.new_zeros(modes).index_add(0, labels, weights)

    def counted(some: Sites) -> Tensor:
        labels = each_of(mixture, some).argmax(-1)
        return shares(labels, labels.new_ones(len(labels)) / len(labels))

    share, present = shares(each.argmax(-1), weights), counted(draws)
    lost = int((share - present).argmax())
    first = visited.at(slice(len(next(iter(draws.values())))))
    return Bound(
        float(total) - math.log(count),
        float((count * weights).std() / count**0.5),
        float(share[lost]),
        float(present[lost]),
        float(counted(first.sites)[lost]),
        energies.evaluations,
        len(first.energy),
    )


def energies_of_posterior(problem: Problem, particles: Particles) -> Energies[str]:
    """Return the energies of a run's target at β = 1."""
    like = particles.energy
    return Energies(posterior_energies(problem.batched, problem.chains, like), problem.chains)


def bound_of_particles(full: Target, problem: Problem, particles: Particles, log_base: float) -> Bound:
    """Compute the lower bound of the evidence for particles at β = 1.

    Args:
        full: target at β = 1.
        problem: problem of the tempered target, for all chains.
        particles: final particles.
        log_base: log normalising constant of the distribution at β = 0.
    """
    if unnormalised_priors(full):
        return Bound()
    states = particles.states
    steps = sum(level.steps for level in particles.levels)
    energies = energies_of_posterior(problem, particles)
    visited = Visited.joined([*particles.visited, states])
    found = evidence_about_modes(energies, problem.target.manifolds, states.sites, visited, steps, problem.random)
    return replace(found, log_evidence=found.log_evidence + full.log_measure - log_base)
