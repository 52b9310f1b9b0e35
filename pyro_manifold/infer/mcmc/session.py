"""A run, where its draws go, and how far it is to go: what `MCMC.run` begins and `MCMC.continue_run` goes on with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from pyro_manifold.infer.mcmc.goal import Goal, Looks
from pyro_manifold.infer.mcmc.keeping import InMemory, Keeper
from pyro_manifold.infer.mcmc.loop import Consumer, ProgressBar, sample
from pyro_manifold.infer.mcmc.run import Run

RECENT = 4096  # draws that are looked at without being asked, where all need not fit into memory


class Session:
    """Iterations of one run, made in one go or in several.

    Args:
        run: the run.
        keeper: keeps its draws.
        thinning: iterations of a draw.
        asked: iterations after warm-up.
        goal: stops it before.

    Attributes:
        stopped: why a run with a goal stopped; None before it has.
        error: what stopped it before all were made, to be raised when the draws can be had.
    """

    stopped: str | None = None

    def __init__(self, run: Run[Any, Any], keeper: Keeper, thinning: int, asked: int, goal: Goal | None = None) -> None:
        self._goal = goal
        self.run, self._keeper, self._thinning, self._asked = run, keeper, thinning, asked
        self.error: BaseException | None = None

    @property
    def wanted(self) -> int:
        """Draws of each chain that were asked for."""
        return self._asked // self._thinning

    @property
    def draws(self) -> int:
        """How many of these there are; a store may have more, of a run that was continued."""
        return min(self._keeper.made, self.wanted)

    def ask_for(self, iterations: int) -> None:
        """So many more, whatever the goal was."""
        self._asked += iterations
        self._goal = self.stopped = None
        if isinstance(self._keeper, InMemory):
            self._keeper.make_room(self.wanted - self._keeper.made)

    def go_on(self, consumers: Sequence[Consumer], figures: Callable[[], Any], disable_progbar: bool) -> None:
        """Make what was asked for; an error of the model, the data or a consumer is kept in ``error``.

        Raises:
            KeyboardInterrupt: before the first draw, with a warning that says what is kept.
        """
        self.error = None
        total, wanted = self.run.warmup_steps + self._asked, self.wanted
        why: str | None = None
        error: BaseException | None = None
        looks = None if self._goal is None else Looks(self._goal, self._keeper, self._thinning)
        with self._keeper.sampling():
            try:
                with ProgressBar(total, figures, disable_progbar, self.run.iteration) as progress:
                    consumers = [self._keeper, *consumers, progress]
                    if looks is None or not looks.reached(min(self._keeper.made, wanted)):
                        _, why, error = sample(self.run, self._asked, self._thinning, consumers, looks)
            except BaseException as raised:  # there was no draw yet in this go; there may be some from before
                error = raised
            try:
                self._keeper.finish(whole=why is None and error is None)
            except OSError as full:
                error = error or full  # the first error is the one that counts
        broken_off = why is not None or error is not None
        if looks is not None and not broken_off:
            self.stopped = looks.verdict(wanted)
        if broken_off or looks is not None:  # what was not made is not asked for again
            self._asked = max(0, min(self._asked, self.run.iteration - self.run.warmup_steps))
        made = self._keeper.made
        if isinstance(error, KeyboardInterrupt):
            if not made:
                warnings.warn(
                    f"Interrupted at iteration {self.run.iteration}, of which {self.run.warmup_steps} are warm-up, and "
                    "before the first draw: what warm-up has learnt is kept, and continue_run(num_samples) goes on.",
                    stacklevel=4,
                )
                raise error
            why, error = "Interrupted", None
        if error is not None:
            if made:
                error.add_note(f"MCMC kept {made} of {wanted} draws of each chain: get_samples() has them.")
            self.error = error
        elif why is not None:
            warnings.warn(f"{why}: kept {made} of {wanted} draws of each chain.", stacklevel=4)
        elif self._goal is not None and not self._goal.reached:
            warnings.warn(str(self.stopped), stacklevel=4)

    def figures(self) -> Mapping[str, str]:
        """How far the goal is, for the progress bar."""
        return {} if self._goal is None else self._goal.figures()

    def samples(self) -> Mapping[str, Tensor]:
        """``{site: (chains, draws, ...)}``, as the model has them."""
        return self._keeper.samples(self.draws)

    def statistics(self) -> Mapping[str, Tensor]:
        """``{name: (chains, draws)}``."""
        return self._keeper.statistics(self.draws)

    def recent(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Samples and statistics, of the last draws only where they are not in memory."""
        return self._keeper.samples(self.draws, RECENT), self._keeper.statistics(self.draws, RECENT)


class Reports(Sequence[dict[str, Any]]):
    """What a kernel tells of each chain, made when somebody asks.

    Args:
        make: makes them.
        chains: how many there will be.
    """

    def __init__(self, make: Callable[[], list[dict[str, Any]]], chains: int) -> None:
        self._make, self._chains = make, chains

    def __len__(self) -> int:
        return self._chains

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._make())

    def __getitem__(self, index: Any) -> Any:
        return self._make()[index]
