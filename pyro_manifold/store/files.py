"""Files that are either whole or not there, and a lock, so that one process writes to a store at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

_UNFINISHED = ".partial"


def write_durably(contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder, each whole or not at all, appearing in the order given.

    All are written under another name and flushed to the disk first; only then is one after the other renamed. So a
    process that is killed, or a disk that is full, leaves the old files as they were; and where the last file is
    there, all are.

    Raises:
        OSError: if one cannot be written, with a sentence; none of them has changed then.
    """
    for path, content in contents.items():
        try:
            _write(_unfinished(path), content)
        except OSError as error:
            for other in contents:
                with suppress(OSError):
                    _unfinished(other).unlink(missing_ok=True)
            raise OSError(
                f"{path} cannot be written ({error.strerror or error}): what was stored before is safe; make room, and "
                "go on with resume=True."
            ) from error
    for path in contents:
        os.replace(_unfinished(path), path)
        _flush_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # never through a link to elsewhere
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make renames last through a loss of power, where the system can."""
    with suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_roughly(path: Path, text: str) -> None:
    """Write what may be lost, and is soon written again."""
    if path.is_symlink():
        path.unlink()
    path.write_text(text)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _UNFINISHED)


def was_being_written(path: Path) -> bool:
    """Whether a process was stopped while it wrote this file."""
    return _unfinished(path).exists()


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were stopped have left."""
    for path in folder.glob(f"*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only one to write to a folder; the lock ends with the process, however that ends.

    File systems without locks have none here either.

    Raises:
        ValueError: if another process writes to it.
    """
    try:
        import fcntl
    except ImportError:  # no POSIX
        yield
        return
    path = folder / "lock"
    if path.is_symlink():
        path.unlink()
    try:
        file = path.open("ab")
    except OSError as error:
        raise OSError(f"store='{folder}' cannot be written to ({error.strerror}): choose another folder.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another process is writing to store='{folder}': wait for its end, or store this run elsewhere."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield
