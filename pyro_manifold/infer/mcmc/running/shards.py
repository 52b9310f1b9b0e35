"""Shards: groups of chains that are run in separate processes or on other machines by any executor."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyro
import torch
from torch import Tensor

from pyro_manifold.compiled import NotTraced
from pyro_manifold.density import Program, Sites, seed_of
from pyro_manifold.diagnostics import SamplerWarning
from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.running.store import Store, has_begun
from pyro_manifold.progress import progress_bar
from pyro_manifold.store import shard_folder, write_roughly

_ATTEMPTS = 3
_SECONDS_BETWEEN_CHECKS = 1.0
_LARGEST_SEED = 2**32  # supported by NumPy
_PROGRESS = "progress"
_ALONE = threading.Lock()  # Pyro's handlers and torch's generator are global to the process

MakeExecutor = Callable[[], Executor]


@dataclass(frozen=True)
class Shards:
    """Chains spread over processes and machines: ``MCMC(..., chain_method=Shards(ProcessPoolExecutor(2), 2))``.

    Each shard has its own warm-up, seed and, with a store, folder. Draws depend on the number of shards, but not on the
    number of workers. See ``docs/how_to/resuming.md``.

    Args:
        executor: any `concurrent.futures.Executor`, or a function without arguments that returns one. The function is
            called again if the death of a worker breaks the executor.
        count: number of shards, with the same number of chains each.
        threads: number of threads of each shard.

    Raises:
        ValueError: for arguments of other types, or counts below 1.

    Examples:
        >>> from concurrent.futures import ProcessPoolExecutor
        >>> Shards(lambda: ProcessPoolExecutor(2), 4).count
        4
    """

    executor: Executor | MakeExecutor
    count: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.executor, Executor) and not callable(self.executor):
            raise ValueError(
                f"executor={self.executor!r}, expected a concurrent.futures.Executor such as "
                "ProcessPoolExecutor(2), or a function without arguments that returns one."
            )
        check_positive_integer(count=self.count, threads=self.threads)


class Work(Protocol):
    """Protocol of the work of shards, which is pickled and sent to their processes."""

    @property
    def store(self) -> Store | None:
        """Folder of the shards' storage; None to send results back when a shard has ended."""

    @property
    def seed(self) -> int:
        """Seed from which the seeds of shards are derived."""

    def done_by(self, number: int, count: int) -> tuple[Sites, dict[str, Tensor]]:
        """Do the work of one of ``count`` shards; return its draws and their statistics."""


@dataclass(frozen=True)
class Job:
    """Work of all shards: sampling of chains.

    Attributes:
        sampling: creates the sampler of one shard: `MCMC`.
        kernel: kernel of all shards.
        num_samples: number of iterations after warm-up.
        num_chains: number of chains of all shards together.
        initial_params: initial values of all chains, or None.
        options: options of ``MCMC``, the same for all shards.
        program: the model with its arguments; None for a ``potential_fn``.
        store: folder with the folders of the shards; None to send draws back when a shard has ended.
        seed: seed from which the seeds of shards are derived.
        only_compare: whether to compare stored shards with this run, without sampling.
    """

    sampling: Callable[..., Any]
    kernel: Any
    num_samples: int
    num_chains: int
    initial_params: Sites | None
    options: dict[str, Any]
    program: Program | None
    store: Store | None
    seed: int
    only_compare: bool = False

    def comparison(self, count: int) -> Job | None:
        """Return the job that compares stored shards with this run, to be done before sampling.

        Returns:
            None where all shards, or none, have begun.
        """
        if self.store is None:
            return None
        begun = {has_begun(shard_folder(self.store.folder, number)) for number in range(count)}
        return replace(self, only_compare=True) if len(begun) > 1 else None

    def done_by(self, number: int, count: int) -> tuple[Sites, dict[str, Tensor]]:
        """Run the chains of one shard; return draws and statistics, or nothing if they are stored."""
        chains = self.num_chains // count
        own = slice(number * chains, (number + 1) * chains)
        store = None if self.store is None else replace(self.store, path=shard_folder(self.store.folder, number))
        if self.only_compare and (store is None or not has_begun(store.folder)):
            return {}, {}
        starts = None if self.initial_params is None else {name: x[own] for name, x in self.initial_params.items()}
        if starts is not None and chains == 1:
            starts = {name: x[0] for name, x in starts.items()}
        mcmc = self.sampling(
            self.kernel,
            self.num_samples,
            initial_params=starts,
            num_chains=chains,
            store=store,
            resume=store is not None,
            consumers=[] if store is None else [_IterationFile(store.folder, self.options["warmup_steps"])],
            disable_progbar=True,
            **self.options,
        )
        if self.only_compare:
            mcmc.compare_program(self.program)
            return {}, {}
        mcmc.run_program(self.program)
        if store is not None:
            return {}, {}
        return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)


class Outcome(NamedTuple):
    """Result of a shard: its draws, warnings, and its error if there was one.

    Attributes:
        error: error of the model or its data; None if there was none.
        samples: draws, if they are not stored.
        statistics: statistics of these draws.
        warnings: its warnings.
    """

    error: Exception | None
    samples: Sites
    statistics: dict[str, Tensor]
    warnings: list[UserWarning]


class LostShardError(RuntimeError):
    """Error if workers end before their shards."""


# ---- in the worker processes
# ------------------------------------------------------------------------------------------


@dataclass
class _IterationFile:
    """Consumer that writes the number of iterations into a shard's folder about once per second."""

    folder: Path
    warmup_steps: int
    due: float = field(default_factory=time.monotonic)

    def __call__(self, iteration: Any) -> None:
        if time.monotonic() >= self.due:
            self.due = time.monotonic() + _SECONDS_BETWEEN_CHECKS
            made = iteration.index + (1 if iteration.stage == "Warmup" else 1 + self.warmup_steps)
            write_roughly(self.folder / _PROGRESS, str(made))


def run_shard(payload: bytes, number: int, attempt: int) -> Outcome:
    """Run the chains of one shard in this process.

    Args:
        payload: the job and the number of threads, by cloudpickle.
        number: number of the shard.
        attempt: number of times that it was lost, since schedulers may merge identical calls.
    """
    import cloudpickle

    with _ALONE:
        job, count, threads, dtype = cloudpickle.loads(payload)
        before = torch.get_num_threads(), torch.get_default_dtype(), pyro.util.get_rng_state()
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        try:
            return outcome_of(job, count, number)
        finally:
            torch.set_num_threads(before[0])
            torch.set_default_dtype(before[1])
            pyro.util.set_rng_state(before[2])


def outcome_of(job: Work, count: int, number: int) -> Outcome:
    """Do the work of one shard in this process, with the seed of the shard."""
    pyro.set_rng_seed(seed_of(job.seed, number) % _LARGEST_SEED)
    error: Exception | None = None
    samples: Sites = {}
    statistics: dict[str, Tensor] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            samples, statistics = job.done_by(number, count)
        except Exception as raised:  # a model can fail in any way
            error = _picklable(raised)
    found = [_of_package(each.message) for each in caught if issubclass(each.category, UserWarning)]
    return Outcome(error, samples, statistics, found)


def _of_package(warning: Warning | str) -> UserWarning:
    """Return a warning that can be pickled, as warnings of a user's own class need not be."""
    return warning if isinstance(warning, SamplerWarning | NotTraced) else UserWarning(str(warning))


def _picklable(error: Exception) -> Exception:
    """Return the error without parts that cannot be pickled."""
    import cloudpickle

    error = error.with_traceback(None)
    error.__cause__ = error.__context__ = None
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # a user-defined exception whose constructor has other arguments
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# ---- in the calling process ----------------------------------------------------------------------------------


def run_shards(shards: Shards, job: Work, total: int, disable_progbar: bool) -> list[Outcome]:
    """Run all shards and return their results.

    Args:
        shards: number of shards and their executor.
        job: work of the shards.
        total: number of iterations of a shard, for the progress bar.
        disable_progbar: whether to hide the progress bar.

    Raises:
        LostShardError: if workers end repeatedly, or the executor is broken and cannot be replaced.
        Exception: an error of the model, with the number of its shard.
    """
    outcomes = outcomes_of(shards, job, total, disable_progbar)
    for number, outcome in enumerate(outcomes):
        for found in outcome.warnings:
            warnings.warn(f"Shard {number}: {found}", type(found), stacklevel=5)
        if outcome.error is not None:
            outcome.error.add_note(f"In shard {number} of {shards.count}.")
            raise outcome.error
    return outcomes


def outcomes_of(shards: Shards, job: Work, total: int, disable_progbar: bool) -> list[Outcome]:
    """Run all shards and return their outcomes, of which some may be errors; arguments are those of `run_shards`.

    Raises:
        LostShardError: if workers end repeatedly, or the executor is broken and cannot be replaced.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise ValueError(
            "executor needs cloudpickle, with which models are sent to other processes: pip install "
            "'pyro-manifold[executors]'."
        ) from error
    try:
        payload = cloudpickle.dumps((job, shards.count, shards.threads, torch.get_default_dtype()))
    except Exception as error:  # pickling can fail in any way
        raise ValueError(
            f"executor sends the model and its data to other processes, but they cannot be pickled ({error}): "
            "create unpicklable objects inside the model, or leave executor out."
        ) from error
    folder = None if job.store is None else job.store.folder
    with progress_bar(total=shards.count * total, disable=disable_progbar) as bar:
        return _Scheduler(shards, payload, lambda ended: _show(bar, folder, shards.count, total, ended)).outcomes()


class _Scheduler:
    """Scheduler that submits shards, and resubmits those whose workers were lost."""

    def __init__(self, shards: Shards, payload: bytes, show: Callable[[set[int]], None]) -> None:
        self._shards, self._payload, self._show = shards, payload, show
        self._made = not isinstance(shards.executor, Executor)
        self._executor = self._new()
        self._attempts = [0] * shards.count
        self._pending: dict[Future[Outcome], int] = {}

    def _new(self) -> Executor:
        given = self._shards.executor
        executor = given if isinstance(given, Executor) else given()
        if not isinstance(executor, Executor):
            raise ValueError(f"executor returned {executor!r}, expected a concurrent.futures.Executor.")
        return executor

    def outcomes(self) -> list[Outcome]:
        found: dict[int, Outcome] = {}
        try:
            lost = list(range(self._shards.count))
            while lost or self._pending:
                for number in lost:
                    self._submit(number)
                lost = self._wait(found)
                self._show(set(found))
        finally:
            for future in self._pending:
                future.cancel()
            if self._made:
                self._executor.shutdown(wait=not self._pending)
        return [found[number] for number in sorted(found)]

    def _submit(self, number: int) -> None:
        try:
            future = self._executor.submit(run_shard, self._payload, number, self._attempts[number])
        except BrokenExecutor as error:
            self._replace_executor(error)
            future = self._executor.submit(run_shard, self._payload, number, self._attempts[number])
        self._pending[future] = number

    def _wait(self, found: dict[int, Outcome]) -> list[int]:
        """Collect the results of finished shards, and return the shards that were lost."""
        done, _ = wait(self._pending, _SECONDS_BETWEEN_CHECKS, FIRST_COMPLETED)
        lost = []
        for future in done:
            number = self._pending.pop(future)
            try:
                found[number] = future.result()
            except Exception as error:  # an error of the executor, since errors of the model are part of outcomes
                if not is_loss(error):
                    raise
                self._attempts[number] += 1
                if self._attempts[number] == _ATTEMPTS:
                    raise LostShardError(
                        f"The worker of shard {number} ended {_ATTEMPTS} times ({error}), possibly for lack of "
                        "memory. Stored draws are kept: run again with resume=True."
                    ) from error
                lost.append(number)
        return lost

    def _replace_executor(self, error: BrokenExecutor) -> None:
        if not self._made:
            raise LostShardError(
                f"The executor is broken ({error}) and accepts no more work. Stored draws are kept: run again with "
                "a new executor and resume=True, or pass a function that returns one, such as executor=lambda: "
                "ProcessPoolExecutor(2)."
            ) from error
        self._executor.shutdown(wait=False)
        self._executor = self._new()


def is_loss(error: Exception) -> bool:
    """Return whether an error means a lost worker; Dask's errors are matched by name, as Dask may not be installed."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, BrokenExecutor | CancelledError | ConnectionError) or bool(
        names & {"KilledWorker", "CommClosedError", "FutureCancelledError"}
    )


def _show(bar: Any, folder: Path | None, count: int, total: int, ended: set[int]) -> None:
    made = 0
    for number in range(count):
        if number in ended:
            made += total
        elif folder is not None:
            made += min(total, _stored_iterations(shard_folder(folder, number)))
    bar.update(made - bar.n)


def _stored_iterations(folder: Path) -> int:
    try:
        with (folder / _PROGRESS).open() as file:
            return max(0, int(file.read(20)))
    except (OSError, ValueError):  # not yet written, or being written
        return 0
