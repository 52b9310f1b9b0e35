"""Grouping of chains by the posterior mode that they sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.diagnostics.disagreement import named
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.posterior import Posterior
from pyro_manifold.diagnostics.shares import Particles, comparable_log_density, shares_of_particles
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry

_PARTS = 10
_FEWEST_DRAWS = 2 * _PARTS
_APART = 5.0  # standard deviations of the means of parts
_TAIL = 0.1  # share of the draws that may be on the other side
_MOST_ENTRIES_AT_ONCE = 2**22
_UNITS_OF_ROUNDING = 100


@dataclass(frozen=True)
class Modes:
    """Groups of chains, one for each mode found, the one of the highest log density first.

    Attributes:
        chains: indices of the chains of each group.
        shares: fraction of the chains in each group, ``(groups,)``: it depends on where they began, and is not the
            probability of a mode.
        log_density: mean log density in each group, ``(groups,)``; NaN if it was not given.
        weights: probability of each mode, estimated by the fraction of the particles of SMC that are nearest to its
            draws, ``(groups,)``; None without particles.
        weights_error: standard errors of these: the larger of the error from the variation between runs, if there are
            several, and of the error from the uncertainty of the fraction within them.
        elsewhere: fraction of the particles that are apart from the draws of all chains: a mode that no chain visits.
        elsewhere_error: standard error of it.
    """

    chains: list[list[int]]
    shares: Tensor
    log_density: Tensor
    weights: Tensor | None = None
    weights_error: Tensor | None = None
    elsewhere: float = 0.0
    elsewhere_error: float = float("nan")

    def __len__(self) -> int:
        return len(self.chains)

    def __str__(self) -> str:
        return "\n".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        for k, chains in enumerate(self.chains):
            parts = [f"mode {k}: {named(chains)} ({float(self.shares[k]):.0%})"]
            if not bool(self.log_density[k].isnan()):
                parts.append(f"log density {float(self.log_density[k]):.1f}")
            if self.weights is not None and self.weights_error is not None:
                parts.append(f"probability {float(self.weights[k]):.2f} ± {float(self.weights_error[k]):.2f}")
            yield ", ".join(parts)
        if self.elsewhere:
            yield f"no chain: probability {self.elsewhere:.2g} ± {self.elsewhere_error:.1g}"


def modes(
    draws: Mapping[str, Tensor] | Any,
    log_density: Tensor | None = None,
    *,
    symmetries: Sequence[Symmetry] = (),
    particles: Mapping[str, Tensor] | Any = None,
) -> Modes:
    r"""Group chains by mode, and return the fraction of the chains in each mode and the probability of the mode.

    Two chains are apart if in some entry of some quantity nine tenths of the draws of one are above nine tenths of the
    other's, and their means differ by more than 5 standard deviations of the means of their tenths,

    $$ |\bar x_a - \bar x_b| > 5 \sqrt{(s_a^2 + s_b^2)/2}, $$

    $s_a^2$ the variance of the means of ten successive parts of chain a. Groups are the connected components of
    the graph of chains that are not apart, so that a chain which visits two modes, for a tenth of its draws or more,
    joins them. Chains of one mode that mix slowly are rarely separated, since their tenths differ as much as the chains
    do (`python -m benchmarks.accuracy.modes.groups_of_chains` counts how often they are).

    Quantities are the sites, with the `invariants` in place of sites that have a symmetry, and the log density. Modes
    that are copies of each other by another symmetry, such as a permutation of hidden units or of mixture components,
    count as several: pass functions that do not depend on it, such as predictions or sorted means, as ``draws``.

    With ``particles`` the probability of each mode is the fraction of particles that are nearest to its draws, in mean
    squares of standard deviations. Its standard error is the larger of the variation between runs and of

    $$ \sqrt{p (1 - p) (e^{\sigma^2} - 1) + \tilde p (1 - \tilde p) / M}, $$

    $\sigma$ the `SMC.log_evidence_error` (0 for particles by name), M the number of chains of particles, and
    $\tilde p = (M p + 1) / (M + 2)$, so that a mode with all particles or none has an error too.

    Particles are in a mode that no chain visits if they lie beyond all draws of their mode in some entry of some
    quantity, in mean square over entries or in log density, and if there are more of them than chance explains. The
    probability of a false alarm, if the particles have exactly the distribution that the chains sample, is at most 5 %
    for any number of entries and for polynomial tails of any order, as far as the effective number of draws is known
    (`python -m benchmarks.accuracy.modes.unvisited`).

    Args:
        draws: ``{name: (chains, draws, ...)}``, sites or any functions of them; or a `Posterior`, or an `MCMC` that has
            run, from which log density and symmetries are taken.
        log_density: log density of each draw, ``(chains, draws)``.
        symmetries: symmetries of the posterior, as found by `MCMC.symmetries`.
        particles: ``{name: (runs, particles, ...)}`` of the same names, draws from the whole posterior, or an `SMC`
            that has run; they give the probability of each mode.

    Returns:
        `Modes`; ``print`` shows a line for each.

    Raises:
        ValueError: for fewer than 20 draws of each chain, particles of other names or shapes, or an `SMC` in place of
            chains.

    Examples:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(5, 200, generator=generator)
        >>> x[[1, 3]] += 8
        >>> found = modes({"x": x}, log_density=-x.square() / 2 - 30 * (x > 4))
        >>> print(found)
        mode 0: chains 0, 2 and 4 (60%), log density -0.5
        mode 1: chains 1 and 3 (40%), log density -63.3
    """
    posterior = Posterior.of(draws)
    whole = None if particles is None else Posterior.of(particles)
    if posterior.unit != "chains":
        raise ValueError(
            f"modes: draws is {draws!r}, expected an MCMC that has run, or draws by name; pass an SMC, whose particles "
            "are in all modes, as particles=."
        )
    log_density = posterior.log_density if log_density is None else log_density
    symmetries = symmetries or posterior.symmetries or []
    draws = {name: value.detach() for name, value in posterior.draws.items()}
    chains, length = next(iter(draws.values())).shape[:2]
    if length < _FEWEST_DRAWS:
        raise ValueError(f"modes: {length} draws of each chain, but {_FEWEST_DRAWS} are needed to distinguish modes.")
    quantities = known_quantities(draws, symmetries)
    density = {} if log_density is None else {"log density": log_density.detach()}
    groups = _connected(~_apart({**quantities, **density}, chains))
    levels = [float("nan") if log_density is None else float(log_density[group].mean()) for group in groups]
    order = sorted(range(len(groups)), key=lambda k: (-levels[k] if density else 0.0, -len(groups[k])))
    groups = [groups[k] for k in order]
    found = Modes(
        groups, torch.tensor([len(group) / chains for group in groups]), torch.tensor([levels[k] for k in order])
    )
    if whole is None:
        return found
    given = Particles.of(whole, draws, comparable_log_density(whole, posterior))
    shares, error = shares_of_particles(groups, draws, given, symmetries, log_density)
    return replace(
        found,
        weights=shares[:-1],
        weights_error=error[:-1],
        elsewhere=float(shares[-1]),
        elsewhere_error=float(error[-1]),
    )


def modes_of_run(
    draws: Mapping[str, Tensor], log_density: Tensor | None, symmetries: Callable[[], Sequence[Symmetry]]
) -> dict[str, Modes]:
    """Return the entry of `MCMC.diagnostics` on modes; symmetries are computed only if some chains seem to be apart."""
    if not draws or next(iter(draws.values())).shape[1] < _FEWEST_DRAWS:
        return {}
    found = modes(draws, log_density)
    return {"modes": modes(draws, log_density, symmetries=symmetries()) if len(found) > 1 else found}


def _apart(quantities: Mapping[str, Tensor], chains: int) -> Tensor:
    """Return which pairs of chains are apart in some quantity, ``(chains, chains)``."""
    apart = torch.zeros(chains, chains, dtype=torch.bool)
    for values in quantities.values():
        if not values.is_floating_point() or not values.numel():
            continue
        flat = values.reshape(*values.shape[:2], -1).double().cpu()
        for entries in flat.split(max(1, _MOST_ENTRIES_AT_ONCE // (chains * max(chains, flat.shape[1]))), -1):
            apart |= _apart_in(entries)
    return apart


def _apart_in(values: Tensor) -> Tensor:
    """Return which pairs of chains are apart in some entry of ``(chains, draws, entries)``, ``(chains, chains)``."""
    means = values.mean(1)
    parts = torch.stack([part.mean(1) for part in values.tensor_split(_PARTS, 1)], 1)
    # A floor for rounding, which alone must not separate chains, such as in row norms of orthonormal matrices.
    rounding = _UNITS_OF_ROUNDING * torch.finfo(torch.float32).eps ** 1.5 * means.abs()
    variance = parts.var(1) + rounding.square()
    distance = means.unsqueeze(1) - means.unsqueeze(0)
    within = ((variance.unsqueeze(1) + variance.unsqueeze(0)) / 2).sqrt()
    low, high = (values.kthvalue(max(1, round(share * values.shape[1])), 1).values for share in (_TAIL, 1 - _TAIL))
    above = (distance > _APART * within) & (low.unsqueeze(1) > high.unsqueeze(0))
    return (above | above.transpose(0, 1)).any(-1)


def _connected(together: Tensor) -> list[list[int]]:
    """Return the connected components of a graph, ``(nodes, nodes)`` booleans."""
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(together.numpy(), directed=False)
    return [[int(k) for k in (labels == group).nonzero()[0]] for group in range(count)]
