"""Adaptation of the step size, by a search for its order of magnitude and dual averaging."""

from __future__ import annotations

import math
from collections.abc import Callable

from pyro.ops.dual_averaging import DualAveraging

from pyro_manifold.store import Saved, Serialisable, check_entries, restored

FEWEST_STEPS = 10
_GAMMA = 0.05  # for four chains or more, as in Stan and Pyro for one
_ACCEPTANCE_OF_FIRST_STEP = 0.8  # threshold of the search, as in Stan


class DualAveragingStepSize(Saved):
    """Step size ε: initial search, dual averaging, and its final value after warm-up.

    log ε is adapted by Nesterov's dual averaging as in Pyro (t₀ = 10, κ = 0.75, and γ = 0.05 for four chains or more),
    but centred at log ε₀ of the search in place of log 10ε₀. With the latter, the first iterations of each window
    overshoot to steps so long that nothing is accepted, and then to steps so short that a trajectory has a thousand of
    them. Early iterations still use steps far from ε₀, which influence the average for some iterations. After a window
    of fewer than 10 iterations, half the step size at which the search crossed its threshold is therefore used instead.

    The acceptance probability of one chain varies twice as much as the mean of four. With γ = 0.05, log ε would then
    vary so much that its average after 50 iterations is 0.2 below the value for the target, since the acceptance
    probability falls faster for large ε than it rises for small ones. For one chain γ is 0.1, and the average 0.07
    below.

    Source: Hoffman & Gelman, The No-U-Turn sampler, JMLR 2014, section 3.2.

    Args:
        step_size: initial ε.
        target: target acceptance probability.
        bounds: smallest and largest ε.
        chains: number of chains whose mean acceptance probability is given.

    Attributes:
        value: current ε, before bounds are applied.
        target: target acceptance probability.
    """

    changing = ("value", "_found")

    def __init__(self, step_size: float, target: float, bounds: tuple[float, float], chains: int = 4) -> None:
        self.target, self._bounds = target, bounds
        self._averaging = DualAveraging(gamma=_GAMMA * max(1.0, (4 / chains) ** 0.5))
        self.restart(float(step_size))

    def restart(self, step_size: float) -> None:
        """Restart dual averaging from a step size."""
        self.value = self._found = step_size
        self._averaging.prox_center = math.log(step_size)
        self._averaging.reset()

    def bounded(self, longest: float) -> float:
        """Return ε within its bounds and at most the trajectory length: on a flat target every ε would be accepted."""
        smallest, largest = self._bounds
        return max(smallest, min(self.value, largest, longest))

    def search(self, acceptance_of_one_step: Callable[[float], float], longest: float) -> None:
        """Double or halve ε until the mean acceptance probability of a single step crosses 0.8, as in Stan."""
        smallest, largest = self._bounds[0], min(self._bounds[1], longest)
        step_size = self.bounded(longest)
        growing = acceptance_of_one_step(step_size) > _ACCEPTANCE_OF_FIRST_STEP
        grow = growing
        while grow == growing:
            following = step_size * (2.0 if growing else 0.5)
            if not smallest <= following <= largest:
                break
            step_size = following
            grow = acceptance_of_one_step(step_size) > _ACCEPTANCE_OF_FIRST_STEP
        self.restart(step_size)

    @property
    def typical(self) -> float:
        """Smoothed ε: the dual average, weighted with the result of the search while there are few iterations."""
        trust = self._averaging._t / (self._averaging._t + FEWEST_STEPS)
        return math.exp((1 - trust) * math.log(self._found / 2) + trust * self._averaging._x_avg)

    def update(self, acceptance_probability: float) -> None:
        """Adapt to the mean acceptance probability of one iteration."""
        self._averaging.step(self.target - acceptance_probability)
        self.value = math.exp(self._averaging.get_state()[0])

    def settle(self) -> None:
        """End the adaptation and set ε to its final value."""
        enough = self._averaging._t >= FEWEST_STEPS
        self.value = math.exp(self._averaging.get_state()[1]) if enough else self._found / 2

    def state_dict(self) -> dict[str, Serialisable]:
        averaging = self._averaging
        sums = {"centre": averaging.prox_center, "mean error": averaging._g_avg, "log average": averaging._x_avg}
        return {**super().state_dict(), "iterations": averaging._t, **{name: float(x) for name, x in sums.items()}}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        names = ("iterations", "centre", "mean error", "log average")
        check_entries(saved, names, type(self).__name__)
        count, centre, error, average = (
            restored(like, saved[name], name) for name, like in zip(names, (0, 0.0, 0.0, 0.0), strict=True)
        )
        self._averaging._t, self._averaging.prox_center = count, centre
        self._averaging._g_avg, self._averaging._x_avg = error, average
