"""Progress of a run: a bar in terminals and notebooks, and a line each minute where output goes to a file."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from tqdm.auto import tqdm

_SECONDS_BETWEEN_LINES = 60.0
_FORMAT = "{desc}{percentage:.0f} %, {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
_FORMAT_WITHOUT_TOTAL = "{desc}{n_fmt} {unit} [{elapsed}, {rate_fmt}{postfix}]"


def progress_bar(*, disable: bool = False, total: int | None = None, **options: Any) -> tqdm[Any]:
    """Return tqdm's bar, or where standard error is a file, one that writes lines without control characters.

    Args:
        disable: whether nothing is shown.
        total: number of iterations, if it is known.
        options: further arguments of `tqdm.tqdm`.
    """
    disable = disable or sys.stderr is None  # as in programs without a console
    if not disable and _is_a_file(sys.stderr):
        options |= {
            "file": _Lines(sys.stderr),
            "mininterval": _SECONDS_BETWEEN_LINES,
            "miniters": 1,
            "bar_format": _FORMAT if total else _FORMAT_WITHOUT_TOTAL,
        }
    return tqdm(total=total, disable=disable, **options)


def _is_a_file(stream: TextIO) -> bool:
    """Return whether a carriage return does not begin the line again, as it does in terminals and notebooks."""
    if type(stream).__module__.startswith("ipykernel"):
        return False
    try:
        return not stream.isatty()
    except (AttributeError, ValueError):  # another object with a method `write`, or a stream that was closed
        return False


class _Lines:
    """Stream that turns each state of a bar into a line of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        text = text.strip("\r\n ")
        if text:
            self._stream.write(f"{text}\n")

    def flush(self) -> None:
        if hasattr(self._stream, "flush"):
            self._stream.flush()
