"""Draw storage in files, with checkpoints from which an interrupted run can be resumed."""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.checks import is_a
from pyro_manifold.infer.mcmc.running.loop import Buffers, Iteration, Recorder
from pyro_manifold.infer.mcmc.running.reference_points import AnotherDensityError
from pyro_manifold.infer.mcmc.running.run import Run
from pyro_manifold.infer.mcmc.running.store import CHECKPOINT, Store
from pyro_manifold.store import (
    CHUNK,
    SITES,
    STATISTICS,
    Archive,
    DamagedError,
    Manifest,
    Site,
    StoredRun,
    StoredTensors,
    array_of,
    checksum_of,
    flattened,
    holds_a_run,
    locked,
    machine,
    new_identity,
    numbered,
    numbered_path,
    packed,
    remove_unfinished,
    unflattened,
    versions,
    was_being_written,
    write_durably,
)

_MOST_BYTES_OF_A_CHUNK = 2**25
_MOST_DRAWS_OF_A_CHUNK = 4096
_LARGEST_SHARE = 50  # writing takes at most about 1/50 of the time of a run, also if its state is large


class OnDisk:
    """Draw storage in a folder: files ``draws-000000.npz`` and so on, the last two checkpoints, and a manifest.

    A checkpoint is written before the draws that precede it, so that the run can be resumed after any draw that is
    visible.

    Args:
        store: folder and interval of checkpoints.
        run: the run, before its first iteration.
        names: sites to store.
        thinning: number of iterations per draw.
        parts: fingerprints of further inputs of the run, which its density does not determine.
        resume: whether to resume a run in that folder, if there is one.

    Raises:
        ValueError: if the folder contains a different run, or has no usable checkpoint.
    """

    def __init__(
        self,
        store: Store,
        run: Run[Any, Any],
        names: list[str],
        thinning: int,
        parts: dict[str, str],
        *,
        resume: bool,
    ) -> None:
        self._store, self._run, self._folder = store, run, store.folder
        self._names = names
        store.make_folder()
        self._recorder = Recorder()
        self._buffers: Buffers | None = None
        self._capacity = 1
        self._chunks: list[list[int]] = []  # number of draws, bytes and checksum of each
        self._checkpoint = 0
        self._stop = self._stopped = self._is_gone = False
        self._saved_at = -1
        self._stored: StoredRun | None = None
        manifest = _manifest(run, names, thinning, parts)
        with locked(self._folder):
            self._check_its_place(resume)
            if resume and holds_a_run(self._folder):
                manifest = self._known_again(manifest)
                self._manifest = manifest
                self._recover()
                remove_unfinished(self._folder)
            else:
                self._manifest = manifest
                manifest.write(self._folder)
            if not self._checkpoint:
                self._save(with_checkpoint=True)
        self._due = time.monotonic() + store.seconds

    def _check_its_place(self, resume: bool) -> None:
        """Raise an error if draws of another run would be overwritten, also of a process that started meanwhile."""
        if holds_a_run(self._folder):
            if not resume:
                raise ValueError(
                    f"store='{self._folder}' has been taken by a run of another process: choose another folder."
                )
        elif any(numbered(self._folder, CHUNK)) or any(numbered(self._folder, CHECKPOINT)):
            raise ValueError(
                f"store='{self._folder}' has files of a run but no manifest that identifies it: choose another folder."
            )

    # ---- iterations ---------------------------------------------------------------------------------------------

    @property
    def num_draws(self) -> int:
        return self._waiting if self._is_gone else self._stored_draws

    @property
    def _stored_draws(self) -> int:
        return sum(draws for draws, *_ in self._chunks)

    @property
    def _waiting(self) -> int:
        return self._recorder.record.draws

    def __call__(self, iteration: Iteration) -> None:
        if iteration.kept:
            if self._buffers is None:
                self._capacity = self._fitting(iteration)
                self._buffers = Buffers(self._capacity, self._names, self._run.target, each=True)
            self._buffers(iteration)
        self._recorder(iteration)
        if self._waiting >= self._capacity or time.monotonic() >= self._due or self._stop:
            self._save(with_checkpoint=True)
        if self._stop:
            self._stopped = True
            raise KeyboardInterrupt

    def _fitting(self, iteration: Iteration) -> int:
        """Return the number of draws per file."""
        tensors = [*(iteration.values[name] for name in self._names), *iteration.statistics.values()]
        size = max(1, sum(x.numel() * x.element_size() for x in tensors))
        return self._store.draws or max(1, min(_MOST_DRAWS_OF_A_CHUNK, _MOST_BYTES_OF_A_CHUNK // size))

    def sampling(self) -> AbstractContextManager[object]:
        return self._sampling()

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        """Lock the folder and defer an interrupt (Ctrl-C) to the end of its iteration; a second one is immediate."""
        self._stop = self._stopped = False

        def stop(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True

        self._check_is_there()
        main = threading.current_thread() is threading.main_thread()
        replaced = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with locked(self._folder):
            newest = max((number for number, _ in numbered(self._folder, CHECKPOINT)), default=0)
            if newest != self._checkpoint:
                raise ValueError(
                    f"store='{self._folder}' has since been written to by another process that resumed the run: "
                    "continue with a new MCMC(..., resume=True)."
                )
            if replaced:
                signal.signal(signal.SIGINT, stop)
            try:
                yield
            finally:
                if replaced:
                    signal.signal(signal.SIGINT, signal.default_int_handler)

    def finish(self, whole: bool) -> None:
        """Write all remaining draws.

        If an iteration was interrupted, the state of the random number generator is not that of an uninterrupted run.
        No checkpoint is then written, and draws since the last one are recomputed when the run is resumed.
        """
        if self._saved_at != self._run.iteration or self._waiting:
            self._save(with_checkpoint=whole or self._stopped)

    def settle(self) -> None:
        if self._waiting:
            self._save(with_checkpoint=True)

    # ---- writing ------------------------------------------------------------------------------------------------

    def _save(self, *, with_checkpoint: bool) -> None:
        begun = time.monotonic()
        self._check_is_there()
        contents: dict[Path, bytes] = {}
        chunks, number = list(self._chunks), self._checkpoint + 1
        draws = self._waiting
        chunk = self._packed_chunk(draws) if draws else b""
        if draws:
            chunks.append([draws, len(chunk), checksum_of(chunk)])
        if with_checkpoint:
            contents[numbered_path(self._folder, CHECKPOINT, number)] = self._packed_checkpoint(number, chunks)
        if draws:
            contents[numbered_path(self._folder, CHUNK, len(chunks) - 1)] = chunk
        try:
            write_durably(contents)
        except OSError:
            self._check_is_there()
            raise
        self._chunks = chunks
        if draws:
            self._recorder.record.forget()
            self._buffers = Buffers(self._capacity, self._names, self._run.target, each=True)
        if with_checkpoint:
            self._checkpoint, self._saved_at = number, self._run.iteration
            for older, path in numbered(self._folder, CHECKPOINT):
                if older < number - 1:
                    path.unlink(missing_ok=True)
        now = time.monotonic()
        self._due = now + max(self._store.seconds, _LARGEST_SHARE * (now - begun))

    def _check_is_there(self) -> None:
        """Raise an error if the folder has been removed; draws in memory are then kept there."""
        self._is_gone = not holds_a_run(self._folder)
        if self._is_gone:
            since = (
                f"the {self._waiting} later ones are in memory (get_samples)"
                if self._waiting
                else "there are no later ones"
            )
            raise OSError(
                f"store='{self._folder}' was removed or renamed during the run: {self._stored_draws} draws of each "
                f"chain were stored in it, {since}; use another store for a new run."
            )

    def _packed_chunk(self, draws: int) -> bytes:
        sites = {} if self._buffers is None else self._buffers.values(draws)
        statistics = self._recorder.record.statistics()
        arrays = {f"{SITES}/{name}": array_of(value) for name, value in sites.items()}
        arrays |= {f"{STATISTICS}/{name}": array_of(value) for name, value in statistics.items()}
        about = {
            "identity": self._manifest.identity,
            "number": len(self._chunks),
            "first": self._stored_draws,
            "draws": draws,
        }
        return packed(about, arrays)

    def _packed_checkpoint(self, number: int, chunks: list[list[int]]) -> bytes:
        arrays: dict[str, Any] = {}
        state = {
            "run": self._run.state_dict(),
            "unfinished draw": self._recorder.record.unfinished(),
            "torch": _random_states(self._run),
        }
        about = {
            "identity": self._manifest.identity,
            "number": number,
            "iteration": self._run.iteration,
            "chunks": chunks,
            "state": flattened(state, arrays),
        }
        return packed(about, arrays)

    # ---- resuming -----------------------------------------------------------------------------------------------

    def _known_again(self, manifest: Manifest) -> Manifest:
        stored = Manifest.read(self._folder)
        difference = stored.difference(manifest)
        if difference is not None:
            raise ValueError(f"store='{self._folder}' holds another run: {difference}. Choose another folder.")
        rounding = stored.rounding_difference(manifest)
        if rounding is not None:
            warnings.warn(
                f"store='{self._folder}' was written by another installation ({rounding}): the run continues, and "
                "its draws may differ by rounding from those of an uninterrupted run.",
                stacklevel=2,
            )
        return stored

    def _recover(self) -> None:
        """Restore the newest checkpoint that is intact, with all draws before it."""
        losses = []
        for number, path in reversed(list(numbered(self._folder, CHECKPOINT))):
            try:
                state, chunks = self._read(path, number)
            except _NeverSeenError:
                continue
            except DamagedError as error:
                losses.append(str(error))
                continue
            self._load(state)
            self._chunks, self._checkpoint, self._saved_at = chunks, number, self._run.iteration
            break
        else:
            if any(numbered(self._folder, CHUNK)):
                why = losses[-1] if losses else "Its checkpoints are missing."
                raise ValueError(
                    f"store='{self._folder}' has draws but no usable checkpoint ({why}): read them with open_run, "
                    "and choose another folder for this run."
                )
        if losses:
            warnings.warn(
                f"{' '.join(losses)} Continuing from iteration {self._run.iteration}, with {self.num_draws} draws of "
                "each chain; later draws are made again.",
                stacklevel=2,
            )
        for stem, kept in ((CHUNK, len(self._chunks) - 1), (CHECKPOINT, self._checkpoint)):
            for number, path in numbered(self._folder, stem):
                if number > kept:
                    path.unlink(missing_ok=True)

    def _read(self, path: Path, number: int) -> tuple[dict[str, Any], list[list[int]]]:
        """Read a checkpoint; return its state and list of draw files after verifying all of them."""
        archive = Archive(path)
        archive.verify()
        about = archive.about
        if about.get("identity") != self._manifest.identity or about.get("number") != number:
            raise DamagedError(f"{path} belongs to another run.")
        chunks = about.get("chunks")
        if not isinstance(chunks, list) or not all(_is_chunk(chunk) for chunk in chunks):
            raise DamagedError(f"{path} has no list of the draws before it: it is damaged.")
        self._check_chunks(chunks)
        try:
            state = unflattened(about.get("state"), archive)
        except RecursionError as error:
            raise DamagedError(f"{path} is nested too deeply for a state: it is damaged.") from error
        if not isinstance(state, dict) or not {"run", "unfinished draw", "torch"} <= set(state):
            raise DamagedError(f"{path} does not contain the state of a run: it is damaged.")
        return state, chunks

    def _check_chunks(self, chunks: list[list[int]]) -> None:
        for number, (_, size, checksum) in enumerate(chunks):
            path = numbered_path(self._folder, CHUNK, number)
            if not path.exists() and number == len(chunks) - 1 and was_being_written(path):
                raise _NeverSeenError
            archive = Archive(path)
            archive.verify()
            if path.stat().st_size != size or archive.checksum != checksum:
                raise DamagedError(f"{path} is not the file that was written.")

    def _load(self, state: dict[str, Any]) -> None:
        try:
            run, unfinished, random = (state[name] for name in ("run", "unfinished draw", "torch"))
            self._recorder.record.begin(unfinished)
            self._run.load_state_dict(run)
            _set_random_states(self._run, random)
        except AnotherDensityError as error:
            raise ValueError(
                f"store='{self._folder}' holds a run of another density ({error.difference}): resume it with its "
                "own model and data, or choose another folder for this run."
            ) from None
        except ValueError as error:
            raise ValueError(
                f"store='{self._folder}' holds another run, or is damaged ({str(error).rstrip('.')}): resume it "
                "with its own kernel, model and data, or choose another folder for this run."
            ) from error
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"The checkpoint in '{self._folder}' is damaged ({error}).") from error

    # ---- reading ------------------------------------------------------------------------------------------------

    def samples(self, draws: int, last: int | None = None) -> Mapping[str, Tensor]:
        if self._is_gone:
            return {} if self._buffers is None else self._buffers.values(draws)
        return StoredTensors([self._reader()], SITES, draws, last, self._run.random.device)

    def statistics(
        self, draws: int, last: int | None = None, names: Collection[str] | None = None
    ) -> Mapping[str, Tensor]:
        if self._is_gone:
            return {name: x[:, :draws] for name, x in self._recorder.record.statistics(names).items()}
        return StoredTensors([self._reader()], STATISTICS, draws, last, self._run.random.device)

    def _reader(self) -> StoredRun:
        if self._stored is None:
            self._stored = StoredRun(self._folder)
        self._stored.refresh()
        return self._stored


class _NeverSeenError(Exception):
    """Internal exception for a checkpoint whose draws were still being written when the process ended."""


def _manifest(run: Run[Any, Any], names: list[str], thinning: int, parts: dict[str, str]) -> Manifest:
    values = run.values
    return Manifest(
        identity=new_identity(),
        sites={name: Site(str(array_of(values[name]).dtype), tuple(values[name].shape[1:])) for name in names},
        chains=run.chains,
        warmup_steps=run.warmup_steps,
        thinning=thinning,
        settings={name: word for name, word in run.configuration.items() if name not in ("chains", "warmup_steps")},
        parts=parts,
        seed=torch.initial_seed(),
        versions=versions(),
        machine=machine(),
    )


def _is_chunk(chunk: object) -> bool:
    return isinstance(chunk, list) and len(chunk) == 3 and all(is_a(Integral, n) and n >= 0 for n in chunk)


def _random_states(run: Run[Any, Any]) -> dict[str, Tensor]:
    """Return the states of torch's global generators, which the run does not use but user-defined functions may."""
    states = {"cpu": torch.get_rng_state()}
    if run.random.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(run.random.device)
    return states


def _set_random_states(run: Run[Any, Any], states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and run.random.device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], run.random.device)
