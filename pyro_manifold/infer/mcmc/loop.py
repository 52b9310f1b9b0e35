"""Iterations of a run, and those who want to know of each: buffers, records, callbacks, a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor
from tqdm.auto import tqdm

from pyro_manifold.infer.mcmc.record import Record
from pyro_manifold.infer.mcmc.run import Run
from pyro_manifold.infer.mcmc.states import NotFiniteError, Statistics
from pyro_manifold.target.batched import Sites

_SECONDS_BETWEEN_REPORTS = 0.2
_CHAINS_COMPARED_AT_THE_END = 16


@dataclass(frozen=True)
class Iteration:
    """One iteration of all chains. Its tensors are the run's own: copy what you keep, and never write into them.

    Attributes:
        stage: ``"Warmup"`` or ``"Sample"``, as Pyro calls them.
        index: from 0, within its stage.
        draw: the number of the draw that it ends, from 0; -1 if it ends none.
        sites: where the chains are, ``{site: (chains, ...)}``, manifold sites on their manifold, others unconstrained.
        statistics: what the transitions told, ``{name: (chains,)}``.
        constrain: ``sites`` to what the model has; `values` calls it.
    """

    stage: Literal["Warmup", "Sample"]
    index: int
    draw: int
    sites: Sites
    statistics: Statistics
    constrain: Callable[[Sites], Sites] = field(default=dict, repr=False)

    @cached_property
    def values(self) -> Sites:
        """Where the chains are, ``{site: (chains, ...)}``, as the model has it; computed once for all who ask."""
        return self.constrain(self.sites)

    @property
    def kept(self) -> bool:
        """Whether it ends a draw."""
        return self.draw >= 0


class Consumer(Protocol):
    """Whoever is told of each iteration, in order: a buffer, a file, a running mean."""

    def __call__(self, iteration: Iteration) -> None: ...


class Ended(NamedTuple):
    """How sampling ended.

    Attributes:
        draws: how many draws were made.
        why: what stopped it before all were made, None if nothing did.
        error: an error of the model, the data or a consumer, to be raised when the draws are safe.
    """

    draws: int
    why: str | None
    error: Exception | None = None


class Goal(Protocol):
    """Says when a run may stop before all iterations are made."""

    def planned(self, num_samples: int) -> int:
        """About how many iterations after warm-up there will be, at most so many."""

    def reached(self, draws: int) -> bool:
        """Whether so many draws suffice."""


def sample(
    run: Run[Any, Any], num_samples: int, thinning: int, consumers: Sequence[Consumer], goal: Goal | None = None
) -> Ended:
    """Advance a run to the end of its warm-up and ``num_samples`` iterations more, from wherever it is.

    Args:
        run: the run.
        num_samples: iterations after warm-up.
        thinning: every so many of these one is a draw.
        consumers: told of each iteration.
        goal: stops the run when it is reached.

    Returns:
        The number of draws made here; fewer than ``num_samples // thinning`` after an interrupt (Ctrl-C), or when a
        kernel without a Metropolis test met values that are not finite.

    Raises:
        KeyboardInterrupt, Exception: if there was no draw yet.
    """
    planned = num_samples if goal is None else goal.planned(num_samples)
    run.haste.planned = run.warmup_steps + planned
    draws, why, constrain = 0, None, run.problem.target.values
    try:
        while run.iteration < run.warmup_steps + num_samples:
            sites = run.advance()
            if run.warming_up:
                iteration = Iteration("Warmup", run.iteration - 1, -1, sites, run.statistics, constrain)
            else:
                index = run.iteration - run.warmup_steps - 1
                draw = index // thinning if (index + 1) % thinning == 0 else -1
                iteration = Iteration("Sample", index, draw, sites, run.statistics, constrain)
            for consumer in consumers:
                consumer(iteration)
                if consumer is consumers[0]:
                    # Whoever interrupts from here on, the first consumer, which keeps the draws, has this one.
                    draws += iteration.kept
            if goal is not None and iteration.kept:
                if goal.reached(iteration.draw + 1):
                    break
                run.haste.planned = run.warmup_steps + goal.planned(num_samples)
        run.compare_graphs(_CHAINS_COMPARED_AT_THE_END)
    except (KeyboardInterrupt, NotFiniteError) as error:
        if not draws:
            raise
        why = str(error).removesuffix(".") or "Interrupted"
    except Exception as error:  # a model, its data or a consumer can fail in any way, hours in
        if not draws:
            raise
        return Ended(draws, None, error)
    return Ended(draws, why)


class Buffers:
    """Draws of all chains, in tensors ``(chains, draws, ...)``; twice as large when they are full.

    Args:
        draws: how many there will be, as far as is known.
        names: the sites to keep.
        constrained: whether to keep them as the model has them.

    Attributes:
        draws: how many have come.
    """

    def __init__(self, draws: int, names: Sequence[str], *, constrained: bool = False) -> None:
        self._room, self._names, self._constrained = draws, names, constrained
        self._buffers: Sites = {}
        self.draws = 0

    def __call__(self, iteration: Iteration) -> None:
        if not iteration.kept:
            return
        sites = iteration.values if self._constrained else iteration.sites
        if not self._buffers:
            self._buffers = {name: self._empty(sites[name]) for name in self._names}
        if self.draws == self._room:
            self._room *= 2
            self._buffers = {name: self._moved(buffer) for name, buffer in self._buffers.items()}
        for name, buffer in self._buffers.items():
            buffer[:, self.draws] = sites[name]
        self.draws += 1

    def filled(self, draws: int) -> Sites:
        """The first of those that came, ``{site: (chains, draws, ...)}``."""
        return {name: buffer[:, :draws] for name, buffer in self._buffers.items()}

    def _empty(self, value: Tensor) -> Tensor:
        return value.new_empty(len(value), self._room, *value.shape[1:])

    def _moved(self, buffer: Tensor) -> Tensor:
        larger = buffer.new_empty(len(buffer), self._room, *buffer.shape[2:])
        larger[:, : self.draws] = buffer
        return larger


class Recorder:
    """Puts the statistics of iterations after warm-up into a record."""

    def __init__(self) -> None:
        self.record = Record()

    def __call__(self, iteration: Iteration) -> None:
        if iteration.stage == "Sample":
            self.record.add(iteration.statistics, kept=iteration.kept)


class ProgressBar:
    """A bar whose figures are read from the device only a few times a second.

    Args:
        total: number of iterations.
        figures: what to show beside the bar.
        disable: show nothing.
        made: how many have been made before.
    """

    def __init__(self, total: int, figures: Any, disable: bool, made: int = 0) -> None:
        self._bar = tqdm(total=total, initial=made, disable=disable, mininterval=_SECONDS_BETWEEN_REPORTS)
        self._figures, self._disable, self._total = figures, disable, total
        self._pending, self._reported = 0, 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._pending)
        self._bar.close()

    def __call__(self, iteration: Iteration) -> None:
        self._pending += 1
        now = time.monotonic()
        recent = now - self._reported < _SECONDS_BETWEEN_REPORTS
        if self._disable or (recent and self._bar.n + self._pending < self._total):
            return
        self._bar.set_description(iteration.stage, refresh=False)
        self._bar.set_postfix(self._figures(), refresh=False)
        self._bar.update(self._pending)
        self._pending, self._reported = 0, now
