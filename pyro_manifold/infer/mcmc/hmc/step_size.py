"""The step size during warm-up: a search for its order of magnitude, dual averaging; and the windows of warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from pyro_manifold.infer.mcmc.saving import Saved

_SHORT = 150  # iterations of warm-up, below which windows are those of Stan and Pyro
_BEFORE_MASSES, _FIRST_MASSES, _END = 10, 15, 50  # iterations of the first windows, at least, and of the last one
_GROWTH = 1.5
FEWEST_STEPS = 10
_ACCEPTANCE_OF_FIRST_STEP = 0.8  # the search looks for this, as Stan's does


def windows(warmup_steps: int) -> list[range]:
    """Iterations of warm-up, counted from 0, in windows; masses are estimated in all but the first and the last.

    Stan's windows double, and the last takes in what does not fit: of 350 iterations, half belong to one window.
    While chains still travel to where they belong, old masses are wrong masses, and until there are masses steps are
    short and many. So windows grow here by a half, and the first masses come after some 20 iterations instead of 100.
    Warm-ups of less than 150 have one window of masses as in Stan: between the first 15 % and the last 10 %; below 20
    iterations there is one window in all, without masses.
    """
    if warmup_steps < 20:
        return [range(warmup_steps)]
    if warmup_steps < _SHORT:
        first, last = int(0.15 * warmup_steps), int(0.1 * warmup_steps)
        edges = [0, first, warmup_steps - last, warmup_steps]
    else:
        start, end = _BEFORE_MASSES, warmup_steps - _END
        # One more than fits, then shrunk to fit: sizes proportional to 1, g, g², …
        count = math.ceil(math.log(1 + (end - start) * (_GROWTH - 1) / _FIRST_MASSES) / math.log(_GROWTH))
        ends = [start + (end - start) * (_GROWTH**k - 1) / (_GROWTH**count - 1) for k in range(count + 1)]
        edges = [0, *(round(edge) for edge in ends), warmup_steps]
    return [range(*pair) for pair in pairwise(edges)]


class DualAveraging(Saved):
    r"""Nesterov's dual averaging of log ε, towards an acceptance probability δ.

    With the mean error :math:`\bar H` of t iterations so far, weighted as if there had been t₀ more without error,

    .. math:: \log\varepsilon_t = \mu - \tfrac{\sqrt t}{\gamma} \bar H_t, \quad
        \overline{\log\varepsilon}_t = t^{-\kappa} \log\varepsilon_t
        + (1 - t^{-\kappa}) \overline{\log\varepsilon}_{t-1},

    γ = 0.05, t₀ = 10, κ = 0.75, and μ = log ε₀. Stan and Pyro take log 10ε₀, from which the first iterations of each
    window swing to steps so long that nothing is accepted, and then to a thousand steps a trajectory; here ε₀ comes
    from a search, which is not far off.

    Source: Hoffman & Gelman, The No-U-Turn sampler, JMLR 2014, section 3.2.

    Args:
        step_size: ε₀.
        target: δ.
    """

    changing = ("_centre", "count", "_error", "_log_step_size", "_log_average")

    _gamma, _delay, _kappa = 0.05, 10, 0.75

    def __init__(self, step_size: float, target: float) -> None:
        self._target = target
        self.restart(step_size)

    def restart(self, step_size: float) -> None:
        """Forget everything but a step size near which to begin."""
        self._centre = math.log(step_size)
        self.count = 0
        self._error = 0.0
        self._log_step_size = self._log_average = math.log(step_size)

    def update(self, acceptance_probability: float) -> None:
        """Take in the mean acceptance probability of one iteration."""
        self.count += 1
        weight = 1 / (self.count + self._delay)
        self._error = (1 - weight) * self._error + weight * (self._target - acceptance_probability)
        self._log_step_size = self._centre - self.count**0.5 / self._gamma * self._error
        weight = self.count**-self._kappa
        self._log_average = (1 - weight) * self._log_average + weight * self._log_step_size

    @property
    def step_size(self) -> float:
        """The one to try next."""
        return math.exp(self._log_step_size)

    @property
    def average(self) -> float:
        """The one to keep."""
        return math.exp(self._log_average)


class StepSize(Saved):
    """ε: found, adapted, and settled at the end of warm-up.

    Dual averaging tries steps far from its start at first, and its average needs some steps to forget them. After a
    window of a few steps half the step size at which the search crossed its threshold is the better one.

    Args:
        step_size: ε to begin with.
        target: acceptance probability to aim at.
        bounds: smallest and largest ε.

    Attributes:
        value: ε in use, before bounds.
    """

    changing = ("value", "_found", "_averaging")

    def __init__(self, step_size: float, target: float, bounds: tuple[float, float]) -> None:
        self.value = self._found = float(step_size)
        self._bounds = bounds
        self._averaging = DualAveraging(self.value, target)

    def bounded(self, longest: float) -> float:
        """ε within its bounds; never longer than a trajectory, since on a flat target every ε would be accepted."""
        smallest, largest = self._bounds
        return max(smallest, min(self.value, largest, longest))

    def search(self, acceptance_of_one_step: Callable[[float], float], longest: float) -> None:
        """Double or halve ε until the mean acceptance probability of a single step crosses 0.8, as Stan does."""
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
        self.value = self._found = step_size
        self._averaging.restart(step_size)

    @property
    def typical(self) -> float:
        """ε without the swings of its adaptation."""
        trust = self._averaging.count / (self._averaging.count + FEWEST_STEPS)
        return math.exp((1 - trust) * math.log(self._found / 2) + trust * math.log(self._averaging.average))

    def update(self, acceptance_probability: float) -> None:
        """Take in the mean acceptance probability of one iteration."""
        self._averaging.update(acceptance_probability)
        self.value = self._averaging.step_size

    def settle(self) -> None:
        """End the adaptation."""
        self.value = self._averaging.average if self._averaging.count >= FEWEST_STEPS else self._found / 2
