"""Sampling of a run: its draw storage and number of iterations, for `MCMC.run` and `MCMC.continue_run`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from pyro_manifold.infer.mcmc.running.draw_storage import DrawStorage, InMemory
from pyro_manifold.infer.mcmc.running.goal import Goal, GoalChecks
from pyro_manifold.infer.mcmc.running.loop import Consumer, ProgressBar, sample
from pyro_manifold.infer.mcmc.running.reference_points import AnotherDensityError
from pyro_manifold.infer.mcmc.running.run import Run

_CHAINS_COMPARED = 16
RECENT = 4096  # number of draws used for end-of-run warnings if draws are stored in files


class Sampling:
    """Iterations of one run, in one or several calls.

    Args:
        run: the run.
        storage: draw storage.
        thinning: number of iterations per draw.
        iterations: number of iterations after warm-up.
        goal: stopping rule.
        data: fingerprints of minibatched data by name, as the density depends on a part of the data at a time.

    Attributes:
        stopped: reason for which a run with a goal stopped; None before that.
        error: error that ended the run early, to be raised once the draws are available.
    """

    stopped: str | None = None

    def __init__(
        self,
        run: Run[Any, Any],
        storage: DrawStorage,
        thinning: int,
        iterations: int,
        goal: Goal | None = None,
        data: Mapping[str, str] | None = None,
    ) -> None:
        self._goal, self._data = goal, dict(data or {})
        self.run, self._storage, self._thinning, self._iterations = run, storage, thinning, iterations
        self.error: BaseException | None = None
        run.density.record()

    @property
    def requested(self) -> int:
        """Number of draws of each chain that were requested."""
        return self._iterations // self._thinning

    @property
    def draws(self) -> int:
        """Number of requested draws that exist; the storage of a continued run may have more."""
        return min(self._storage.num_draws, self.requested)

    def check_density(self, data: Mapping[str, str]) -> None:
        """Check that model and data are those of the iterations so far.

        Args:
            data: current fingerprints.

        Raises:
            ValueError: if the density or minibatched data have changed.
        """
        before = self._data
        changed = [
            f"{name} was {before[name]}, and is {data.get(name)}" for name in before if data.get(name) != before[name]
        ]
        try:
            self.run.density.check()
        except AnotherDensityError as error:
            changed = [f"the density is no longer that of the run ({error.difference})"]
        if changed:
            raise ValueError(
                f"MCMC.continue_run: {'; '.join(changed)}: continue with the original model and data, or create a "
                "new MCMC."
            )
        self.run.code.compare_density(_CHAINS_COMPARED)

    def ask_for(self, iterations: int) -> None:
        """Request further iterations and discard the stopping rule."""
        self._iterations += iterations
        self._goal = self.stopped = None
        if isinstance(self._storage, InMemory):
            self._storage.make_room(self.requested - self._storage.num_draws)

    def resume(self, consumers: Sequence[Consumer], figures: Callable[[], Any], disable_progbar: bool) -> None:
        """Run the requested iterations; an error of the model, the data or a consumer is stored in ``error``.

        Raises:
            KeyboardInterrupt: before the first draw, with a warning that the state of warm-up is kept.
        """
        self.error = None
        total, requested = self.run.warmup_steps + self._iterations, self.requested
        stop_reason: str | None = None
        error: BaseException | None = None
        checks = None if self._goal is None else GoalChecks(self._goal, self._storage, self._thinning)
        with self._storage.sampling():
            try:
                with ProgressBar(total, figures, disable_progbar, self.run.iteration) as progress:
                    consumers = [self._storage, *consumers, progress]
                    if checks is None or not checks.reached(min(self._storage.num_draws, requested)):
                        _, stop_reason, error = sample(self.run, self._iterations, self._thinning, consumers, checks)
            except BaseException as raised:  # no draw in this call; there may be earlier ones
                error = raised
            try:
                self._storage.finish(whole=stop_reason is None and error is None)
            except OSError as full:
                error = error or full  # the first error is the one reported
        broken_off = stop_reason is not None or error is not None
        if checks is not None and not broken_off:
            self.stopped = checks.verdict(requested)
        if broken_off or checks is not None:  # iterations not made are no longer requested
            self._iterations = max(0, min(self._iterations, self.run.iteration - self.run.warmup_steps))
        stored = self._storage.num_draws
        if isinstance(error, KeyboardInterrupt):
            if not stored:
                warnings.warn(
                    f"Interrupted at iteration {self.run.iteration} (warm-up has {self.run.warmup_steps}), before "
                    "the first draw: the state of warm-up is kept, and continue_run(num_samples) continues from it.",
                    stacklevel=4,
                )
                raise error
            stop_reason, error = "Interrupted", None
        if error is not None:
            if stored:
                error.add_note(f"MCMC kept {stored} of {requested} draws of each chain: get_samples() returns them.")
            self.error = error
        elif stop_reason is not None:
            warnings.warn(f"{stop_reason}: kept {stored} of {requested} draws of each chain.", stacklevel=4)
        elif self._goal is not None and not self._goal.reached:
            warnings.warn(str(self.stopped), stacklevel=4)

    def progress(self) -> Mapping[str, str]:
        """Return the progress towards the goal, for the progress bar."""
        return {} if self._goal is None else self._goal.progress()

    def samples(self) -> Mapping[str, Tensor]:
        """Return constrained draws, ``{site: (chains, draws, ...)}``."""
        return self._storage.samples(self.draws)

    def statistics(self) -> Mapping[str, Tensor]:
        """Return statistics, ``{name: (chains, draws)}``."""
        return self._storage.statistics(self.draws)

    def recent(self) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Return draws and statistics, only of the most recent draws if they are stored in files."""
        return self._storage.samples(self.draws, RECENT), self._storage.statistics(self.draws, RECENT)

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return the entries of `MCMC.diagnostics` that this kind of run adds to those of all runs."""
        return self.run.diagnostics_entries()

    def summary_lines(self) -> list[str]:
        """Return lines below the table of `MCMC.summary`."""
        return self.run.summary_lines()
