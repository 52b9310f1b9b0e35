r"""Adapter of coordinates: how far the sites of a location-scale family are centred, chosen from states of warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.density import CENTREDNESS, CentredTarget, Sites
from pyro_manifold.infer.mcmc.adaptation.adapter import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings
from pyro_manifold.infer.mcmc.transitions import Blocks, Layout, Potential
from pyro_manifold.store import Serialisable

_STATES = 100  # of a window, from which c is chosen
_EVALUATED = 32  # states at which the density is evaluated in other coordinates
_FIRST_WINDOW = 2
_GRID = 11
_SHARES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Bounds of groups of draws of similar scale, as shares of all draws."""


class Recentred(NamedTuple):
    """States of a window in other coordinates.

    Attributes:
        centredness: c, ``(elements,)``.
        positions: their positions, each of all chains.
        gradients: their gradients.
    """

    centredness: Tensor
    positions: list[Blocks]
    gradients: list[Blocks]


class Centring(Adapter[HamiltonianSettings]):
    r"""Centredness c of each element of the sites of a location-scale family, chosen at the ends of windows.

    An element whose coordinate x' is nearly independent of its location and scale, with a Gaussian distribution, has
    $\mathrm{Var}\,x' \cdot \mathrm{Var}\,\partial U / \partial x' = 1$, and else a larger product: the variance of the
    gradient is that of a neck, in which a step has to be small. Both are known for each c from draws and gradients of
    one: $x' = c\,\mathrm{loc} + (x - \mathrm{loc})\,\mathrm{scale}^{c - 1}$ and
    $\partial U / \partial x' = \mathrm{scale}^{1 - c}\,\partial U / \partial x$.

    Args:
        target: the density, in coordinates that can be centred.
        layout: blocks of sites.
        potential: energies and gradients of all chains.
        windows: windows of warm-up.
    """

    def __init__(
        self, target: CentredTarget, layout: Layout, potential: Potential, windows: Sequence[range]
    ) -> None:
        self._target, self._layout, self._potential, self._windows = target, layout, potential, windows
        self._states: list[tuple[Blocks, Blocks]] = []
        self.window_ended = False

    def learn(self, seen: WarmUpIteration) -> None:
        window = self._windows[seen.window]
        if self._chooses_in(seen.window) and (seen.number - window.start) % max(1, len(window) // _STATES) == 0:
            self._states.append((seen.after.position, seen.after.gradient))

    def end_window(self, seen: WarmUpIteration) -> None:
        self.window_ended = self._chooses_in(seen.window)

    def _chooses_in(self, window: int) -> bool:
        return _FIRST_WINDOW <= window < len(self._windows) - 1

    def choose(self) -> Recentred | None:
        """Choose c from the states of the window that has ended; None to leave the coordinates as they are."""
        states, self._states, self.window_ended = self._states, [], False
        positions, gradients = ([self._layout.unpack(each) for each in part] for part in zip(*states, strict=True))
        stacked, gradient = _stacked(positions), _stacked(gradients)
        present = stacked[CENTREDNESS][0, 0]
        sites = self._target.sites(stacked)
        chosen = self._proposed(sites, gradient, present)
        if torch.equal(chosen, present):
            return None
        return self._evaluated(sites, chosen)

    def _proposed(self, sites: Sites, gradient: Sites, present: Tensor) -> Tensor:
        """Return the c of each element that makes the narrowest part of its site widest."""
        now, grid = self._target.by_site(present), torch.linspace(0, 1, _GRID).to(present)
        found: Sites = {}
        for name, (loc, scale) in self._target.locations_and_scales(sites).items():
            slope = gradient[name] * scale ** (now[name] - 1)
            curve = torch.stack([_narrowness(sites[name], slope, loc, scale, c) for c in grid])
            found[name] = _best(curve, grid, now[name])
        return self._target.together(found)

    def _evaluated(self, sites: Sites, centredness: Tensor) -> Recentred:
        """Return some of the states in other coordinates."""
        count = len(next(iter(sites.values())))
        places = torch.linspace(0, count - 1, min(count, _EVALUATED)).long().unique()
        chains = sites[next(iter(sites))].shape[1]
        some = {name: x[places] for name, x in sites.items()}
        moved = self._target.at(some, centredness.expand(len(places), chains, -1))
        positions = [self._layout.pack({name: x[k].contiguous() for name, x in moved.items()}) for k in range(len(places))]
        return Recentred(centredness, positions, [self._potential(each)[1] for each in positions])

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the states of the present window."""
        parts = {"positions": [p for p, _ in self._states], "gradients": [g for _, g in self._states]}
        return {name: {str(block): x for block, x in _stacked(part).items()} for name, part in parts.items() if part}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        """Restore the states of a window."""
        self._states = []
        if saved:
            blocks = {str(block): block for block in self._layout.blocks}
            parts = [{blocks[name]: x for name, x in saved[part].items()} for part in ("positions", "gradients")]
            count = len(next(iter(parts[0].values())))
            self._states = [({b: x[k] for b, x in parts[0].items()}, {b: x[k] for b, x in parts[1].items()}) for k in range(count)]


def _narrowness(x: Tensor, slope: Tensor, loc: Tensor, scale: Tensor, c: Tensor) -> Tensor:
    """Return the log of the largest curvature among draws of similar scale, relative to all draws, for each element."""
    position = c * loc + (x - loc) * scale ** (c - 1)
    squares = (slope * scale ** (1 - c)).square().flatten(0, 1)
    squares = squares.gather(0, scale.flatten(0, 1).argsort(0))
    edges = [round(share * len(squares)) for share in _SHARES]
    curvature = torch.stack([squares[low:high].mean(0) for low, high in pairwise(edges) if high > low]).amax(0)
    return position.var(0).mean(0).log() + curvature.log()


def _best(curve: Tensor, grid: Tensor, present: Tensor) -> Tensor:
    total = curve.flatten(1).mean(1)
    best = grid[total.nan_to_num(nan=torch.inf).argmin()]
    return best.expand(present.shape)


def _stacked(each: Sequence[Mapping]) -> dict:
    return {name: torch.stack([one[name] for one in each]) for name in (each[0] if each else {})}
