"""Stopping rules: sampling until effective sample sizes and R-hat reach their goals."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.density import Sites
from pyro_manifold.diagnostics import Measure, Symmetry, convergence, known_quantities, nested_r_hat, symmetries, varies
from pyro_manifold.infer.mcmc.checks import check_counts, is_a
from pyro_manifold.infer.mcmc.running.draw_storage import DrawStorage
from pyro_manifold.infer.mcmc.running.run import Run

Quantities = Callable[[Sites], dict[str, Tensor]]
"""Function from draws ``{site: (chains, draws, ...)}`` to the quantities that are checked."""

FEWEST_DRAWS = 4
_LEAST_GROWTH, _LARGEST_GROWTH = 1.2, 2.0
_FEWEST_SAMPLES, _MOST_SAMPLES, _WARMUP_STEPS = 100, 10_000, 500
"""Default numbers of iterations of a run with a goal: minimum and maximum after warm-up, and warm-up."""
_LOG_DENSITY = "log density"


@dataclass(frozen=True)
class Until:
    """Stopping rule: sample until all entries of all stored sites, and the log density, reach these values.

    Sites that are identified only up to signs, order or rotations of columns are replaced by invariants, see
    `pyro_manifold.diagnostics.invariants`.

    Args:
        ess: smallest bulk and tail effective sample size.
        rhat: largest rank-normalised R-hat, as in `MCMC.summary`.
        nested_rhat: largest nested R-hat, for chains in `Superchains`.
        max_samples: largest number of iterations after warm-up; if None, the larger of 10,000 and ``num_samples``.

    Raises:
        ValueError: if no goal is set, and for values that cannot be reached.

    Examples:
        >>> Until(ess=400, rhat=1.01, max_samples=3000).goals
        {'ess': 400, 'rhat': 1.01}
    """

    ess: float | None = None
    rhat: float | None = None
    nested_rhat: float | None = None
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if not self.goals:
            raise ValueError("until has no goal, expected at least one, such as Until(ess=400, rhat=1.01).")
        for goal, value in self.goals.items():
            least = 0 if goal == "ess" else 1
            if not (is_a(Real, value) and least < value < math.inf):
                raise ValueError(f"until['{goal}']={value!r}, expected a number above {least}.")
        if self.max_samples is not None:
            check_counts(max_samples=self.max_samples)

    @property
    def goals(self) -> dict[str, float]:
        """Goals that are set, by name."""
        goals = {"ess": self.ess, "rhat": self.rhat, "nested_rhat": self.nested_rhat}
        return {name: value for name, value in goals.items() if value is not None}


class Shortfall(NamedTuple):
    """Distance of one entry of a quantity from a goal.

    Attributes:
        ratio: required effective sample size divided by the estimate, or estimated excess of R-hat over 1 divided by
            that allowed. It is about the factor by which the number of draws has to grow; at most 1 if the goal is
            reached.
        name: name of the entry.
        found: description of the estimate.
    """

    ratio: float
    name: str
    found: str


class Goal:
    """Stopping rule based on the convergence diagnostics of the draws so far.

    A check starts with the worst entries of the last one and ends at the first that falls short, so that all checks but
    the last are cheap. The next check is made when this entry is predicted to reach its goal, with effective sample
    sizes and the inverse of R-hat's excess in proportion to the number of draws, at 1.2 to 2 times as many draws. It
    depends on draws only, so that runs with the same seed are identical.

    Args:
        until: the goals.
        num_superchains: number of groups of chains, for nested R-hat.
        quantities: function from draws to the quantities that are checked.
        first: number of draws of each chain at the first check.
        stored: names of the sites whose draws are stored; None if these are all sites of the model.
        has_sites: whether the model has a latent site; without one there is nothing to check.

    Attributes:
        next: number of draws at the next check.
        reached: whether all goals are reached.
        worst: worst entry at the last check.
    """

    def __init__(
        self,
        until: Until,
        num_superchains: int | None,
        quantities: Quantities,
        first: int,
        *,
        stored: Sequence[str] | None = None,
        has_sites: bool = True,
    ) -> None:
        self._until, self._superchains, self._quantities = until.goals, num_superchains, quantities
        self._stored, self._has_sites, self._has_density = stored, has_sites, True
        self.next = max(first, FEWEST_DRAWS)
        self.reached = False
        self.worst: Shortfall | None = None
        self._ratios: dict[str, np.ndarray] = {}

    def check(self, draws: Sites, *, thoroughly: bool = False) -> bool:
        """Check the draws so far, ``{site: (chains, draws, ...)}``, and return whether the goal is reached.

        Args:
            draws: at least 4 of each chain.
            thoroughly: whether to check all entries, to find the worst.

        Raises:
            ValueError: if the model has latent sites, and there are no draws of any of them nor of the log density.
        """
        if not self._has_sites:
            self.reached = True
            return True
        if not draws:
            raise ValueError(
                "A run until a goal needs the draws of a site or the log density, and with this kernel and "
                "save_params=[] there are neither: store at least one site, or pass num_samples without until."
            )
        self._has_density = _LOG_DENSITY in draws
        count = next(iter(draws.values())).shape[1]
        worst: Shortfall | None = None
        for shortfall in self._shortfalls(self._quantities(draws), thoroughly):
            worst = shortfall if worst is None or shortfall.ratio > worst.ratio else worst
            if worst.ratio > 1 and not thoroughly:
                break
        # If no value has changed, no diagnostic is defined.
        self.worst = worst or Shortfall(math.inf, "every site", "no change of value")
        self.reached = self.worst.ratio <= 1
        self.next = math.ceil(count * min(max(self.worst.ratio, _LEAST_GROWTH), _LARGEST_GROWTH))
        return self.reached

    def _shortfalls(self, quantities: dict[str, Tensor], thoroughly: bool) -> Iterator[Shortfall]:
        flat = {
            name: value.flatten(2) if value.dim() > 2 else value.unsqueeze(-1) for name, value in quantities.items()
        }
        places = []
        for name, value in flat.items():
            before = self._ratios.setdefault(name, np.full(value.shape[-1], math.inf))
            places += [(before[k], name, int(k)) for k in varies(value.cpu()).nonzero().flatten()]
        places.sort(key=lambda place: -place[0])
        for _, name, k in places:
            entry = flat[name][..., k]
            shortfall = self._shortfall(entry, _label(name, quantities[name].shape[2:], k), thoroughly)
            self._ratios[name][k] = shortfall.ratio
            yield shortfall

    def _shortfall(self, entry: Tensor, name: str, thoroughly: bool) -> Shortfall:
        if not bool(entry.isfinite().all()):
            return Shortfall(math.inf, name, "values that are not finite")
        worst = Shortfall(0.0, name, "")
        for goal, value in self._figures_of(entry):
            found = Shortfall(_ratio(goal, value, self._until[goal]), name, in_words({goal: value}))
            worst = max(worst, found, key=lambda shortfall: shortfall.ratio)
            if worst.ratio > 1 and not thoroughly:
                break
        return worst

    def _figures_of(self, entry: Tensor) -> Iterator[tuple[str, float]]:
        """Yield the diagnostics of an entry, those that are fastest to compute first."""
        if "nested_rhat" in self._until:
            yield "nested_rhat", float(nested_r_hat(entry, self._superchains or 0))
        measures: tuple[Measure, ...] = ("ess_tail", "ess_bulk") if "ess" in self._until else ()
        for measure in measures:
            yield "ess", float(convergence(entry, (measure,))[measure])
        if "rhat" in self._until:
            yield "rhat", float(convergence(entry, ("r_hat",))["r_hat"])

    def progress(self) -> OrderedDict[str, str]:
        """Return the figures shown in the progress bar."""
        return OrderedDict() if self.worst is None else OrderedDict(goal=f"{self.worst.name} {self.worst.found}")

    def sentence(self, draws: int, most: int) -> str:
        """Describe the reason for which a run stopped with this number of draws of each chain."""
        if not self._has_sites:
            return f"Stopped at {draws} draws of each chain, as the model has no latent site."
        if self.reached:
            return f"Stopped at {draws} draws of each chain, with {self._targets} for {self._checked}."
        worst = "" if self.worst is None else f": the worst is {self.worst.name} with {self.worst.found}"
        which = f"max_samples, {most} draws of each chain," if draws == most else f"{draws} draws of each chain"
        remedy = "summary() names chains that disagree, and continue_run(num_samples) adds draws"
        return f"Stopped at {which} before {self._targets} for {self._checked}{worst}; {remedy}."

    @property
    def _targets(self) -> str:
        return " and ".join(in_words({goal: value}, bound=True) for goal, value in self._until.items())

    @property
    def _checked(self) -> str:
        sites = ["every site"] if self._stored is None else [f"'{name}'" for name in self._stored]
        names = [*sites, *(["the log density"] if self._has_density else [])]
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def identified_quantities(run: Run[Any, Any]) -> Quantities:
    """Return a function of draws to the quantities that the posterior identifies, given its symmetries (found once)."""
    found: list[Symmetry] | None = None

    def quantities(draws: Sites) -> dict[str, Tensor]:
        nonlocal found
        if found is None:
            try:
                found = symmetries(run.target.as_written, run.values)
            except Exception:  # a model can fail in any way, entries are then checked unchanged
                found = []
        return known_quantities(draws, found)

    return quantities


class GoalChecks:
    """Stopping rule that checks a goal on the draws in a draw storage, as used by `loop.sample`.

    Args:
        goal: the goals.
        storage: storage of the draws.
        thinning: number of iterations per draw.
    """

    def __init__(self, goal: Goal, storage: DrawStorage, thinning: int) -> None:
        self._goal, self._storage, self._thinning = goal, storage, thinning

    def planned(self, num_samples: int) -> int:
        """Return the number of iterations up to the next check, since the length of the run is not known."""
        return min(self._goal.next * self._thinning, num_samples)

    def reached(self, draws: int) -> bool:
        """Check the goal if a check is due, also at earlier numbers of draws that a resumed run has passed."""
        while self._goal.next <= draws and not self._goal.reached:
            self._storage.settle()
            self._goal.check(self._draws(self._goal.next))
        return self._goal.reached

    def verdict(self, requested: int) -> str:
        """Describe the reason for which the run stopped, after a last check of at most ``requested`` draws."""
        made = min(self._storage.num_draws, requested)
        if not self._goal.reached and made >= FEWEST_DRAWS:
            self._goal.check(self._draws(made), thoroughly=True)
        return self._goal.sentence(made, requested)

    def _draws(self, count: int) -> Sites:
        density = self._storage.statistics(count, names=("lp",)).get("lp")
        known = {} if density is None else {_LOG_DENSITY: density}
        return {**self._storage.samples(count), **known}


def in_words(figures: Mapping[str, float], bound: bool = False) -> str:
    """Format figures such as "ess 312" or "rhat ≤ 1.01"."""
    relation = {"ess": " ≥ "} if bound else {}
    default = " ≤ " if bound else " "
    return " and ".join(
        f"{goal}{relation.get(goal, default)}{value:.4g}" if bound else f"{goal} {_rounded(goal, value)}"
        for goal, value in figures.items()
    )


def _rounded(goal: str, value: float) -> str:
    return f"{value:.0f}" if goal == "ess" else f"{value:.3f}"


def _ratio(goal: str, found: float, wanted: float) -> float:
    if math.isnan(found):
        return math.inf
    if goal == "ess":
        return wanted / found if found > 0 else math.inf
    return max(found - 1, 0.0) / (wanted - 1)


def _label(name: str, shape: torch.Size, k: int) -> str:
    if not shape:
        return name
    place = ",".join(str(int(index)) for index in np.unravel_index(k, tuple(shape)))
    return f"{name}[{place}]"


def default_goals(num_superchains: int | None) -> Until:
    """Return the goals of a run for which neither a length nor goals are given."""
    return Until(ess=400, rhat=1.01) if num_superchains is None else Until(ess=400, nested_rhat=1.01)


def lengths(
    num_samples: int | None, warmup_steps: int | None, until: Until | None, thinning: int
) -> tuple[int, int | None, int]:
    """Return the minimum number of iterations, the number of warm-up iterations, and the maximum."""
    check_counts(thinning=thinning)
    if until is None and num_samples is not None:
        return num_samples, warmup_steps, num_samples
    most = None if until is None else until.max_samples
    if num_samples is None:
        warmup_steps = _WARMUP_STEPS if warmup_steps is None else warmup_steps
        num_samples = max(_FEWEST_SAMPLES, thinning) if most is None else min(max(_FEWEST_SAMPLES, thinning), most)
    check_counts(num_samples=num_samples)
    most = max(_MOST_SAMPLES, num_samples) if most is None else most
    if most < num_samples:
        raise ValueError(
            f"max_samples={most}, expected at least num_samples={num_samples}, the minimum number of iterations."
        )
    return num_samples, warmup_steps, most


def as_until(until: object, num_superchains: int | None) -> Until | None:
    """Return the ``until`` argument as checked goals; a dictionary is converted."""
    if until is None:
        return None
    if isinstance(until, Mapping) and set(until) <= {field.name for field in fields(Until)}:
        until = Until(**until)
    if not isinstance(until, Until):
        raise ValueError(f"until={until!r}, expected goals such as Until(ess=400, rhat=1.01).")
    if until.nested_rhat is not None and num_superchains is None:
        raise ValueError(
            "until['nested_rhat'] needs chains with common initial values: pass num_chains=Superchains(8, size=16)."
        )
    return until
