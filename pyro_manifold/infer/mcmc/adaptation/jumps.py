"""Jumps of trajectories binned by their lengths: moments of the change in each functional, and its variance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.store import Saved, Serialisable, check_entries, plain, restored


@dataclass
class Jumps(Saved):
    """Sums over the iterations whose trajectory length is in one bin.

    Attributes:
        count: number of iterations.
        steps: number of leapfrog steps.
        moments: means over chains of the fourth power of each coordinate's jump, then of the square of the energy's.
    """

    changing = ("count", "steps", "moments")

    count: int
    steps: int
    moments: Tensor

    def add(self, count: int, steps: int, moments: Tensor) -> None:
        self.count += count
        self.steps += steps
        self.moments = self.moments + moments


class Transitions(Saved):
    """Statistics of the transitions in one window of warm-up.

    Args:
        functionals: ``(chains, functionals)``, used for its shape; all coordinates, then the energy.

    Attributes:
        iterations: number of iterations.
        jumps: sums for each bin of lengths.
        squares: sum of squared deviations of each functional from the mean of its chain, averaged over chains.
    """

    changing = ("iterations", "_means", "squares")

    def __init__(self, functionals: Tensor) -> None:
        self.iterations = 0
        self.jumps: dict[int, Jumps] = {}
        self._means = torch.zeros_like(functionals)
        self.squares = torch.zeros_like(functionals[0])

    def add(
        self, bins: Sequence[int], steps: Sequence[int], previous: Tensor, values: Tensor, moved: Tensor | None = None
    ) -> None:
        """Add several transitions of all chains, which costs hardly more than one.

        Args:
            bins: index of the bin of each transition.
            steps: its number of leapfrog steps.
            previous: functionals before each transition, ``(transitions, chains, functionals)``.
            values: functionals after it.
            moved: chains that were moved by the trajectory alone, ``(transitions, chains)``, whose jumps count; None
                for all.
        """
        added, mean = len(bins), values.mean(0)
        self.iterations += added
        shift = mean - self._means
        between = shift.square() * (added * (1 - added / self.iterations))
        self._means = self._means + shift * (added / self.iterations)
        self.squares = self.squares + ((values - mean).square().sum(0) + between).mean(0)
        jumps = (values - previous).square()
        moments = torch.cat([jumps[..., :-1].square(), jumps[..., -1:]], -1)
        if moved is None:
            moments, counted = moments.mean(1), [True] * added
        else:
            share = 1 / moved.sum(1).clamp(min=1).to(moments.dtype)
            moments = torch.where(moved.unsqueeze(2), moments, 0.0).sum(1) * share.unsqueeze(1)
            counted = moved.any(1).tolist()
        for index in sorted(set(bins)):
            rows = [row for row in range(added) if bins[row] == index and counted[row]]
            if rows:
                filed = self.jumps.setdefault(index, self._none())
                filed.add(len(rows), sum(steps[row] for row in rows), moments[rows].sum(0))

    def _none(self) -> Jumps:
        return Jumps(0, 0, torch.zeros_like(self.squares))

    def state_dict(self) -> dict[str, Serialisable]:
        return {**super().state_dict(), "jumps": plain(self.jumps)}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        check_entries(saved, ["jumps"], "the transitions of many lengths")
        super().load_state_dict(saved)
        check_entries(saved["jumps"], (), "the jumps of lengths")
        jumps = {int(index): self._none() for index in saved["jumps"]}
        self.jumps = restored(jumps, saved["jumps"], "jumps")


def of_all(windows: Iterable[Transitions]) -> tuple[dict[int, Jumps], Tensor]:
    """Combine several windows: jumps by length bin, and variances within chains and windows."""
    windows = [window for window in windows if window.iterations]
    jumps: dict[int, Jumps] = {}
    for window in windows:
        for index, found in window.jumps.items():
            total = jumps.setdefault(index, Jumps(0, 0, torch.zeros_like(found.moments)))
            total.add(found.count, found.steps, found.moments)
    squares = torch.stack([window.squares for window in windows]).sum(0)
    return jumps, squares / max(1, sum(window.iterations - 1 for window in windows))
