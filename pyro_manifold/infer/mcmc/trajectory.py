"""How long each trajectory is: jitter around a mean, and the choice of that mean from the chains themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.leapfrog import State

MAXIMUM_STEPS = 1024
MAXIMUM_STEPS_BEFORE_MASSES = 16
"""Long trajectories are wasted while the masses are still those of the start."""

INITIAL_LENGTH = math.pi
"""Half a period of a Gaussian at unit masses."""

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

    def draw(self, iteration: int) -> float:
        """Length of one trajectory."""
        return self.mean * (1 + self.jitter * (2 * _phase(iteration) - 1))

    def steps_of(self, length: float, step_size: float, masses_adapted: bool = True) -> int:
        """Number of leapfrog steps of a trajectory of this length."""
        # A hair is added before rounding down: (ε·k)/ε may fall short of k.
        count = max(1, int(length / step_size + 1e-6))
        longest = max(MAXIMUM_STEPS, self.num_steps or 0) if masses_adapted else MAXIMUM_STEPS_BEFORE_MASSES
        return min(count, longest)


class LengthChoice:
    r"""Chooses the mean length that moves the chains furthest for its cost, from trajectories of many lengths.

    While it listens, lengths are spread log-uniformly over [¼, 3] times the present mean, and each transition
    :math:`q \to q'` is filed under its length. The choice is

    .. math:: \arg\min_L\; (\text{steps}(L) + 1) \sum_i
        \frac{(\mathrm{Var}\, q_i)^2}{E (q_i' - q_i)^4}

    over lengths half an octave apart within an octave of the present one, the expectation taken over the jitter.
    The fourth power tells a jump to another mode from a walk within one: second moments of the jump are the same
    for both at lengths where the effective sample size differs tenfold. Jumps need no mean and variances are those
    within chains, for chains may sit in different symmetric modes. The sum of reciprocals heeds the slowest
    coordinates, where a sum over coordinates would heed the many easy ones.

    Of the family of Hoffman, Radul & Sountsov (AISTATS 2021) and Sountsov & Hoffman (arXiv 2110.11576), who follow
    gradients of another fourth moment, that of the squared distance from the mean.

    Args:
        lengths: what it sets.
        state: states to begin with, for shapes.
    """

    _octaves_of_a_bin = 0.5
    _transitions_of_a_choice = 200
    _iterations_of_a_choice = 25

    def __init__(self, lengths: TrajectoryLength, state: State) -> None:
        self._lengths = lengths
        self._iterations_between_choices = max(
            self._iterations_of_a_choice, math.ceil(self._transitions_of_a_choice / len(state.energy))
        )
        self.forget()

    def forget(self) -> None:
        """Start anew: new masses have changed the unit of time."""
        self._jumps: dict[int, _Jumps] = {}
        self._iterations = 0
        self._means: Tensor | float = 0.0
        self._squares: Tensor | float = 0.0

    def draw(self, iteration: int) -> float:
        """Length of one trajectory while listening."""
        return self._lengths.mean * 3.0 ** _phase(iteration) * 0.25 ** (1 - _phase(iteration))

    def update(self, length: float, num_steps: int, before: State, after: State) -> None:
        """File a transition of all chains; now and then choose."""
        values, previous = _coordinates(after), _coordinates(before)
        self._iterations += 1
        deviation = values - self._means
        self._means = self._means + deviation / self._iterations
        self._squares = self._squares + (deviation * (values - self._means)).mean(0)
        jumps = self._jumps.setdefault(self._bin(length), _Jumps(0, 0, torch.zeros_like(values[0])))
        jumps.add(num_steps, (values - previous).pow(4).mean(0))
        if self._iterations % self._iterations_between_choices == 0:
            self._lengths.mean = min(self._candidates(), key=self._cost)

    def _candidates(self) -> list[float]:
        return [self._lengths.mean * 2 ** (k * self._octaves_of_a_bin) for k in (0, -1, 1, -2, 2)]

    def _cost(self, length: float) -> float:
        """What is to be small, if lengths were jittered around this one."""
        shares = self._shares(length)
        total = sum(shares.values())
        if total < 0.5:
            return math.inf
        filed = [(share / total, self._jumps[index]) for index, share in shares.items()]
        steps = sum(share * jumps.steps / jumps.count for share, jumps in filed)
        fourth_moment = torch.stack([share * jumps.fourth_powers / jumps.count for share, jumps in filed]).sum(0)
        moving = fourth_moment > 0
        variance = torch.as_tensor(self._squares)[moving] / (self._iterations - 1)
        return (steps + 1) * float((variance**2 / fourth_moment[moving]).sum()) if moving.any() else math.inf

    def _shares(self, length: float) -> dict[int, float]:
        """Which share of the jittered lengths falls into each bin that has jumps."""
        spread = self._lengths.jitter
        low, high = length * (1 - spread), length * (1 + spread) * (1 + 1e-9)
        shares = {}
        for index in self._jumps:
            left, right = 2 ** (index * self._octaves_of_a_bin), 2 ** ((index + 1) * self._octaves_of_a_bin)
            shares[index] = max(0.0, min(right, high) - max(left, low)) / (high - low)
        return {index: share for index, share in shares.items() if share > 0}

    def _bin(self, length: float) -> int:
        return math.floor(math.log2(length) / self._octaves_of_a_bin)


@dataclass
class _Jumps:
    """Sums over the transitions of one bin of lengths."""

    count: int
    steps: int
    fourth_powers: Tensor

    def add(self, num_steps: int, fourth_powers: Tensor) -> None:
        self.count += 1
        self.steps += num_steps
        self.fourth_powers = self.fourth_powers + fourth_powers


def _coordinates(state: State) -> Tensor:
    """All coordinates, ``(chains, coordinates)``."""
    return torch.cat([x.flatten(1) for x in state.position.values()], 1)


def _phase(iteration: int) -> float:
    return (iteration * _GOLDEN_RATIO) % 1
