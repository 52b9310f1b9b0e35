"""How long each trajectory is: jitter around a mean, and the choice of that mean from the chains themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.jumps import Jumps, Transitions, of_all
from pyro_manifold.infer.mcmc.run import golden_phase
from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.infer.mcmc.states import ChainState

MAXIMUM_STEPS = 1024
MAXIMUM_STEPS_BEFORE_MASSES = 8
"""Long trajectories are wasted while the masses are still those of the start; √2 times as long after each window."""

MAXIMUM_STEPS_OF_A_TRIAL = 128
"""Long trajectories are wasted while the step size is still swinging."""

INITIAL_LENGTH = math.pi / 2**0.5
"""Between a quarter of a Gaussian's period at unit masses, best for its variances, and half of one, for its means."""

SHORTEST_LENGTH = math.pi / 2
"""A quarter of a period, the best for a Gaussian. Masses make scales 1 or larger, so that no posterior wants less."""

_LEAST_OF_ENERGIES = 0.2  # what chance may say of the second term

LONGEST_LENGTH = 8 * math.pi
"""Where steps cost nothing, chance would lead on and on."""


@dataclass
class TrajectoryLength(Saved):
    """Lengths spread evenly around their mean, lest they resonate with a periodic orbit.

    The spread follows a golden-ratio sequence: it fills an interval more evenly than random numbers, and needs none.

    Attributes:
        mean: mean integration time.
        jitter: lengths lie within this share of the mean.
        longest: most leapfrog steps of a trajectory.
    """

    changing = ("mean",)

    mean: float
    jitter: float
    longest: int = MAXIMUM_STEPS

    def draw(self, iteration: int) -> float:
        """Length of one trajectory."""
        return self.mean * (1 + self.jitter * (2 * golden_phase(iteration) - 1))

    def steps_of(self, length: float, step_size: float, longest: int | None = None) -> int:
        """Number of leapfrog steps of a trajectory of this length."""
        # A hair is added before rounding down: (ε·k)/ε may fall short of k.
        return min(max(1, int(length / step_size + 1e-6)), self.longest if longest is None else longest)


class LengthChoice(Saved):
    r"""Chooses the mean length that moves the chains furthest for its cost, from trajectories of many lengths.

    While it listens, lengths are spread log-uniformly over what jitter around the candidates covers, up to 1.8 times
    the present mean, and each transition :math:`q \to q'` is filed under its length. What a length costs is

    .. math:: (\text{steps}(L) + c) \left(\left(\mathrm{mean}_i
        \left(\frac{12\,(\mathrm{Var}\, q_i)^2}{E (q_i' - q_i)^4}\right)^4\right)^{1/4}
        + \frac{4\,\mathrm{Var}\,U}{E (U' - U)^2} - 1\right)

    for lengths from an octave below the present one to half an octave above, between π/2 and 8π, the expectations taken
    over the jitter, c what an iteration costs beside its steps. For each octave away from π/√2, 40/T of
    it is added, T the number of transitions in this window of warm-up and the one before: few chains have not seen what
    the slowest coordinates have to say. Each term would be 1 for independent Gaussian draws; the second is that of the
    autocorrelation ρ of the energy, :math:`(1 + \rho)/(1 - \rho)`.

    The fourth power of the jump tells one to another mode from a walk within one: second moments are the same for
    both at lengths where the effective sample size differs tenfold. Reciprocals heed the slowest coordinates, and
    their fourth power one that is slow among hundreds, such as the scale that all groups of a hierarchy share. The
    energy U stands for even functionals, which a trajectory of half a period does not change though it moves every
    coordinate. Jumps need no mean and variances are those within chains, for chains may sit in different symmetric
    modes.

    Of the family of Hoffman, Radul & Sountsov (AISTATS 2021) and Sountsov & Hoffman (arXiv 2110.11576), who follow
    gradients of another fourth moment, that of the squared distance from the mean.

    Args:
        lengths: what it sets.
        state: states to begin with, for shapes.

    Attributes:
        fixed_cost: c, in leapfrog steps.
    """

    changing = ("_window", "_window_before")

    _longest_share = 1.8  # of the present mean: most of what jitter around the longest candidate covers
    _shortest_share = 0.25
    _octaves_of_a_bin = 0.25
    _bins_of_candidates = range(-4, 3)
    _transitions_of_a_choice = 200
    _iterations_of_a_choice = 25
    _fewest_transitions = 50
    _order = 4
    _doubt = 40.0

    def __init__(self, lengths: TrajectoryLength, state: ChainState) -> None:
        self._lengths = lengths
        self.fixed_cost = 1.0
        self._iterations_between_choices = max(
            self._iterations_of_a_choice, math.ceil(self._transitions_of_a_choice / len(state.energy))
        )
        self._example = torch.zeros_like(_functionals(state))
        self._window, self._window_before = Transitions(self._example), Transitions(self._example)

    def end_window(self) -> None:
        """Forget the window before this one: masses have changed, and lengths mean something else.

        From one window to the next they change little, and few chains need the transitions of both.
        """
        self._window, self._window_before = Transitions(self._example), self._window

    def begin_anew(self) -> None:
        """Under masses that are quite different, lengths are different lengths."""
        self._window, self._window_before = Transitions(self._example), Transitions(self._example)
        self._lengths.mean = INITIAL_LENGTH

    def draw(self, iteration: int) -> float:
        """Length of one trajectory while listening."""
        mean = self._lengths.mean
        of_candidates = min(mean, SHORTEST_LENGTH * (1 - self._lengths.jitter))
        shortest, longest = max(self._shortest_share * mean, of_candidates), self._longest_share * mean
        return shortest * (longest / shortest) ** golden_phase(iteration)

    def update(self, length: float, num_steps: int, before: ChainState, after: ChainState) -> None:
        """File a transition of all chains; now and then choose.

        Args:
            length: of the trajectory: the steps that it was cut into, as long as they were.
            num_steps: of it.
            before: where the chains were.
            after: where they are.
        """
        self._window.add(self._bin(length), num_steps, _functionals(before), _functionals(after))
        if self._window.iterations % self._iterations_between_choices == 0:
            self.choose()

    def choose(self) -> None:
        """Set the mean length to what the transitions so far say."""
        windows = self._window, self._window_before
        transitions = sum(window.iterations for window in windows) * len(self._example)
        if transitions < self._fewest_transitions:
            return
        jumps, variances = of_all(windows)
        doubt = self._doubt / transitions
        costs = {
            length: self._cost(length, jumps, variances) * (1 + doubt * abs(math.log2(length / INITIAL_LENGTH)))
            for length in self._candidates()
        }
        if math.isfinite(min(costs.values())):
            self._lengths.mean = min(costs, key=lambda length: costs[length])

    def _candidates(self) -> list[float]:
        around = [self._lengths.mean * 2 ** (k * self._octaves_of_a_bin) for k in self._bins_of_candidates]
        shortest, longest = min(SHORTEST_LENGTH, self._lengths.mean), max(LONGEST_LENGTH, self._lengths.mean)
        return [length for length in around if shortest <= length <= longest]

    def _cost(self, length: float, jumps_of: Mapping[int, Jumps], variances: Tensor) -> float:
        """What is to be small, if lengths were jittered around this one."""
        shares = self._shares(length, jumps_of)
        total = sum(shares.values())
        if total < 0.5:
            return math.inf
        filed = [(share / total, jumps_of[index]) for index, share in shares.items()]
        steps = sum(share * jumps.steps / jumps.count for share, jumps in filed)
        moments = torch.stack([share * jumps.moments / jumps.count for share, jumps in filed]).sum(0)
        draws = torch.cat([12 * variances[:-1].square(), 2 * variances[-1:]]) / moments
        coordinates = draws[:-1][moments[:-1] > 0]
        if not len(coordinates):
            return math.inf
        slowest = coordinates.max()
        mean = slowest * (coordinates / slowest).pow(self._order).mean().pow(1 / self._order)
        return (steps + self.fixed_cost) * float(mean + (2 * draws[-1] - 1).clamp(min=_LEAST_OF_ENERGIES))

    def _shares(self, length: float, bins: Iterable[int]) -> dict[int, float]:
        """Which share of the jittered lengths falls into each of these bins."""
        spread = self._lengths.jitter
        low, high = length * (1 - spread), length * (1 + spread) * (1 + 1e-9)
        shares = {}
        for index in bins:
            left, right = 2 ** (index * self._octaves_of_a_bin), 2 ** ((index + 1) * self._octaves_of_a_bin)
            shares[index] = max(0.0, min(right, high) - max(left, low)) / (high - low)
        return {index: share for index, share in shares.items() if share > 0}

    def _bin(self, length: float) -> int:
        return math.floor(math.log2(length) / self._octaves_of_a_bin)


def _functionals(state: ChainState) -> Tensor:
    """All coordinates, then the potential energy, ``(chains, coordinates + 1)``."""
    # In one order: that of a state's blocks is another one after a transition than where a run begins or is restored.
    parts = [state.position[block].flatten(1) for block in sorted(state.position)]
    return torch.cat([*parts, state.energy.unsqueeze(1)], 1)
