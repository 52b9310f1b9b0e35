"""Fractions of particles in the mode of each group of chains, and outside these modes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.missed_regions import FALSE_ALARMS, find_missed_regions
from pyro_manifold.diagnostics.posterior import Posterior
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry

_DISTANCE = "mean square distance"
_PARTS = 8


@dataclass(frozen=True)
class Particles:
    """Draws from the whole posterior.

    Attributes:
        samples: ``{name: (runs, particles, ...)}``.
        log_density: ``(runs, particles)``; None if it cannot be compared with that of the chains.
        states: number of successive particles that are states of one chain.
        relative_variance: relative variance of the evidence of all runs; 0 for independent draws.
    """

    samples: Mapping[str, Tensor]
    log_density: Tensor | None = None
    states: int = 1
    relative_variance: float = 0.0

    @classmethod
    def of(cls, given: Posterior, draws: Mapping[str, Tensor], log_density: Tensor | None) -> Particles:
        """Return draws of the whole posterior, of the same names and shapes as draws of chains.

        Raises:
            ValueError: for other names or shapes.
        """
        _check_shapes(given.draws, draws)
        return cls(given.draws, log_density, given.notes.chain_length or 1, given.notes.relative_variance)

    @property
    def chains(self) -> float:
        """Return the number of chains of particles, each of which counts as one independent particle."""
        return next(iter(self.samples.values())).shape[:2].numel() / self.states


def comparable_log_density(particles: Posterior, chains: Posterior) -> Tensor | None:
    """Return the log density of particles; None unless it is comparable with that of the chains."""
    one, other = particles.program, chains.program
    if one is None or other is None or not particles.notes.from_prior:
        return None
    same = one.model is other.model and one.options.transforms is other.options.transforms
    return particles.log_density if same else None


def _check_shapes(particles: Mapping[str, Tensor], draws: Mapping[str, Tensor]) -> None:
    if set(particles) != set(draws):
        raise ValueError(
            f"modes: particles have the names {sorted(particles)}, expected those of draws, {sorted(draws)}."
        )
    runs = next(iter(particles.values())).shape[:2]
    for name, value in draws.items():
        if particles[name].shape != (*runs, *value.shape[2:]) or len(runs) < 2:
            expected = ", ".join(["runs", "particles", *map(str, value.shape[2:])])
            raise ValueError(
                f"modes: particles[{name!r}] has shape {tuple(particles[name].shape)}, expected ({expected}) to match "
                f"draws of shape {tuple(value.shape)}, with as many runs and particles for each name."
            )


def shares_of_particles(
    chains: Sequence[Sequence[int]],
    draws: Mapping[str, Tensor],
    particles: Particles,
    symmetries: Sequence[Symmetry],
    log_density: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the fraction of particles in each group of chains and in none, and standard errors.

    Each particle is assigned to the group whose draws are nearest, unless it is apart from them. Both results are
    ``(groups + 1,)``, the last entry for particles in no group.

    Args:
        chains: indices of the chains of each group.
        draws: ``{name: (chains, draws, ...)}``.
        particles: particles with the same names.
        symmetries: symmetries of the posterior.
        log_density: log density of the draws, ``(chains, draws)``.
    """
    own, other = _quantities(draws, particles.samples, symmetries)
    groups = [_Group.of(own, other, each) for each in chains]
    if log_density is not None and particles.log_density is not None:
        for group, each in zip(groups, chains, strict=True):
            group.own["log density"] = log_density.detach()[each].double().unsqueeze(-1)
            group.other["log density"] = particles.log_density.double().unsqueeze(-1)
    nearest = torch.stack([group.other[_DISTANCE] for group in groups]).argmin(0).squeeze(-1)
    label = _unless_apart(nearest, groups, particles.states)
    shares = torch.stack([(label == k).double().mean(1) for k in range(len(groups) + 1)], -1)
    return shares.mean(0), _errors_of_shares(shares, particles.relative_variance, particles.chains)


def _errors_of_shares(shares: Tensor, relative_variance: float, chains: float) -> Tensor:
    """Return the larger of the standard errors between runs and within them, of ``(runs, groups)``."""
    runs = len(shares)
    share = shares.mean(0)
    # One more chain is added to the group and one outside, so that a fraction of 0 has an error too.
    taken = (share * chains + 1) / (chains + 2)
    within = (share * (1 - share) * relative_variance + taken * (1 - taken) / chains).sqrt()
    return torch.maximum(within, shares.std(0) / runs**0.5) if runs > 1 else within


def _quantities(
    draws: Mapping[str, Tensor], particles: Mapping[str, Tensor], symmetries: Sequence[Symmetry]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return identified quantities of both, ``(chains, draws, entries)`` and ``(runs, particles, entries)``."""
    grouping = next(iter(draws.values())).shape[:2]
    sizes = [grouping.numel(), next(iter(particles.values())).shape[:2].numel()]
    # Computed together, because invariants choose pivot rows by the mean of all draws.
    both = {name: torch.cat([x.flatten(0, 1), particles[name].flatten(0, 1)]).unsqueeze(0) for name, x in draws.items()}
    quantities = known_quantities(both, symmetries)
    found = {name: x[0].reshape(sum(sizes), -1).double() for name, x in quantities.items() if x.numel()}
    parts = {name: x.split(sizes) for name, x in found.items()}
    runs = next(iter(particles.values())).shape[:2]
    return (
        {name: own.unflatten(0, grouping) for name, (own, _) in parts.items()},
        {name: other.unflatten(0, runs) for name, (_, other) in parts.items()},
    )


@dataclass(frozen=True)
class _Group:
    """Draws of the chains of one mode and all particles, by quantity, with the distance from the mode as a quantity."""

    own: dict[str, Tensor]
    other: dict[str, Tensor]

    @classmethod
    def of(cls, own: Mapping[str, Tensor], other: Mapping[str, Tensor], chains: Sequence[int]) -> _Group:
        mine = {name: x[chains] for name, x in own.items()}
        everything = torch.cat(list(mine.values()), -1)
        # A draw is nearer than a particle to a mean that includes it: chains are compared with other chains.
        parts = everything.tensor_split(min(len(chains), _PARTS)) if len(chains) > 1 else everything.tensor_split(2, 1)
        of_draws = torch.cat([x.flatten() for x in _distances_from_others(parts)])
        of_particles = _distance(torch.cat(list(other.values()), -1), everything.flatten(0, 1)).unsqueeze(-1)
        return cls({**mine, _DISTANCE: of_draws.reshape(*everything.shape[:2], 1)}, {**other, _DISTANCE: of_particles})


def _distances_from_others(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the distances of the draws of each part, ``(chains, draws, entries)``, from those of the others."""
    flat = [part.flatten(0, 1) for part in parts]
    for k, part in enumerate(parts):
        yield _distance(part, torch.cat([other for m, other in enumerate(flat) if m != k]))


def _distance(values: Tensor, draws: Tensor) -> Tensor:
    """Return the mean square over entries, in standard deviations of the draws, ``(..., entries)`` to ``(...)``."""
    centre, spread = draws.mean(0), draws.std(0)
    moving = spread > 0
    return ((values - centre)[..., moving] / spread[moving]).square().mean(-1)


def _unless_apart(label: Tensor, groups: Sequence[_Group], states: int) -> Tensor:
    """Return the nearest group; for particles apart from it, another group that includes them, else ``len(groups)``."""
    found = [
        find_missed_regions(group.own, group.other, label == k, states=states, false_alarms=FALSE_ALARMS / len(groups))
        for k, group in enumerate(groups)
    ]
    apart = torch.stack([each.missed for each in found]).any(0)
    inside = torch.stack([each.visited for each in found])
    another = torch.where(inside.any(0), inside.to(torch.uint8).argmax(0), len(groups))
    return torch.where(apart, another, label)
