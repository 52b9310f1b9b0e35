"""Schedules of step sizes and temperatures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, is_a

Schedule = Callable[[int], float]
"""Function of the step number, counted from 0 over the whole run, that returns a number."""


@dataclass(frozen=True)
class Constant:
    """Constant schedule."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class PolynomialDecay:
    r"""Polynomial decay, $a (1 + t/b)^{-\gamma}$ at step t.

    With γ in (0.5, 1] the sum of step sizes diverges and that of their squares converges, a condition for
    asymptotically unbiased stochastic-gradient Langevin dynamics.

    Args:
        initial: a, the initial value.
        scale: b, number of steps after which the value is $2^{-\gamma} a$.
        power: γ.

    Raises:
        ValueError: for an argument that is not positive.

    Source: Welling & Teh, ICML 2011, section 2.

    Examples:
        >>> step_size = PolynomialDecay(0.1, scale=100, power=1.0)
        >>> step_size(0), step_size(100)
        (0.1, 0.05)
    """

    initial: float
    scale: float = 1000.0
    power: float = 0.55

    def __post_init__(self) -> None:
        check_positive(initial=self.initial, scale=self.scale, power=self.power)

    def __call__(self, step: int) -> float:
        return float(self.initial * (1 + step / self.scale) ** -self.power)


@dataclass(frozen=True)
class CosineCycles:
    r"""Cyclical cosine schedule, $\tfrac a2 (1 + \cos(\pi\, t \bmod L / L))$: from a to 0 in cycles of L steps.

    Large steps at the start of a cycle explore other modes, and small steps at its end sample the mode found.

    Args:
        initial: a, the initial value of a cycle.
        length: L, number of steps of a cycle.
        smallest: lower bound of the values.

    Raises:
        ValueError: for an argument out of range.

    Source: Zhang, Li, Zhang, Chen & Wilson, Cyclical stochastic gradient MCMC, ICLR 2020, equation 1.

    Examples:
        >>> step_size = CosineCycles(0.1, length=100, smallest=0.01)
        >>> step_size(0), round(step_size(50), 3), step_size(99), step_size(100)
        (0.1, 0.05, 0.01, 0.1)
    """

    initial: float
    length: int
    smallest: float = 0.0

    def __post_init__(self) -> None:
        check_positive(initial=self.initial)
        check_positive_integer(length=self.length)
        if not is_a(Real, self.smallest) or not 0 <= self.smallest <= self.initial:
            raise ValueError(f"smallest={self.smallest!r}, expected a number from 0 to initial={self.initial}.")

    def __call__(self, step: int) -> float:
        share = (step % self.length) / self.length
        return max(self.smallest, 0.5 * self.initial * (1 + math.cos(math.pi * share)))


def as_schedule(name: str, value: object) -> Schedule:
    """Convert a number or function to a schedule.

    Raises:
        ValueError: for anything else, or a number that is negative or not finite.
    """
    if is_a(Real, value):
        number = float(value)  # type: ignore[arg-type]
        if not 0 <= number < math.inf:
            raise ValueError(f"{name}={value!r}, expected a finite number ≥ 0 or a function of the step number.")
        return Constant(number)
    if not callable(value):
        raise ValueError(f"{name}={value!r}, expected a number or a function of the step number.")
    return value


def value_at(name: str, schedule: Schedule, step: int) -> float:
    """Evaluate a schedule at a step.

    Raises:
        ValueError: if it is negative or not finite.
    """
    found = schedule(step)
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"The schedule of {name} returns {found!r} at step {step}, expected a number ≥ 0.") from error
    if not 0 <= value < math.inf:
        raise ValueError(f"The schedule of {name} returns {value} at step {step}, expected a finite number ≥ 0.")
    return value
