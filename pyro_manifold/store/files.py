"""Atomic writing of files, and a lock, so that only one process writes to a store at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_UNFINISHED = ".partial"
_LOCKED: set[IO[bytes]] = set()
"""Open files whose locks this process holds."""


def write_durably(contents: Mapping[Path, bytes]) -> None:
    """Write files of one folder atomically, in the order given.

    All files are written under temporary names and flushed to the disk, and then renamed, one after the other. A
    process that is killed, or a full disk, therefore leaves the old files unchanged; and if the last file exists, all
    of them do.

    Raises:
        OSError: if a file cannot be written; none of the files has changed then.
    """
    for path, content in contents.items():
        try:
            _write(_unfinished(path), content)
        except OSError as error:
            for other in contents:
                with suppress(OSError):
                    _unfinished(other).unlink(missing_ok=True)
            raise OSError(
                f"{path} cannot be written ({error.strerror or error}): earlier draws are intact; free disk space and "
                "continue with resume=True."
            ) from error
    for path in contents:
        os.replace(_unfinished(path), path)
        _flush_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # exclusive creation, so that it never follows a symbolic link
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Flush the folder to disk so that renames survive a loss of power, where the system supports it."""
    with suppress(OSError, AttributeError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_roughly(path: Path, text: str) -> None:
    """Write a text file without guarantees: errors are ignored, since the content is optional and soon rewritten."""
    with suppress(OSError):
        if path.is_symlink():
            path.unlink()
        path.write_text(text)


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + _UNFINISHED)


def was_being_written(path: Path) -> bool:
    """Return whether a process was stopped while it wrote this file."""
    return _unfinished(path).exists()


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files left by processes that were stopped."""
    for path in folder.glob(f"*{_UNFINISHED}"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for writing; the lock is released when the process ends, for any reason.

    Forked processes, such as workers of a DataLoader, close the lock file and do not keep the lock. On file systems
    without locks nothing is locked.

    Raises:
        ValueError: if another process writes to the folder.
    """
    try:
        import fcntl
    except ImportError:  # no POSIX locks
        yield
        return
    path = folder / "lock"
    if path.is_symlink():
        path.unlink()
    try:
        file = path.open("ab")
    except OSError as error:
        raise OSError(f"store='{folder}' cannot be written ({error.strerror}): choose another folder.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"Another process is writing to store='{folder}': wait until it ends, or choose another folder."
            ) from None
        except OSError:  # a file system without locks
            pass
        _LOCKED.add(file)
        try:
            yield
        finally:
            _LOCKED.discard(file)


def _close_locks() -> None:
    """Close the lock files in a forked process: a lock lasts as long as any process has its file open."""
    for file in _LOCKED:
        file.close()
    _LOCKED.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks)
