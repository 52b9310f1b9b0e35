r"""The algorithm: from draws of one distribution to draws of another, and the ratio of their normalisers.

Waste-free sequential Monte Carlo (Dau & Chopin, JRSS-B 2022, algorithm 2) on the path
:math:`\pi_\beta \propto e^{-U_0 - \beta L}`. At each level

1. β goes as far as the effective sample size of the N particles allows, which adds the logarithm of their mean weight
   to the log evidence;
2. M of them are drawn by their weights;
3. each is the start of a chain of N/M states at the new β; all states are the particles of the next level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.run import Run
from pyro_manifold.infer.smc.tuning import ParticleTuning
from pyro_manifold.infer.smc.weights import (
    log_mean_weight,
    next_inverse_temperature,
    shares_of_error,
    systematic_resampling,
)
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.tempered import INVERSE_TEMPERATURE, split

_FORGOTTEN, _REMEMBERED = 0.3, 0.7
_MOST_MOVES = 64


class Evidence(NamedTuple):
    r"""The ratio of normalisers so far, of each run, and how well it is known from that run alone.

    Chain m of M has at level t the share :math:`d_{tm} = (\bar w_{tm} / \bar w_t - 1) / M` in the error of the
    logarithm. Errors of one chain and of its ancestors go together, for what a chain begins with it does not forget at
    once; other chains are independent:

    .. math:: \widehat{\operatorname{var}} = \frac{M}{M - 1} \sum_t \sum_m
        \Bigl(d_{tm}^2 + 2\,d_{tm} \sum_{s < t} d_{s,a_s(m)}\Bigr),

    :math:`a_s(m)` the chain at level s that chain m comes from (Lee & Whiteley, Biometrika 105, 2018, for particles).

    Attributes:
        log: its logarithm, ``(runs,)``.
        variance: of that, ``(runs,)``.
        lines: the sums over s, ``(runs, chains)``.
    """

    log: Tensor
    variance: Tensor
    lines: Tensor

    def after(self, log_weights: Tensor, ancestors: Tensor) -> Evidence:
        """With one more level.

        Args:
            log_weights: of its particles, ``(runs, chains · states)``.
            ancestors: which of them the next level begins with, ``(runs, chains)``.
        """
        chains = self.lines.shape[-1]
        shares = shares_of_error(log_weights, chains)
        own = (shares * (shares + 2 * self.lines)).sum(-1) * chains / (chains - 1)
        come_from = ancestors // (log_weights.shape[-1] // chains)
        lines = (self.lines + shares).gather(1, come_from)
        return Evidence(self.log + log_mean_weight(log_weights), self.variance + own, lines)


@dataclass(frozen=True)
class Level:
    """What happened at one inverse temperature; each tensor ``(runs,)``.

    Attributes:
        inverse_temperature: β.
        log_evidence: so far.
        variance: of ``log_evidence``, from how the chains of a run differ.
        acceptance: mean acceptance probability of the moves.
        memory: autocorrelation of the log likelihood from a state of a chain to its next.
        moves: between two states that are kept.
        steps: leapfrog steps of each chain.
    """

    inverse_temperature: Tensor
    log_evidence: Tensor
    variance: Tensor
    acceptance: Tensor
    memory: Tensor
    moves: int
    steps: int


@dataclass(frozen=True)
class Plan:
    """How particles go from level to level.

    Attributes:
        runs: independent runs.
        chains: of each run, M.
        states: of each chain at a level, N/M.
        last_states: of each chain at the last level.
        share: of the particles that the effective sample size must keep.
        most_levels: after which it gives up.
    """

    runs: int
    chains: int
    states: int
    last_states: int
    share: float
    most_levels: int


@dataclass
class Particles:
    """The particles of all runs at their inverse temperatures.

    Attributes:
        sites: ``{site: (runs, chains, states, ...)}``, β left out.
        misfit: minus the log likelihood of each, ``(runs, chains · states)``.
        energy: minus the log density of each at its β, ``(runs, chains · states)``.
        inverse_temperature: β of each run, ``(runs,)``.
        evidence: so far.
        levels: what happened.
    """

    sites: Sites
    misfit: Tensor
    energy: Tensor
    inverse_temperature: Tensor
    evidence: Evidence
    levels: list[Level] = field(default_factory=list)

    @property
    def arrived(self) -> bool:
        """Whether all runs are at β = 1."""
        return bool((self.inverse_temperature == 1).all())


def anneal(run: Run[Any, Any], tuning: ParticleTuning, plan: Plan, tell: Callable[[Level], None]) -> Particles:
    """All levels from β = 0 to 1.

    Args:
        run: of ``runs · chains`` chains at β = 0, each where a draw of that distribution is.
        tuning: the run's.
        plan: how to go on.
        tell: called after each level.

    Raises:
        RuntimeError: if 1 is not reached in so many levels.
    """
    start = run.state.energy.new_zeros(plan.runs)
    moves = 1
    lines = run.state.energy.new_zeros(plan.runs, plan.chains)
    particles = _explore(run, plan, plan.states, moves, start, Evidence(start, start, lines))
    tell(particles.levels[-1])
    while not particles.arrived:
        if len(particles.levels) > plan.most_levels:
            raise RuntimeError(
                f"SMC is at an inverse temperature of {float(particles.inverse_temperature.min()):.2g} after "
                f"{plan.most_levels} levels: take more particles or max_levels, a smaller ess_share, or a narrower"
                " prior."
            )
        new = next_inverse_temperature(particles.misfit, particles.inverse_temperature, plan.share)
        log_weights = -(new - particles.inverse_temperature).unsqueeze(-1) * particles.misfit
        ancestors = systematic_resampling(log_weights, plan.chains, run.random)
        evidence = particles.evidence.after(log_weights, ancestors)
        _begin_at(run, particles, ancestors, new, plan)
        tuning.end_level()
        moves = _moves_needed(moves, float(particles.levels[-1].memory.mean()))
        levels = particles.levels
        states = plan.last_states if bool((new == 1).all()) else plan.states
        particles = _explore(run, plan, states, moves, new, evidence)
        particles.levels = levels + particles.levels
        tell(particles.levels[-1])
    return particles


def _moves_needed(moves: int, memory: float) -> int:
    """Twice as many where a state is much like its next, half as many where it is not at all."""
    if memory > _REMEMBERED:
        return min(2 * moves, _MOST_MOVES)
    return max(moves // 2, 1) if memory < _FORGOTTEN else moves


def _begin_at(run: Run[Any, Any], particles: Particles, ancestors: Tensor, new: Tensor, plan: Plan) -> None:
    """Put the chains where the ancestors are, at the new β."""
    rows = torch.arange(plan.runs, device=ancestors.device).unsqueeze(-1)
    positions = {name: x.flatten(1, 2)[rows, ancestors].flatten(0, 1) for name, x in particles.sites.items()}
    positions[INVERSE_TEMPERATURE] = new.repeat_interleave(plan.chains).unsqueeze(-1)
    run.move_to({name: positions[name] for name in sorted(positions)})


def _explore(
    run: Run[Any, Any], plan: Plan, states: int, moves: int, inverse_temperature: Tensor, evidence: Evidence
) -> Particles:
    """A level: every chain's states, its start the first."""
    sites, misfit, energy, acceptance, steps = [_sites(run)], [_misfit(run)], [run.state.energy], [], 0
    for _ in range(states - 1):
        for _ in range(moves):
            run.advance()
            acceptance.append(run.statistics["acceptance_rate"])
            steps += int(run.statistics["n_steps"][0])
        sites.append(_sites(run))
        misfit.append(_misfit(run))
        energy.append(run.state.energy)

    def by_run(values: list[Tensor]) -> Tensor:
        stacked = torch.stack(values, 1)
        return stacked.reshape(plan.runs, plan.chains, *stacked.shape[1:])

    found = by_run(misfit)
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


def _misfit(run: Run[Any, Any]) -> Tensor:
    """L of each chain: the derivative of the energy by β."""
    misfit: Tensor = run.state.gradient[(INVERSE_TEMPERATURE,)].squeeze(-1)
    return misfit


def _memory(misfit: Tensor) -> Tensor:
    """Autocorrelation at lag 1, within chains, ``(runs, chains, states)`` to ``(runs,)``.

    Within: chains in different modes differ for good, and more moves would not help.
    """
    centred = misfit - misfit.mean(-1, keepdim=True)
    products = (centred[..., 1:] * centred[..., :-1]).mean((-2, -1))
    return products / centred.square().mean((-2, -1)).clamp(min=torch.finfo(misfit.dtype).tiny)
