"""Learning-rate schedule of a run, and detection of a plateau of its losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from pyro.optim import PyroOptim
from pyro.optim.lr_scheduler import PyroLRScheduler

Schedule = Literal["cosine", "constant"]
Until = Literal["plateau"]

_FIRST_CHECK, _GROWTH = 400, 1.5
"""Number of steps at the first test for a plateau, and its factor between tests; frequent tests give false
positives."""

_SHARE_OF_DECAY = 0.5  # of the steps before the plateau


def check_run(optim: PyroOptim, num_steps: object, schedule: object, until: object) -> None:
    """Raise an error for arguments of `SVI.run` that are out of range."""
    if isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1:
        raise ValueError(
            f"SVI.run: num_steps={num_steps!r:.60}, expected an integer ≥ 1, before the model's arguments."
        )
    if schedule not in get_args(Schedule):
        raise ValueError(f"SVI.run: schedule={schedule!r:.60}, expected one of {list(get_args(Schedule))}.")
    if until is not None and until not in get_args(Until):
        raise ValueError(f"SVI.run: until={until!r:.60}, expected 'plateau', or None for all of num_steps.")
    if isinstance(optim, PyroLRScheduler):
        raise ValueError(
            "SVI.run: optim has its own schedule: call svi.step and optim.step in a loop, or pass the optimiser "
            "without a schedule."
        )


class StepSizes:
    """Temporary factor of the learning rates of an optimiser."""

    def __init__(self, optim: PyroOptim) -> None:
        self._optim, self._factor = optim, 1.0

    def scale(self, factor: float) -> None:
        """Set the learning rates to a multiple of the initial ones."""
        for optimizer in self._optim.optim_objs.values():
            for options in optimizer.param_groups:
                # Not in place: a rate that is a tensor may be shared by the optimisers of all parameters.
                options["lr"] = options["lr"] * (factor / self._factor)
        self._factor = factor if self._optim.optim_objs else self._factor

    def restore(self) -> None:
        """Restore the initial learning rates."""
        self.scale(1.0)


class LearningRateSchedule:
    """Learning-rate schedule and end of a run.

    Args:
        num_steps: maximum number of steps.
        schedule: ``"cosine"`` or ``"constant"``.
        until: ``"plateau"`` to end after a plateau of the losses, None to take all steps.

    Attributes:
        last: number of steps after which the run ends; the maximum until a plateau is found.
    """

    def __init__(self, num_steps: int, schedule: Schedule, until: Until | None) -> None:
        self._schedule, self._until = schedule, until
        self.last = num_steps
        # The decay after a plateau fits into the number of steps.
        self._decay_from = 0 if until is None else math.ceil(num_steps / (1 + _SHARE_OF_DECAY))
        self._searches, self._next_check, self._flat = until is not None, _FIRST_CHECK, False

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step, counted from 0."""
        if self._schedule == "constant" or step < self._decay_from:
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - self._decay_from) / max(1, self.last - self._decay_from)))

    def check(self, losses: Sequence[float]) -> None:
        """Set the end of the run if two successive tests find a plateau of the losses."""
        count = len(losses)
        if not self._searches or count < self._next_check or count >= self._decay_from:
            return
        self._next_check, before, self._flat = math.ceil(_GROWTH * count), self._flat, on_plateau(losses)
        if self._flat and before:
            self._searches, self._decay_from = False, count
            more = math.ceil(_SHARE_OF_DECAY * count) if self._schedule == "cosine" else 0
            self.last = min(self.last, count + more)


def on_plateau(losses: Sequence[float]) -> bool:
    """Return whether the mean loss no longer decreases, within the standard error of the comparison.

    The last quarter of all losses is compared with the quarter before. Windows grow with the number of steps, so that a
    slow decrease is detected later.
    """
    quarter = len(losses) // 4
    recent = torch.tensor(losses[len(losses) - 2 * quarter :], dtype=torch.float64)
    before, after = recent[:quarter], recent[quarter:]
    fall = float(before.mean() - after.mean())
    error = math.sqrt(float(before.var() + after.var()) / quarter)
    return fall < error
