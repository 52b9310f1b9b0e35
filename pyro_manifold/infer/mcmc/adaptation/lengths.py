"""Trajectory lengths: jitter around a mean, and adaptation of that mean to the transitions of warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.jumps import Jumps, Transitions, of_all
from pyro_manifold.infer.mcmc.adaptation.slow_direction import SlowDirection
from pyro_manifold.infer.mcmc.transitions import ChainState, coordinates, weyl_sequence
from pyro_manifold.store import Saved, Serialisable

MAXIMUM_STEPS = 1024
MAXIMUM_STEPS_BEFORE_MASSES = 8
"""Limit before masses are estimated, when long trajectories are inefficient; grows by √2 after each window."""

MAXIMUM_STEPS_OF_A_TRIAL = 128
"""Limit while the trajectory length is adapted, when long trajectories are inefficient: the step size still varies."""

INITIAL_LENGTH = math.pi / 2**0.5
"""Length between π/2, a quarter of a Gaussian's period, best for its variances, and π, half of one, best for means."""

SHORTEST_LENGTH = math.pi / 2
"""Quarter of a period, the optimum for a Gaussian. After adaptation scales are 1 or larger, so less is never better."""

_LEAST_OF_ENERGIES = 0.2  # lower bound of the second term, whose estimate is noisy

_MOST_PENDING = 200_000  # values of functionals that wait to be filed

LONGEST_LENGTH = 8 * math.pi
"""Upper limit; if steps cost nothing, noise would increase the length without limit."""


Moments = tuple[Mapping[int, Jumps], Tensor]
"""Jumps of each bin of lengths, and variances."""


@dataclass
class TrajectoryLength(Saved):
    """Trajectory lengths spread evenly around their mean, which avoids resonance with periodic orbits.

    Lengths follow a golden-ratio sequence, deterministic and more even on an interval than random numbers.

    Attributes:
        mean: mean integration time.
        jitter: lengths vary by at most this fraction of the mean.
        longest: largest number of leapfrog steps of a trajectory.
    """

    changing = ("mean",)

    mean: float
    jitter: float
    longest: int = MAXIMUM_STEPS

    def draw(self, iteration: int) -> float:
        """Return the length of the trajectory of an iteration."""
        return self.mean * (1 + self.jitter * (2 * weyl_sequence(iteration) - 1))

    def steps_of(self, length: float, step_size: float, longest: int | None = None) -> int:
        """Return the number of leapfrog steps of a trajectory of this length."""
        # A small constant is added before rounding down, since (ε·k)/ε may be less than k by rounding.
        return min(max(1, int(length / step_size + 1e-6)), self.longest if longest is None else longest)


class LengthChoice(Saved):
    r"""Adaptation of the mean trajectory length, by minimising the estimated cost per effective draw.

    During adaptation, lengths are spread log-uniformly over the range that jitter around the candidates covers, up to
    1.8 times the present mean, and each transition $q \to q'$ is binned by its length. The cost of a length is

    $$
    (\text{steps}(L) + c) \left(\left(\mathrm{mean}_i
    \left(\frac{12\,(\mathrm{Var}\, q_i)^2}{E (q_i' - q_i)^4}\right)^4\right)^{1/4}
    + \frac{4\,\mathrm{Var}\,U}{E (U' - U)^2} - 1\right)
    $$

    for lengths from an octave below the present one to half an octave above, between π/2 and 8π. Expectations are taken
    over the jitter, and c is the fixed cost of an iteration. The cost is increased by the fraction 40/T for each octave
    away from π/√2, T the number of transitions in this window of warm-up and the previous one, because few transitions
    contain little information on the slowest coordinates. Each term is 1 for independent Gaussian draws; the second is
    $(1 + \rho)/(1 - \rho)$, ρ the autocorrelation of the energy.

    The fourth power of the jump distinguishes a jump to another mode from a random walk within one: second moments can
    be equal for both at lengths for which the effective sample size differs tenfold. Reciprocals emphasise the slowest
    coordinates, and their fourth power a single slow one among hundreds, such as the scale shared by all groups of a
    hierarchical model. The energy U represents even functionals, which a trajectory of half a period leaves unchanged
    although it moves every coordinate. Jumps do not involve means, and variances are computed within chains, since
    chains may be in different symmetric modes.

    Where coordinates are correlated, some combination of them is slower than each of them. Of the one that was slowest
    in the previous window, its `SlowDirection`, a third is the first term if that is larger. (Most combinations are as
    slow as some coordinate; if they counted in full, lengths on published posteriors were a few percent worse.)

    Coordinates that are identified only up to signs, order or rotations of columns are replaced by invariant
    `IdentifiedQuantities`: otherwise the slowest motion would be that of columns that swap. Other symmetries, as of
    a mixture, are not detected, and the coordinates are used unchanged.

    The method is related to those of Hoffman, Radul & Sountsov (AISTATS 2021) and Sountsov & Hoffman (arXiv
    2110.11576), who follow gradients of another fourth moment, that of the change in squared distance from the mean.

    Args:
        lengths: the trajectory lengths whose mean is set.
        state: initial state, used for its shapes.
        functionals: functionals of a state, ``(chains, functionals)``; see `IdentifiedQuantities`.

    Attributes:
        fixed_cost: c, in leapfrog steps.
    """

    changing = ("_window", "_window_before", "_along", "_along_before", "_direction", "_next_direction", "fixed_cost")

    _longest_share = 1.8  # multiple of the present mean: covers most of the jitter around the longest candidate
    _shortest_share = 0.25
    _octaves_of_a_bin = 0.25
    _bins_of_candidates = range(-4, 3)
    _transitions_of_a_choice = 200
    _iterations_of_a_choice = 25
    _fewest_transitions = 50
    _order = 4
    _much_slower = 3.0
    _doubt = 40.0

    def __init__(
        self,
        lengths: TrajectoryLength,
        state: ChainState,
        functionals: Callable[[ChainState], Tensor] = coordinates,
    ) -> None:
        self._lengths, self._of_position = lengths, functionals
        self.fixed_cost = 1.0
        self._iterations_between_choices = max(
            self._iterations_of_a_choice, math.ceil(self._transitions_of_a_choice / len(state.energy))
        )
        self._example = torch.zeros_like(self._functionals(state))
        self._direction, self._next_direction = self._example[0, :-1], SlowDirection(self._example[:, :-1])
        self._pending: list[tuple[int, int, Tensor, Tensor, Tensor | None]] = []
        self._last: tuple[ChainState | None, Tensor] = None, self._example
        self.forget()

    def end_window(self) -> None:
        """Start a new window and keep only the one just ended, as lengths are relative to the masses.

        Between successive windows masses change little, and with few chains the transitions of both are needed.
        """
        self._file()
        self._last = None, self._example  # which would keep a state after warm-up
        self._window, self._window_before = Transitions(self._example), self._window
        self._along, self._along_before = Transitions(self._example[:, -2:]), self._along
        found = self._next_direction.find()
        if found is not None:
            self._direction = found
        self._next_direction.clear()

    def forget(self) -> None:
        """Discard all transitions, which were made in other coordinates, and keep the mean length."""
        self._pending.clear()
        self._last = None, self._example
        self._window, self._window_before = Transitions(self._example), Transitions(self._example)
        self._along, self._along_before = (Transitions(self._example[:, -2:]) for _ in range(2))
        self._direction = torch.zeros_like(self._direction)
        self._next_direction.clear()

    def reset(self) -> None:
        """Discard all transitions and reset the mean length, after a large change of masses."""
        self.forget()
        self._lengths.mean = INITIAL_LENGTH

    def draw(self, iteration: int) -> float:
        """Return the length of the trajectory of an iteration during adaptation."""
        mean = self._lengths.mean
        of_candidates = min(mean, SHORTEST_LENGTH * (1 - self._lengths.jitter))
        shortest, longest = max(self._shortest_share * mean, of_candidates), self._longest_share * mean
        return shortest * (longest / shortest) ** weyl_sequence(iteration)

    def update(
        self, length: float, num_steps: int, before: ChainState, after: ChainState, moved: Tensor | None = None
    ) -> None:
        """Add a transition of all chains; at regular intervals, update the mean length.

        Args:
            length: integration time of the trajectory, the number of steps times their actual size.
            num_steps: number of its leapfrog steps.
            before: state before the transition.
            after: state after the transition.
            moved: chains that were moved by the trajectory alone; None for all.
        """
        previous = self._last[1] if before is self._last[0] else self._functionals(before)
        values = self._functionals(after)
        self._last = after, values
        self._pending.append((self._bin(length), num_steps, previous, values, moved))
        self._next_direction.add(previous[:, :-1], values[:, :-1])
        if (self._window.iterations + len(self._pending)) % self._iterations_between_choices == 0:
            self.choose()
        elif len(self._pending) * values.numel() > _MOST_PENDING:
            self._file()

    def _file(self) -> None:
        """Add the last transitions to those of the window, all at once, since one would take as long."""
        if not self._pending:
            return
        bins, steps, *states, moved = zip(*self._pending, strict=True)
        previous, values = (torch.stack(each) for each in states)
        of_chains = None
        if any(each is not None for each in moved):
            every = values.new_ones(values.shape[1], dtype=torch.bool)
            of_chains = torch.stack([every if each is None else each for each in moved])
        self._window.add(bins, steps, previous, values, of_chains)
        if bool(self._direction.any()):
            self._along.add(bins, steps, self._projected(previous), self._projected(values), of_chains)
        self._pending.clear()

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the mutable state, with all transitions filed."""
        self._file()
        return super().state_dict()

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        self._pending.clear()

    def choose(self) -> None:
        """Set the mean length to the candidate of least cost, by the transitions so far."""
        self._file()
        windows = self._window, self._window_before
        transitions = sum(window.iterations for window in windows) * len(self._example)
        if transitions < self._fewest_transitions:
            return
        found, doubt = of_all(windows), self._doubt / transitions
        along = of_all((self._along, self._along_before)) if self._along.iterations else None
        costs = {
            length: self._cost(length, found, along) * (1 + doubt * abs(math.log2(length / INITIAL_LENGTH)))
            for length in self._candidates()
        }
        if math.isfinite(min(costs.values())):
            self._lengths.mean = min(costs, key=lambda length: costs[length])

    def _functionals(self, state: ChainState) -> Tensor:
        """Return the functionals of a state, then its potential energy, ``(chains, functionals + 1)``."""
        return torch.cat([self._of_position(state), state.energy.unsqueeze(1)], 1)

    def _projected(self, functionals: Tensor) -> Tensor:
        """Return the functional along the slow direction, then the energy, ``(..., 2)``."""
        return torch.stack([functionals[..., :-1] @ self._direction, functionals[..., -1]], -1)

    def _candidates(self) -> list[float]:
        around = [self._lengths.mean * 2 ** (k * self._octaves_of_a_bin) for k in self._bins_of_candidates]
        shortest, longest = min(SHORTEST_LENGTH, self._lengths.mean), max(LONGEST_LENGTH, self._lengths.mean)
        return [length for length in around if shortest <= length <= longest]

    def _cost(self, length: float, found: Moments, along: Moments | None) -> float:
        """Compute the cost of a mean length, with jitter around it; ``along`` is of the slow direction, if any."""
        steps, draws = self._draws(length, *found)
        coordinates = draws[:-1][draws[:-1] > 0]
        slow = draws.new_zeros(1) if along is None else self._draws(length, *along)[1][:-1]
        if not len(coordinates) or (along is not None and not bool(slow > 0)):
            return math.inf
        slowest = coordinates.max()
        mean = slowest * (coordinates / slowest).pow(self._order).mean().pow(1 / self._order)
        mean = torch.maximum(mean, slow / self._much_slower)
        return (steps + self.fixed_cost) * float(mean + (2 * draws[-1] - 1).clamp(min=_LEAST_OF_ENERGIES))

    def _draws(self, length: float, jumps_of: Mapping[int, Jumps], variances: Tensor) -> tuple[float, Tensor]:
        """Estimate steps of a draw, and how many draws are one independent draw of each functional; 0: unknown."""
        shares = self._shares(length, jumps_of)
        total = sum(shares.values())
        if total < 0.5:
            return math.inf, torch.zeros_like(variances)
        filed = [(share / total, jumps_of[index]) for index, share in shares.items()]
        steps = sum(share * jumps.steps / jumps.count for share, jumps in filed)
        moments = torch.stack([share * jumps.moments / jumps.count for share, jumps in filed]).sum(0)
        draws = torch.cat([12 * variances[:-1].square(), 2 * variances[-1:]]) / moments
        return steps, torch.where(moments > 0, draws, 0.0)

    def _shares(self, length: float, bins: Iterable[int]) -> dict[int, float]:
        """Compute the fraction of jittered lengths in each of these bins."""
        spread = self._lengths.jitter
        low, high = length * (1 - spread), length * (1 + spread) * (1 + 1e-9)
        shares = {}
        for index in bins:
            left, right = 2 ** (index * self._octaves_of_a_bin), 2 ** ((index + 1) * self._octaves_of_a_bin)
            shares[index] = max(0.0, min(right, high) - max(left, low)) / (high - low)
        return {index: share for index, share in shares.items() if share > 0}

    def _bin(self, length: float) -> int:
        return math.floor(math.log2(length) / self._octaves_of_a_bin)
