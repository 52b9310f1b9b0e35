"""What trajectories of many lengths did: how far they moved each functional, and how far that is of its spread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.saving import Plain, Saved, check_entries, plain, restored


@dataclass
class Jumps(Saved):
    """Sums over the iterations whose lengths fell into one bin.

    Attributes:
        count: iterations.
        steps: leapfrog steps.
        moments: mean over chains of fourth powers of the jumps of coordinates, then of the square of the energy's.
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
    """The transitions of one window of warm-up.

    Args:
        functionals: ``(chains, functionals)``, for shapes; all coordinates, then the energy.

    Attributes:
        iterations: how many.
        jumps: of each bin of lengths.
        squares: sum of the squared deviations of each functional from the mean of its chain, mean over chains.
    """

    changing = ("iterations", "_means", "squares")

    def __init__(self, functionals: Tensor) -> None:
        self.iterations = 0
        self.jumps: dict[int, Jumps] = {}
        self._means = torch.zeros_like(functionals)
        self.squares = torch.zeros_like(functionals[0])

    def add(self, index: int, num_steps: int, previous: Tensor, values: Tensor) -> None:
        """File one transition of all chains under the bin of this number."""
        self.iterations += 1
        deviation = values - self._means
        self._means = self._means + deviation / self.iterations
        self.squares = self.squares + (deviation * (values - self._means)).mean(0)
        jump = (values - previous).square()
        moments = torch.cat([jump[:, :-1].square(), jump[:, -1:]], 1).mean(0)
        self.jumps.setdefault(index, self._none()).add(1, num_steps, moments)

    def _none(self) -> Jumps:
        return Jumps(0, 0, torch.zeros_like(self.squares))

    def state_dict(self) -> dict[str, Plain]:
        return {**super().state_dict(), "jumps": plain(self.jumps)}

    def load_state_dict(self, saved: dict[str, Plain]) -> None:
        check_entries(saved, ["jumps"], "the transitions of many lengths")
        super().load_state_dict(saved)
        check_entries(saved["jumps"], (), "the jumps of lengths")
        jumps = {int(index): self._none() for index in saved["jumps"]}
        self.jumps = restored(jumps, saved["jumps"], "jumps")


def of_all(windows: Iterable[Transitions]) -> tuple[dict[int, Jumps], Tensor]:
    """Jumps of several windows by the bins of their lengths, and variances within chains and windows."""
    windows = [window for window in windows if window.iterations]
    jumps: dict[int, Jumps] = {}
    for window in windows:
        for index, found in window.jumps.items():
            total = jumps.setdefault(index, Jumps(0, 0, torch.zeros_like(found.moments)))
            total.add(found.count, found.steps, found.moments)
    squares = torch.stack([window.squares for window in windows]).sum(0)
    return jumps, squares / max(1, sum(window.iterations - 1 for window in windows))
