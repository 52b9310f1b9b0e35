"""Adapter of coordinates: how far the sites of a location-scale family are centred, chosen from states of warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from pyro_manifold.density import CENTREDNESS, CentredTarget, Sites
from pyro_manifold.infer.mcmc.adaptation.adapter import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings
from pyro_manifold.infer.mcmc.transitions import Blocks, Layout, Potential
from pyro_manifold.store import Serialisable, check_entries

K = TypeVar("K")

_FIRST_WINDOW = 2  # before, chains are on their way, and what the data determine is not known
_MOST_STATES = 100  # of a window, from which c is chosen
_MOST_EVALUATED = 32  # at which the density is evaluated in other coordinates
_CANDIDATES = 11
_SHARES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Bounds of groups of draws of similar scale, as shares of all draws."""

_DEVIATIONS = 4.0
"""Depth of the neck that is looked into, in standard deviations of the log scale below its mean."""

_LEAST_GAIN = 0.1
"""Smallest reduction of the log of the narrowness for which coordinates are changed."""


class Recentred(NamedTuple):
    """States of a window in other coordinates.

    Attributes:
        centredness: c of all elements, ``(elements,)``.
        positions: the positions, each of all chains.
        gradients: their gradients.
    """

    centredness: Tensor
    positions: list[Blocks]
    gradients: list[Blocks]


class Centring(Adapter[HamiltonianSettings]):
    r"""Centredness c of the sites of location-scale families, chosen at the ends of windows.

    Chains begin as the model is written, and c is chosen for each site from the states of a window. Where the
    coordinate x' is narrow, the square of its gradient is large, and a trajectory needs small steps there; but it has
    to cross the whole range of x'. So c minimises the mean over elements of

    $$ \log \mathrm{Var}\,x' + \log \max_k E\big[(\partial U / \partial x')^2 \mid \text{group } k\big], $$

    groups of draws of similar scale, from the 5 % of the smallest to the 5 % of the largest. One more group is the neck
    that chains have not reached, at a scale four standard deviations of its logarithm below the mean: the curvature
    there is $\mathrm{scale}^{-2}$ plus that of the data. The sum is 0 for independent Gaussian coordinates, and grows
    with the neck of a funnel however few draws are in it. All of it follows from draws
    and gradients at one c:

    $$ x' = c\,\mathrm{loc} + (x - \mathrm{loc})\,\mathrm{scale}^{c - 1}, \qquad
       \frac{\partial U}{\partial x'} = \mathrm{scale}^{1 - c}\,\frac{\partial U}{\partial x}. $$

    In new coordinates chains reach further into a neck, so that the choice is made again in each window.

    Args:
        target: the density, in coordinates that can be centred.
        layout: blocks of sites.
        potential: energies and gradients of all chains.
        windows: windows of warm-up.

    Attributes:
        window_ended: whether a window has ended from whose states c is to be chosen.
    """

    def __init__(self, target: CentredTarget, layout: Layout, potential: Potential, windows: Sequence[range]) -> None:
        self._target, self._layout, self._potential, self._windows = target, layout, potential, windows
        self._states: list[tuple[Blocks, Blocks]] = []
        self.window_ended = False

    def learn(self, seen: WarmUpIteration) -> None:
        window = self._windows[seen.window]
        if self._chooses_in(seen.window) and (seen.number - window.start) % -(-len(window) // _MOST_STATES) == 0:
            self._states.append((seen.after.position, seen.after.gradient))

    def end_window(self, seen: WarmUpIteration) -> None:
        self.window_ended = self._chooses_in(seen.window)

    def _chooses_in(self, window: int) -> bool:
        return _FIRST_WINDOW <= window < len(self._windows) - 1

    def choose(self) -> Recentred | None:
        """Choose c from the states of the window that has ended; None to leave the coordinates as they are."""
        parts = zip(*self._states, strict=True)
        positions, gradients = ([self._layout.unpack(each) for each in part] for part in parts)
        position, gradient = stacked(positions), stacked(gradients)
        present = position[CENTREDNESS][0, 0]
        sites = self._target.sites(position)
        chosen = self._chosen(sites, gradient, self._target.by_site(present))
        if torch.equal(chosen, present):
            return None
        found = self._evaluated(sites, chosen)
        finite = all(bool(x.isfinite().all()) for each in found.gradients for x in each.values())
        return found if finite else None

    def begin_window(self) -> None:
        """Forget the states of the window that has ended."""
        self._states, self.window_ended = [], False

    def _chosen(self, sites: Sites, gradient: Sites, present: Sites) -> Tensor:
        """Return the c of all elements, from sites as written and gradients in present coordinates."""
        candidates, found = torch.linspace(0, 1, _CANDIDATES), {}
        for name, (loc, scale) in self._target.locations_and_scales(sites).items():
            now = present[name]
            slope = gradient[name] * scale ** (now - 1)

            def cost(c: Tensor | float, of: tuple[Tensor, ...] = (sites[name], slope, loc, scale)) -> Tensor:
                x, slope, loc, scale = of
                return narrowness(x, slope, loc, scale, c).mean().nan_to_num(nan=torch.inf)

            costs = torch.stack([cost(float(c)) for c in candidates])
            better = bool(costs.min() < cost(now) - _LEAST_GAIN)
            found[name] = torch.full_like(now, float(candidates[costs.argmin()])) if better else now
        return self._target.together(found)

    def _evaluated(self, sites: Sites, centredness: Tensor) -> Recentred:
        """Return some of the states in other coordinates, with gradients there."""
        states, chains = next(iter(sites.values())).shape[:2]
        places = torch.linspace(0, states - 1, min(states, _MOST_EVALUATED)).long()
        some = {name: x[places] for name, x in sites.items()}
        moved = self._target.at(some, centredness.expand(len(places), chains, -1))
        positions = [
            self._layout.pack({name: x[k].contiguous() for name, x in moved.items()}) for k in range(len(places))
        ]
        return Recentred(centredness, positions, [self._potential(each)[1] for each in positions])

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the states of the present window."""
        parts = zip(("positions", "gradients"), zip(*self._states, strict=True), strict=False)
        states = {name: {str(block): x for block, x in stacked(part).items()} for name, part in parts}
        return {"window_ended": self.window_ended, "states": states}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore the states of a window."""
        check_entries(saved, ("window_ended", "states"), type(self).__name__)
        blocks, states = self._layout.blocks, saved["states"]
        columns = [[states[part][str(block)].unbind() for block in blocks] for part in sorted(states, reverse=True)]
        parts = [[dict(zip(blocks, row, strict=True)) for row in zip(*column, strict=True)] for column in columns]
        self._states, self.window_ended = [*zip(*parts, strict=True)], bool(saved["window_ended"])


def narrowness(x: Tensor, slope: Tensor, loc: Tensor, scale: Tensor, c: Tensor | float) -> Tensor:
    """Return the cost of a centredness for each element; see `Centring`.

    Args:
        x: coordinates as written, ``(states, chains, ...)``.
        slope: gradients of the potential energy with respect to them.
        loc: locations, with other sites the values in each state.
        scale: scales.
        c: the centredness.
    """
    position = c * loc + (x - loc) * scale ** (c - 1)
    squares, scales = slope.square().flatten(0, 1), scale.flatten(0, 1)
    order = scales.argsort(0)
    curvatures = (squares * scales ** (2 - 2 * c)).gather(0, order)
    bounds = [round(share * len(squares)) for share in _SHARES]
    groups = torch.stack([curvatures[low:high].mean(0) for low, high in pairwise(bounds) if high > low])
    weights = scales**4
    of_data = ((weights * squares - scales**2).sum(0) / weights.sum(0)).clamp(min=0)
    log_scales = scales.log()
    smallest = (log_scales.mean(0) - _DEVIATIONS * log_scales.std(0)).exp()
    neck = smallest ** (2 - 2 * c) * (smallest**-2 + of_data)
    return position.var(0).mean(0).log() + torch.maximum(groups.amax(0), neck).log()


def stacked(parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
    """Return tensors by name from a sequence of them, stacked along a new first dimension."""
    return {name: torch.stack([each[name] for each in parts]) for name in parts[0]}
