r"""Annealing algorithm: from draws of one distribution to draws of another, and the ratio of normalising constants.

Waste-free sequential Monte Carlo (Dau & Chopin, JRSS-B 2022, algorithm 2) on the path
$\pi_\beta \propto e^{-U_0 - \beta L}$. At each level

1. β is increased as far as the effective sample size of the N particles allows; the logarithm of their mean weight is
   added to the log evidence;
2. M particles are resampled by their weights;
3. each is the start of a chain of N/M states at the new β; all states are the particles of the next level.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density import INVERSE_TEMPERATURE, Sites, split
from pyro_manifold.infer.mcmc.adaptation import ParticleTuning
from pyro_manifold.infer.mcmc.running import Run
from pyro_manifold.infer.smc.weights import (
    log_mean_weight,
    next_inverse_temperature,
    shares_of_error,
    systematic_resampling,
)

_FORGOTTEN, _REMEMBERED = 0.3, 0.7
_MOST_MOVES = 64
_MOST_VISITED = 2**23  # entries, 64 MB


class Evidence(NamedTuple):
    r"""Ratio of normalising constants of each run so far, with a variance estimate from that run alone.

    At level t, chain m of M contributes $d_{tm} = (\bar w_{tm} / \bar w_t - 1) / M$ to the error of the
    logarithm. Errors of a chain and of its ancestors are correlated, since a chain does not forget its initial state at
    once. Other chains are independent:

    $$
    \widehat{\operatorname{var}} = \frac{M}{M - 1} \sum_t \sum_m
    \Bigl(d_{tm}^2 + 2\,d_{tm} \sum_{s < t} d_{s,a_s(m)}\Bigr),
    $$

    $a_s(m)$ the ancestor of chain m at level s (Lee & Whiteley, Biometrika 105, 2018, for particles).

    Attributes:
        log: logarithm of the ratio, ``(runs,)``.
        variance: variance of the logarithm, ``(runs,)``.
        lines: sums over s, ``(runs, chains)``.
    """

    log: Tensor
    variance: Tensor
    lines: Tensor

    def after(self, log_weights: Tensor, ancestors: Tensor) -> Evidence:
        """Return the evidence after one more level.

        Args:
            log_weights: log weights of its particles, ``(runs, chains · states)``.
            ancestors: indices of the particles resampled for the next level, ``(runs, chains)``.
        """
        chains = self.lines.shape[-1]
        shares = shares_of_error(log_weights, chains)
        own = (shares * (shares + 2 * self.lines)).sum(-1) * chains / (chains - 1)
        come_from = ancestors // (log_weights.shape[-1] // chains)
        lines = (self.lines + shares).gather(1, come_from)
        return Evidence(self.log + log_mean_weight(log_weights), self.variance + own, lines)


@dataclass(frozen=True)
class Level:
    """Statistics at one inverse temperature; each tensor has shape ``(runs,)``.

    Attributes:
        inverse_temperature: β.
        log_evidence: log evidence so far.
        variance: variance of ``log_evidence``, estimated from differences between the chains of a run.
        acceptance: mean acceptance probability of the moves.
        memory: lag-1 autocorrelation of the log likelihood along chains.
        moves: number of moves between two states that are kept.
        steps: number of leapfrog steps of each chain.
    """

    inverse_temperature: Tensor
    log_evidence: Tensor
    variance: Tensor
    acceptance: Tensor
    memory: Tensor
    moves: int
    steps: int


@dataclass(frozen=True)
class AnnealingSettings:
    """Settings of the annealing algorithm.

    Attributes:
        runs: number of independent runs.
        chains: M, number of chains of each run.
        states: N/M, number of states of each chain at a level.
        last_states: number of states of each chain at the last level.
        share: smallest effective sample size, as a share of the particles.
        most_levels: largest number of levels.
    """

    runs: int
    chains: int
    states: int
    last_states: int
    share: float
    most_levels: int


class Visited(NamedTuple):
    """States with their posterior densities.

    Attributes:
        sites: ``{site: (points, ...)}``.
        energy: minus the log posterior density, unnormalised, ``(points,)``.
    """

    sites: Sites
    energy: Tensor

    def at(self, rows: Tensor | slice) -> Visited:
        """Select some of the states."""
        return Visited({name: x[rows] for name, x in self.sites.items()}, self.energy[rows])

    @classmethod
    def joined(cls, parts: Sequence[Visited]) -> Visited:
        """Concatenate several, without states of zero density."""
        sites = {name: torch.cat([part.sites[name] for part in parts]) for name in parts[0].sites}
        every = cls(sites, torch.cat([part.energy for part in parts]))
        return every.at(every.energy.isfinite())


@dataclass
class Particles:
    """Particles of all runs at their inverse temperatures.

    Attributes:
        sites: ``{site: (runs, chains, states, ...)}``, without β.
        negative_log_likelihood: minus the log likelihood of each particle, ``(runs, chains · states)``.
        energy: minus the log density of each particle at its β, ``(runs, chains · states)``.
        inverse_temperature: β of each run, ``(runs,)``.
        evidence: evidence so far.
        levels: statistics of the levels so far.
        visited: particles of the first levels, up to a limit of memory.
    """

    sites: Sites
    negative_log_likelihood: Tensor
    energy: Tensor
    inverse_temperature: Tensor
    evidence: Evidence
    levels: list[Level] = field(default_factory=list)
    visited: list[Visited] = field(default_factory=list)

    @property
    def states(self) -> Visited:
        """Particles with their posterior densities."""
        left = 1 - self.inverse_temperature.unsqueeze(-1)
        energy = (self.energy + left * self.negative_log_likelihood).flatten()
        return Visited({name: x.flatten(0, 2) for name, x in self.sites.items()}, energy)

    @property
    def arrived(self) -> bool:
        """True if all runs are at β = 1."""
        return bool((self.inverse_temperature == 1).all())


def anneal(
    run: Run[Any, Any], tuning: ParticleTuning, plan: AnnealingSettings, report: Callable[[Level], None]
) -> Particles:
    """Anneal through all levels from β = 0 to 1.

    Args:
        run: run of ``runs · chains`` chains at β = 0, each at a draw from that distribution.
        tuning: adaptation of the run.
        plan: settings of the algorithm.
        report: function that is called after each level.

    Raises:
        RuntimeError: if β = 1 is not reached within ``plan.most_levels`` levels.
    """
    start = run.state.energy.new_zeros(plan.runs)
    moves = 1
    lines = run.state.energy.new_zeros(plan.runs, plan.chains)
    particles = _explore(run, plan, plan.states, moves, start, Evidence(start, start, lines))
    report(particles.levels[-1])
    while not particles.arrived:
        if len(particles.levels) > plan.most_levels:
            raise RuntimeError(
                f"SMC is at an inverse temperature of {float(particles.inverse_temperature.min()):.2g} after "
                f"{plan.most_levels} levels: increase num_particles or max_levels, or choose a smaller ess_threshold "
                "or a narrower prior."
            )
        new = next_inverse_temperature(particles.negative_log_likelihood, particles.inverse_temperature, plan.share)
        log_weights = -(new - particles.inverse_temperature).unsqueeze(-1) * particles.negative_log_likelihood
        ancestors = systematic_resampling(log_weights, plan.chains, run.random)
        evidence = particles.evidence.after(log_weights, ancestors)
        _begin_at(run, particles, ancestors, new, plan)
        tuning.end_level()
        moves = _moves_needed(moves, float(particles.levels[-1].memory.mean()))
        levels, visited = particles.levels, with_room([*particles.visited, particles.states])
        states = plan.last_states if bool((new == 1).all()) else plan.states
        particles = _explore(run, plan, states, moves, new, evidence)
        particles.levels, particles.visited = levels + particles.levels, visited
        report(particles.levels[-1])
    return particles


def with_room(visited: list[Visited]) -> list[Visited]:
    """Return the first levels that fit into the memory limit, or a part of the very first."""
    numbers = list(itertools.accumulate(sum(x.numel() for x in one.sites.values()) for one in visited))
    if numbers[0] > _MOST_VISITED:
        return [visited[0].at(slice(None, None, -(-numbers[0] // _MOST_VISITED)))]
    return [one for one, count in zip(visited, numbers, strict=True) if count <= _MOST_VISITED]


def _moves_needed(moves: int, memory: float) -> int:
    """Double the number of moves if the autocorrelation is high, and halve it if it is low."""
    if memory > _REMEMBERED:
        return min(2 * moves, _MOST_MOVES)
    return max(moves // 2, 1) if memory < _FORGOTTEN else moves


def _begin_at(
    run: Run[Any, Any], particles: Particles, ancestors: Tensor, new: Tensor, plan: AnnealingSettings
) -> None:
    """Move the chains to their ancestors, at the new β."""
    rows = torch.arange(plan.runs, device=ancestors.device).unsqueeze(-1)
    positions = {name: x.flatten(1, 2)[rows, ancestors].flatten(0, 1) for name, x in particles.sites.items()}
    positions[INVERSE_TEMPERATURE] = new.repeat_interleave(plan.chains).unsqueeze(-1)
    run.move_to({name: positions[name] for name in sorted(positions)})


def _explore(
    run: Run[Any, Any],
    plan: AnnealingSettings,
    states: int,
    moves: int,
    inverse_temperature: Tensor,
    evidence: Evidence,
) -> Particles:
    """Run one level; return the states of every chain, including its start."""
    sites, negative_log_likelihood, energy, acceptance, steps = (
        [_sites(run)],
        [_negative_log_likelihood(run)],
        [run.state.energy],
        [],
        0,
    )
    for _ in range(states - 1):
        for _ in range(moves):
            run.iterate()
            acceptance.append(run.statistics["acceptance_rate"])
            steps += int(run.statistics["n_steps"][0])
        sites.append(_sites(run))
        negative_log_likelihood.append(_negative_log_likelihood(run))
        energy.append(run.state.energy)

    def by_run(values: list[Tensor]) -> Tensor:
        stacked = torch.stack(values, 1)
        return stacked.reshape(plan.runs, plan.chains, *stacked.shape[1:])

    found = by_run(negative_log_likelihood)
    kept = {name: by_run([one[name] for one in sites]) for name in sites[0]}
    level = Level(
        inverse_temperature,
        evidence.log,
        evidence.variance,
        torch.stack(acceptance).mean(0).reshape(plan.runs, -1).mean(1),
        _memory(found),
        moves,
        steps,
    )
    return Particles(kept, found.flatten(1), by_run(energy).flatten(1), inverse_temperature, evidence, [level])


def _sites(run: Run[Any, Any]) -> Sites:
    return split(run.sites)[1]


def _negative_log_likelihood(run: Run[Any, Any]) -> Tensor:
    """Return L of each chain, the derivative of the energy with respect to β."""
    negative_log_likelihood: Tensor = run.state.gradient[(INVERSE_TEMPERATURE,)].squeeze(-1)
    return negative_log_likelihood


def _memory(negative_log_likelihood: Tensor) -> Tensor:
    """Compute the lag-1 autocorrelation within chains, from ``(runs, chains, states)`` to ``(runs,)``.

    Differences between chains are excluded, since more moves would not reduce differences between modes.
    """
    centred = negative_log_likelihood - negative_log_likelihood.mean(-1, keepdim=True)
    products = (centred[..., 1:] * centred[..., :-1]).mean((-2, -1))
    return products / centred.square().mean((-2, -1)).clamp(min=torch.finfo(negative_log_likelihood.dtype).tiny)
