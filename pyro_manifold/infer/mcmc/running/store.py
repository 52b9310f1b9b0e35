"""Folder of a stored run, as given by the user, and checks of its content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer
from pyro_manifold.store import MOST_DRAWS, holds_a_run, numbered

CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Store:
    """Folder in which a run is stored, and the interval between checkpoints.

    Args:
        path: path of the folder.
        seconds: largest time between checkpoints, unless writing one takes more than a fiftieth of it.
        draws: largest number of draws of each chain in a file; None for as many as fit into 32 MiB, at most 4,096.

    Raises:
        ValueError: if ``seconds`` or ``draws`` are not positive.

    Examples:
        >>> Store("runs/first", seconds=60.0).folder.name
        'first'
    """

    path: str | Path
    seconds: float = 10.0
    draws: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path) or not str(self.path) or "\0" in str(self.path):
            raise ValueError(f"store={self.path!r}, expected the path of a folder.")
        object.__setattr__(self, "path", Path(self.path).absolute())  # the working directory may change
        check_positive(seconds=self.seconds)
        if self.draws is not None:
            check_positive_integer(draws=self.draws)
            if self.draws > MOST_DRAWS:
                raise ValueError(f"draws={self.draws} in one file, expected at most {MOST_DRAWS:,}.")

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return Path(self.path)

    def make_folder(self) -> None:
        """Create the folder if it does not exist."""
        with self._refused():
            self.folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Convert errors of the file system into errors that name the path."""
        try:
            yield
        except OSError as error:
            raise OSError(
                f"store='{self.folder}' cannot be created ({error.strerror}): choose another folder."
            ) from error

    def check_is_free(self, resume: bool, in_shards: bool) -> None:
        """Raise an error if there is a stored run that is not to be resumed, or one with (or without) shards."""
        with self._refused():
            self.folder.exists()  # fails for a name that is too long
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"store='{self.folder}' is a file, expected a folder or a new name.")
        whole, shards = holds_a_run(self.folder), any(self.folder.glob("shard*"))
        if not resume and (whole or shards):
            raise ValueError(
                f"store='{self.folder}' already holds a run: continue it with resume=True, or choose another folder."
            )
        if whole if in_shards else shards:
            kind = (
                "a run without shards: leave out chain_method=Shards(...)"
                if in_shards
                else "a run in shards: pass chain_method=Shards(...)"
            )
            raise ValueError(f"store='{self.folder}' holds {kind}, or choose another folder.")


def has_begun(folder: Path) -> bool:
    """Return whether a folder has a run with a checkpoint, to which a density can be compared."""
    return holds_a_run(folder) and any(numbered(folder, CHECKPOINT))


def as_store(store: str | Path | Store | None, resume: object) -> Store | None:
    """Return the ``store`` argument as a `Store`, or None; raise an error for invalid arguments."""
    if not isinstance(resume, bool):
        raise ValueError(f"resume={resume!r}, expected True or False.")
    if store is None:
        if resume:
            raise ValueError("resume=True continues a stored run: pass its folder as store=.")
        return None
    if not isinstance(store, str | Path | Store):
        raise ValueError(f"store={store!r}, expected the path of a folder, or a Store.")
    return store if isinstance(store, Store) else Store(store)
