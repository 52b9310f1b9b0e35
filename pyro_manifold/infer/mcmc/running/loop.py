"""Sampling loop of a run and consumers of its iterations: buffers, records, callbacks, progress bar."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from pyro_manifold.density import Sites, Target
from pyro_manifold.infer.mcmc.running.record import Record
from pyro_manifold.infer.mcmc.running.run import Run
from pyro_manifold.infer.mcmc.transitions import NotFiniteError, Statistics, unbound
from pyro_manifold.progress import progress_bar

_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass(frozen=True)
class Iteration:
    """One iteration of all chains, as passed to consumers.

    Tensors are shared with the run: copy them to keep them, and do not modify them in place.

    Attributes:
        stage: ``"Warmup"`` or ``"Sample"``, as in Pyro.
        index: number of the iteration within its stage, from 0.
        draw: number of the draw that it completes, from 0; -1 if it is thinned or in warm-up.
        positions: positions of the chains in the coordinates in which they move, ``{site: (chains, ...)}``.
        statistics: statistics of the transitions, ``{name: (chains,)}``.
        target: target of the draws.
    """

    stage: Literal["Warmup", "Sample"]
    index: int
    draw: int
    positions: Sites
    statistics: Statistics
    target: Target = field(repr=False)

    @cached_property
    def sites(self) -> Sites:
        """Sites of the model, ``{site: (chains, ...)}``, on their manifold or in unconstrained space."""
        return self.target.sites(self.positions)

    @cached_property
    def values(self) -> Sites:
        """Constrained values of all sites, ``{site: (chains, ...)}``, computed at most once."""
        return self.target.values(self.positions)

    @property
    def kept(self) -> bool:
        """True if the iteration completes a draw."""
        return self.draw >= 0


@dataclass(frozen=True)
class Iterations:
    """Successive iterations after warm-up that were made in one call.

    Attributes:
        first: number of the first one after warm-up, from 0.
        thinning: number of iterations per draw.
        positions: positions of the chains, ``{site: (iterations, chains, ...)}``.
        statistics: statistics, ``{name: (iterations, chains)}``.
        target: target of the draws.
    """

    first: int
    thinning: int
    positions: Sites
    statistics: Statistics
    target: Target = field(repr=False)

    def __len__(self) -> int:
        return len(next(iter(self.statistics.values())))

    def __iter__(self) -> Iterator[Iteration]:
        each = zip(unbound(self.positions, len(self)), unbound(self.statistics, len(self)), strict=True)
        for index, (positions, statistics) in enumerate(each, self.first):
            yield Iteration("Sample", index, draw_of(index, self.thinning), positions, statistics, self.target)

    @property
    def kept(self) -> range:
        """Iterations among these that complete a draw, counted from 0."""
        return range(self.thinning - 1 - self.first % self.thinning, len(self), self.thinning)


def draw_of(index: int, thinning: int) -> int:
    """Return the number of the draw that an iteration of sampling completes, both from 0; -1 if it is thinned."""
    return index // thinning if (index + 1) % thinning == 0 else -1


class Consumer(Protocol):
    """Protocol of a function that is called after each iteration, such as a buffer, a file or a running mean."""

    def __call__(self, iteration: Iteration) -> None: ...


@runtime_checkable
class ConsumerOfSeveral(Consumer, Protocol):
    """Protocol of a consumer to which several iterations may be passed together."""

    def several(self, iterations: Iterations) -> None:
        """Do what calls with each of the iterations would do."""


class Ended(NamedTuple):
    """Result of the sampling loop: number of draws and reason for an early end.

    Attributes:
        draws: number of draws made.
        stop_reason: reason for an early end; None if there was none.
        error: error of the model, the data or a consumer, to be raised once the draws are stored.
    """

    draws: int
    stop_reason: str | None
    error: Exception | None = None


class Goal(Protocol):
    """Protocol of a stopping rule, which may end a run before all iterations are made."""

    def planned(self, num_samples: int) -> int:
        """Return the expected number of iterations after warm-up, at most ``num_samples``."""

    def reached(self, draws: int) -> bool:
        """Return whether the stopping criterion is met with this number of draws."""


def sample(
    run: Run[Any, Any], num_samples: int, thinning: int, consumers: Sequence[Consumer], goal: Goal | None = None
) -> Ended:
    """Advance a run from its current iteration to ``num_samples`` iterations after the end of warm-up.

    Args:
        run: the run.
        num_samples: iterations after warm-up.
        thinning: number of iterations per draw.
        consumers: functions called after each iteration; the first one stores the draws.
        goal: stopping rule.

    Returns:
        The number of draws made here; fewer than ``num_samples // thinning`` after an interrupt (Ctrl-C), or when a
        kernel without a Metropolis test reached values that are not finite.

    Raises:
        KeyboardInterrupt, Exception: if there is no draw yet.
    """
    planned = num_samples if goal is None else goal.planned(num_samples)
    run.policy.planned = run.warmup_steps + planned
    draws, stop_reason = 0, None
    known = max(0, run.iteration - run.warmup_steps) // thinning
    together = [consumer for consumer in consumers if isinstance(consumer, ConsumerOfSeveral)]
    if len(together) < len(consumers):
        together = []
    try:
        while run.iteration < run.warmup_steps + num_samples:
            # From the first consumer on, draws are stored, also in case of an interrupt.
            several = _several(run, thinning) if together else None
            if several is not None:
                for number, each in enumerate(together):
                    each.several(several)
                    draws += 0 if number else len(several.kept)
                run.code.after_iteration()
            else:
                iteration = _one(run, thinning)
                for consumer in consumers:
                    consumer(iteration)
                    draws += iteration.kept if consumer is consumers[0] else 0
            made = max(0, run.iteration - run.warmup_steps) // thinning
            if goal is not None and made > known:
                if goal.reached(made):
                    break
                run.policy.planned, known = run.warmup_steps + goal.planned(num_samples), made
        run.code.at_the_end()
    except (KeyboardInterrupt, NotFiniteError) as error:
        if not draws:
            raise
        stop_reason = str(error).removesuffix(".") or "Interrupted"
    except Exception as error:  # a model, its data or a consumer can fail in any way, also late in a run
        if not draws:
            raise
        return Ended(draws, None, error)
    return Ended(draws, stop_reason)


def _one(run: Run[Any, Any], thinning: int) -> Iteration:
    run.iterate()
    of_chains = run.positions, run.statistics, run.target
    if run.warming_up:
        return Iteration("Warmup", run.iteration - 1, -1, *of_chains)
    index = run.iteration - run.warmup_steps - 1
    return Iteration("Sample", index, draw_of(index, thinning), *of_chains)


def _several(run: Run[Any, Any], thinning: int) -> Iterations | None:
    first = run.iteration - run.warmup_steps
    made = run.iterate_together()
    if made is None:
        return None
    positions = run.problem.layout.unpack(made.states.position)
    return Iterations(first, thinning, positions, made.statistics, run.target)


class Buffers:
    """Buffers of draws in memory, ``(chains, draws, ...)``; the capacity is doubled when they are full.

    Positions are stored, and values computed of all draws together, which takes less time; or values are computed of
    each draw, so that their rounding does not depend on the number of draws.

    Args:
        draws: initial capacity, the expected number of draws.
        names: sites whose values are needed.
        target: target of the draws.
        each: whether values are computed of each draw.

    Attributes:
        draws: number of draws stored.
    """

    def __init__(self, draws: int, names: Sequence[str], target: Target, *, each: bool = False) -> None:
        self._room, self._names, self._target, self._each = draws, names, target, each
        self._buffers: Sites = {}
        self._fixed: Sites = {}  # positions that are the same in all draws
        self.draws = 0

    def __call__(self, iteration: Iteration) -> None:
        if not iteration.kept:
            return
        kept = iteration.values if self._each else iteration.positions
        if not self._buffers:
            needed = self._names if self._each else self._target.needed(self._names)
            self._buffers = {name: self._empty(kept[name]) for name in needed}
        if self.draws == self._room:
            self._room *= 2
            self._buffers = {name: self._moved(buffer) for name, buffer in self._buffers.items()}
        for name, buffer in self._buffers.items():
            buffer[:, self.draws] = kept[name]
        self._fixed = {name: iteration.positions[name] for name in self._target.undifferentiated}
        self.draws += 1

    def several(self, iterations: Iterations) -> None:
        """Store several iterations."""
        kept = iterations.kept
        if self._each or not self._buffers or self.draws + len(kept) > self._room:
            for iteration in iterations:
                self(iteration)
            return
        rows = slice(kept.start, kept.stop, kept.step)
        for name, buffer in self._buffers.items():
            buffer[:, self.draws : self.draws + len(kept)] = iterations.positions[name][rows].transpose(0, 1)
        self._fixed = {name: iterations.positions[name][-1] for name in self._target.undifferentiated}
        self.draws += len(kept)

    def sites(self, draws: int) -> Sites:
        """Return the sites of the first draws on their manifold or in unconstrained space, from positions."""
        return self._target.sites(self._positions(draws)) if self._buffers else {}

    def values(self, draws: int) -> Sites:
        """Return the constrained values of the first draws, ``{site: (chains, draws, ...)}``."""
        if self._each or not self._buffers:
            return self._stored(draws)
        found = self._target.values(self._positions(draws))
        return {name: found[name] for name in self._names}

    def _positions(self, draws: int) -> Sites:
        fixed = {name: x.unsqueeze(1).expand(-1, draws, *x.shape[1:]) for name, x in self._fixed.items()}
        return self._stored(draws) | fixed

    def _stored(self, draws: int) -> Sites:
        return {name: buffer[:, :draws] for name, buffer in self._buffers.items()}

    def _empty(self, value: Tensor) -> Tensor:
        return value.new_empty(len(value), self._room, *value.shape[1:])

    def _moved(self, buffer: Tensor) -> Tensor:
        larger = buffer.new_empty(len(buffer), self._room, *buffer.shape[2:])
        larger[:, : self.draws] = buffer
        return larger


class Recorder:
    """Consumer that adds the statistics of iterations after warm-up to a `Record`."""

    def __init__(self) -> None:
        self.record = Record()

    def __call__(self, iteration: Iteration) -> None:
        if iteration.stage == "Sample":
            self.record.add(iteration.statistics, kept=iteration.kept)

    def several(self, iterations: Iterations) -> None:
        """Add the statistics of several iterations."""
        if iterations.thinning == 1:
            self.record.add_all(iterations.statistics)
            return
        for iteration in iterations:
            self(iteration)


class ProgressBar:
    """Progress bar whose figures are read from the device only a few times per second.

    Args:
        total: number of iterations.
        figures: function that returns the figures to show.
        disable: whether to hide the progress bar.
        made: number of iterations already made.
    """

    def __init__(self, total: int, figures: Any, disable: bool, made: int = 0) -> None:
        self._bar = progress_bar(total=total, initial=made, disable=disable, mininterval=_SECONDS_BETWEEN_REPORTS)
        self._figures, self._disable, self._total = figures, disable, total
        self._pending, self._reported = 0, 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.update(self._pending)
        self._bar.close()

    def __call__(self, iteration: Iteration) -> None:
        self._advance(1, iteration.stage)

    def several(self, iterations: Iterations) -> None:
        """Count several iterations."""
        self._advance(len(iterations), "Sample")

    def _advance(self, iterations: int, stage: str) -> None:
        self._pending += iterations
        now = time.monotonic()
        recent = now - self._reported < _SECONDS_BETWEEN_REPORTS
        if self._disable or (recent and self._bar.n + self._pending < self._total):
            return
        self._bar.set_description(stage, refresh=False)
        self._bar.set_postfix(self._figures(), refresh=False)
        self._bar.update(self._pending)
        self._pending, self._reported = 0, now
