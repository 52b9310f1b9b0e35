"""Which chains are in one mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.disagreement import named
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.symmetries import Symmetry

_PARTS = 10
_FEWEST_DRAWS = 2 * _PARTS
_APART = 5.0  # standard deviations of the means of parts
_TAIL = 0.1  # share of the draws that may be on the other side
_ELSEWHERE = 1.5  # times the distance of the furthest draw of a mode
_MOST_ENTRIES_AT_ONCE = 2**22
_UNITS_OF_ROUNDING = 100


@dataclass(frozen=True)
class Modes:
    """Groups of chains that do not meet, the one of the highest log density first.

    Attributes:
        chains: the numbers of the chains of each group.
        shares: of the chains that are in each group, ``(groups,)``: where they began, not how probable a mode is.
        log_density: mean in each group, ``(groups,)``; NaN if it was not given.
        weights: the probability of each mode, the share of particles of SMC that are nearest to its draws,
            ``(groups,)``; None without particles.
        weights_error: standard errors of these, by what runs of SMC differ; NaN for a single run.
        elsewhere: share of the particles that are near no draw of any chain: a mode that no chain has met.
    """

    chains: list[list[int]]
    shares: Tensor
    log_density: Tensor
    weights: Tensor | None = None
    weights_error: Tensor | None = None
    elsewhere: float = 0.0

    def __len__(self) -> int:
        return len(self.chains)

    def __str__(self) -> str:
        return "\n".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        for k, chains in enumerate(self.chains):
            said = [f"mode {k}: {named(chains)} ({float(self.shares[k]):.0%})"]
            if not bool(self.log_density[k].isnan()):
                said.append(f"log density {float(self.log_density[k]):.1f}")
            if self.weights is not None and self.weights_error is not None:
                said.append(f"probability {float(self.weights[k]):.2f} ± {float(self.weights_error[k]):.2f}")
            yield ", ".join(said)
        if self.elsewhere:
            yield f"no chain: probability {self.elsewhere:.2f}"


def modes(
    draws: Mapping[str, Tensor] | Any,
    log_density: Tensor | None = None,
    *,
    symmetries: Sequence[Symmetry] = (),
    particles: Mapping[str, Tensor] | Any = None,
) -> Modes:
    r"""Group chains by mode, and say what share of the chains is in each, and how probable it is.

    Two chains are apart if in some entry of some quantity nine tenths of the draws of one are above nine tenths of the
    other's, and their means differ by more than 5 standard deviations of the means of their tenths,

    .. math:: |\bar x_a - \bar x_b| > 5 \sqrt{(s_a^2 + s_b^2)/2},

    :math:`s_a^2` the variance of the means of ten successive parts of chain a. Groups are what remains connected by
    chains that are not apart, so that a chain which visits two modes, for a tenth of its draws or more, joins them.
    Chains of one mode that mix so slowly that they seem apart have tenths that differ as much as they do (`python -m
    benchmarks.groups_of_chains` counts how seldom they are told apart).

    Quantities are the sites, for those with a symmetry what it does not change (`invariants`), and the log density.
    Modes that are copies of each other by a symmetry that is not named, such as of hidden units or of the components of
    a mixture, count as several: give what does not depend on it, such as predictions or sorted means, as ``draws``.

    Args:
        draws: ``{name: (chains, draws, ...)}``, sites or any functions of them; or an `MCMC` of this package that has
            run, which knows its log density and its symmetries.
        log_density: of each draw, ``(chains, draws)``.
        symmetries: of the posterior, as `MCMC.symmetries` finds them.
        particles: ``{name: (runs, particles, ...)}`` of the same names, draws from all of the posterior, or an `SMC`
            that has run: then each mode has a probability.

    Raises:
        ValueError: for fewer than 20 draws of each chain, particles of other names, or an `SMC` in place of chains.

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(5, 200, generator=generator)
        >>> x[[1, 3]] += 8
        >>> found = modes({"x": x}, log_density=-x.square() / 2 - 30 * (x > 4))
        >>> print(found)
        mode 0: chains 0, 2 and 4 (60%), log density -0.5
        mode 1: chains 1 and 3 (40%), log density -63.3
    """
    if not isinstance(draws, Mapping):
        if not hasattr(draws, "get_extra_fields"):
            raise ValueError(
                f"modes: draws is {draws!r}, expected an MCMC of this package that has run, or draws by name; an SMC, "
                "whose particles are in all modes, goes with them as particles=."
            )
        mcmc, draws = draws, draws.get_samples(group_by_chain=True)
        log_density = mcmc.get_extra_fields(group_by_chain=True).get("lp") if log_density is None else log_density
        symmetries = symmetries or mcmc.symmetries()
    draws = {name: value.detach() for name, value in draws.items()}
    chains, length = next(iter(draws.values())).shape[:2]
    if length < _FEWEST_DRAWS:
        raise ValueError(f"modes: {length} draws of each chain, but {_FEWEST_DRAWS} are needed to tell modes apart.")
    quantities = known_quantities(draws, symmetries)
    density = {} if log_density is None else {"log density": log_density.detach()}
    groups = _connected(~_apart({**quantities, **density}, chains))
    levels = [float("nan") if log_density is None else float(log_density[group].mean()) for group in groups]
    order = sorted(range(len(groups)), key=lambda k: (-levels[k] if density else 0.0, -len(groups[k])))
    groups = [groups[k] for k in order]
    found = Modes(
        groups, torch.tensor([len(group) / chains for group in groups]), torch.tensor([levels[k] for k in order])
    )
    return found if particles is None else _weighed(found, draws, particles, symmetries)


def modes_of_run(
    draws: Mapping[str, Tensor], log_density: Tensor | None, symmetries: Callable[[], Sequence[Symmetry]]
) -> dict[str, Modes]:
    """What `MCMC.diagnostics` says of modes; symmetries are asked for only where chains seem to be apart."""
    if not draws or next(iter(draws.values())).shape[1] < _FEWEST_DRAWS:
        return {}
    found = modes(draws, log_density)
    return {"modes": modes(draws, log_density, symmetries=symmetries()) if len(found) > 1 else found}


def _apart(quantities: Mapping[str, Tensor], chains: int) -> Tensor:
    """Which pairs of chains are apart in some quantity, ``(chains, chains)``."""
    apart = torch.zeros(chains, chains, dtype=torch.bool)
    for values in quantities.values():
        if not values.is_floating_point() or not values.numel():
            continue
        flat = values.reshape(*values.shape[:2], -1).double().cpu()
        for entries in flat.split(max(1, _MOST_ENTRIES_AT_ONCE // (chains * max(chains, flat.shape[1]))), -1):
            apart |= _apart_in(entries)
    return apart


def _apart_in(values: Tensor) -> Tensor:
    """Of ``(chains, draws, entries)``."""
    means = values.mean(1)
    parts = torch.stack([part.mean(1) for part in values.tensor_split(_PARTS, 1)], 1)
    # Rounding alone does not tell chains apart, as in row norms of orthonormal matrices.
    rounding = _UNITS_OF_ROUNDING * torch.finfo(torch.float32).eps ** 1.5 * means.abs()
    variance = parts.var(1) + rounding.square()
    distance = means.unsqueeze(1) - means.unsqueeze(0)
    within = ((variance.unsqueeze(1) + variance.unsqueeze(0)) / 2).sqrt()
    low, high = (values.kthvalue(max(1, round(share * values.shape[1])), 1).values for share in (_TAIL, 1 - _TAIL))
    above = (distance > _APART * within) & (low.unsqueeze(1) > high.unsqueeze(0))
    return (above | above.transpose(0, 1)).any(-1)


def _connected(together: Tensor) -> list[list[int]]:
    """Connected components of a graph, ``(nodes, nodes)`` booleans."""
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(together.numpy(), directed=False)
    return [[int(k) for k in (labels == group).nonzero()[0]] for group in range(count)]


def _weighed(found: Modes, draws: Mapping[str, Tensor], particles: Any, symmetries: Sequence[Symmetry]) -> Modes:
    """Each particle goes to the mode whose draws it is nearest to, in standard deviations of each quantity."""
    if not isinstance(particles, Mapping):
        particles = particles.get_samples(group_by_chain=True)
    if set(particles) != set(draws):
        raise ValueError(f"modes: particles are of {sorted(particles)}, but draws of {sorted(draws)}.")
    chains, length = next(iter(draws.values())).shape[:2]
    runs = len(next(iter(particles.values())))
    # Together, because invariants choose rows by the mean of all that they see.
    both = {name: torch.cat([x.flatten(0, 1), particles[name].flatten(0, 1)]).unsqueeze(0) for name, x in draws.items()}
    quantities = [x[0].reshape(x.shape[1], -1).double() for x in known_quantities(both, symmetries).values()]
    own, other = torch.cat(quantities, -1).split([chains * length, len(both[next(iter(both))][0]) - chains * length])
    distances, furthest = [], []
    for group in found.chains:
        mine = own.unflatten(0, (chains, length))[group].flatten(0, 1)
        centre, spread = mine.mean(0), mine.std(0)
        moving = spread > 0
        distances.append(((other - centre)[:, moving] / spread[moving]).square().mean(-1))
        furthest.append(((mine - centre)[:, moving] / spread[moving]).square().mean(-1).max())
    nearest = torch.stack(distances, -1).min(-1)
    near = nearest.values <= _ELSEWHERE * torch.stack(furthest)[nearest.indices]
    label = torch.where(near, nearest.indices, len(found)).unflatten(0, (runs, -1))
    shares = torch.stack([(label == k).double().mean(1) for k in range(len(found) + 1)], -1)
    error = shares.std(0) / runs**0.5 if runs > 1 else torch.full_like(shares[0], torch.nan)
    return Modes(
        found.chains,
        found.shares,
        found.log_density,
        shares.mean(0)[:-1],
        error[:-1],
        float(shares.mean(0)[-1]),
    )
