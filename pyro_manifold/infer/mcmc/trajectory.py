"""How many leapfrog steps each trajectory takes."""

from __future__ import annotations

from dataclasses import dataclass

MAXIMUM_STEPS = 1024
MAXIMUM_STEPS_BEFORE_MASSES = 16
"""Long trajectories are wasted while the masses are still those of the start."""

_GOLDEN_RATIO = (1 + 5**0.5) / 2


@dataclass
class TrajectoryLength:
    """Lengths spread evenly around their mean, lest they resonate with a periodic orbit.

    The spread follows a golden-ratio sequence: it fills an interval more evenly than random numbers, and needs none.

    Attributes:
        mean: mean integration time.
        jitter: lengths lie within this share of the mean.
        num_steps: the number of steps that was asked for, if one was.
    """

    mean: float
    jitter: float
    num_steps: int | None = None

    def steps(self, step_size: float, iteration: int, masses_adapted: bool = True) -> int:
        """Number of leapfrog steps of one trajectory."""
        phase = (iteration * _GOLDEN_RATIO) % 1
        count = self.steps_of(self.mean * (1 + self.jitter * (2 * phase - 1)), step_size)
        longest = max(MAXIMUM_STEPS, self.num_steps or 0) if masses_adapted else MAXIMUM_STEPS_BEFORE_MASSES
        return min(count, longest)

    @staticmethod
    def steps_of(length: float, step_size: float) -> int:
        # A hair is added before rounding down: (ε·k)/ε may fall short of k.
        return max(1, int(length / step_size + 1e-6))
