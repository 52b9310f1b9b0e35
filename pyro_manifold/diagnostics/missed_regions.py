r"""Detection of particles in regions that no chain has visited.

The n effective draws that a chain made of an entry bound its tail beyond them: with y the distance from the median, on
a logarithmic scale, and $y_{(n)}$ the largest of the draws, the probability of a new draw beyond
$c\,y_{(n)}$ is

$$ Q_c = (E / n)^c, \qquad E \sim \operatorname{Exp}(1), $$

if the tail of the entry is a power of any index (exponential in y), and less if it is lighter, as for a normal
distribution. The probability that k or more of m particles are beyond is
$\int \Pr(\operatorname{Bin}(m, Q_c) \ge k)\,e^{-E} dE$.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

_PARTS = 10
_BEYOND = (1.2, 2.0, 3.0)  # times the distance of the furthest draw, on a logarithmic scale
FALSE_ALARMS = 0.05
_MOST_AT_ONCE = 2**23
_UNITS_OF_ROUNDING = 100
_LARGEST_EXPONENT, _GRID = 60.0, 601


class Regions(NamedTuple):
    """Particles relative to the draws of some chains, booleans ``(runs, particles)``.

    Attributes:
        missed: whether the particle is beyond the draws in some entry, with more others than chance explains.
        visited: whether the particle is within the range of the draws in every entry.
    """

    missed: Tensor
    visited: Tensor


def find_missed_regions(
    draws: Mapping[str, Tensor],
    particles: Mapping[str, Tensor],
    among: Tensor,
    *,
    states: int = 1,
    false_alarms: float = FALSE_ALARMS,
) -> Regions:
    r"""Return masks of particles apart from all draws of some chains, in some entry of some quantity.

    Each entry is transformed to $y = \operatorname{asinh}((x - \text{median}) / s)$, s half of the range of
    the central 68 %. Particles on a side of an entry are apart if they lie beyond c times the y of the furthest draw,
    for a c of 1.2, 2 or 3, and if more of them do than chance explains. If the particles are drawn from the
    distribution that the chains sample, the probability that any of them are reported as apart is at most
    ``false_alarms``: it is divided equally between quantities, and then between the entries of each.

    Args:
        draws: ``{quantity: (chains, draws, entries)}``.
        particles: ``{quantity: (runs, particles, entries)}``.
        among: which particles count, booleans ``(runs, particles)``.
        states: number of successive particles that are states of one chain, and count as one.
        false_alarms: largest probability of a false alarm.

    Examples:
        >>> import torch
        >>> random = torch.Generator().manual_seed(0)
        >>> draws, particles = torch.randn(4, 200, 50, generator=random), torch.randn(2, 100, 50, generator=random)
        >>> particles[:, :10, 7] += 20
        >>> found = find_missed_regions({"x": draws}, {"x": particles}, torch.ones(2, 100, dtype=torch.bool))
        >>> int(found.missed.sum()), bool(found.missed[:, :10].all())
        (20, True)
    """
    found = Regions(torch.zeros_like(among), torch.ones_like(among))
    for name, own in draws.items():
        chance = false_alarms / (2 * len(_BEYOND) * len(draws) * max(1, own.shape[-1]))
        for part in _of_quantity(own, particles[name], among, states, chance):
            found = Regions(found.missed | part.missed, found.visited & part.visited)
    return found


def _of_quantity(draws: Tensor, particles: Tensor, among: Tensor, states: int, chance: float) -> Iterator[Regions]:
    """Compare a quantity in parts that fit into memory, and yield the `Regions` of each."""
    width = max(1, _MOST_AT_ONCE // (draws.shape[:2].numel() + particles.shape[:2].numel()))
    for own, other in zip(draws.split(width, -1), particles.split(width, -1), strict=True):
        reach = _reach(own)
        distances, size = reach.of(other), _effective_draws(reach.of(own))
        for side, furthest in ((distances, reach.upper), (-distances, reach.lower)):
            for times in _BEYOND:
                beyond = side > times * furthest
                many = _probability(beyond & among.unsqueeze(-1), among, states, size, times) < chance
                yield Regions((beyond & many).any(-1) & among, ~beyond.any(-1))


class _Reach(NamedTuple):
    """Range of the draws of each entry, ``(entries,)``; ``upper`` and ``lower`` are on the logarithmic scale."""

    centre: Tensor
    scale: Tensor
    upper: Tensor
    lower: Tensor

    def of(self, values: Tensor) -> Tensor:
        return ((values - self.centre) / self.scale).asinh()


def _reach(draws: Tensor) -> _Reach:
    flat = draws.flatten(0, 1).sort(0).values
    low, centre, high = (flat[round(share * (len(flat) - 1))] for share in (0.16, 0.5, 0.84))
    spread = torch.where(high > low, (high - low) / 2, flat.std(0))
    # A floor for rounding, which alone must not put a particle apart, such as in row norms of orthonormal matrices. An
    # entry that does not vary is no evidence of how far it could.
    rounding = _UNITS_OF_ROUNDING * torch.finfo(torch.float32).eps ** 1.5 * centre.abs()
    scale = torch.where(flat[-1] > flat[0], torch.maximum(spread, rounding), torch.inf)
    found = _Reach(centre, scale, scale, scale)
    # A tail begins at least one scale away from the median: all draws of a bounded entry may be near it.
    least = torch.ones_like(centre).asinh()
    return found._replace(upper=found.of(flat[-1]).clamp(min=least), lower=(-found.of(flat[0])).clamp(min=least))


def _effective_draws(draws: Tensor) -> Tensor:
    """Estimate the effective number of draws from the means of tenths of all chains, ``(entries,)``."""
    parts = torch.stack([part.mean(1) for part in draws.tensor_split(_PARTS, 1)], 1).flatten(0, 1)
    total = draws.shape[:2].numel()
    found = len(parts) * draws.flatten(0, 1).var(0) / parts.var(0)
    return found.nan_to_num(nan=1.0, posinf=total).clamp(1.0, total)


def _probability(beyond: Tensor, among: Tensor, states: int, size: Tensor, times: float) -> Tensor:
    """Return the probability of at least so many particles beyond, ``(entries,)``; 1 for entries with none."""
    count = _blocks(beyond, states).flatten(0, 1).sum(0).double()
    total = float(_blocks(among.unsqueeze(-1), states).sum())
    found = torch.ones_like(count)
    there = count > 0
    if bool(there.any()):
        found[there] = _tail(count[there], total, size[there], times)
    return found


def _blocks(flags: Tensor, states: int) -> Tensor:
    """Return whether any of each ``states`` successive particles is flagged, ``(runs, blocks, entries)``."""
    return flags.unflatten(1, (-1, states)).any(2) if flags.shape[1] % states == 0 else flags


def _tail(count: Tensor, total: float, size: Tensor, times: float) -> Tensor:
    from scipy.special import betainc

    exponent = torch.linspace(0, _LARGEST_EXPONENT, _GRID, dtype=torch.float64)
    share = (exponent / size.unsqueeze(-1)).clamp(max=1) ** times
    k = count.unsqueeze(-1)
    at_least = torch.as_tensor(betainc(k.numpy(), (total - k + 1).clamp(min=1e-9).numpy(), share.numpy()))
    return torch.trapezoid(at_least * (-exponent).exp(), exponent)
