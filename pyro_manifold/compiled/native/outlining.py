"""Replacement of repeated statements by functions, since the compiler spends the same time on each repeat."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_NAME = re.compile(r"\b[akj]\d+\b")
_KINDS = {"a": "Vectors", "k": "Numbers", "j": "Integers"}
_FROM_OUTSIDE = re.compile(r"\b(?:inputs|outputs)\[")
_BOUND = re.compile(r"< (\d+);")
_FEWEST_PASSES = 4
"""Smallest number of iterations of a loop that becomes a function. Shorter loops are unrolled by the compiler and kept
in registers: as functions they would compile no faster, and cost the smallest models another tenth of a step."""


def shared_statements(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return functions for loops that differ only in their arrays, and the lines that call them.

    Arrays of different names do not overlap, and a function may rely on it.

    Args:
        lines: statements and declarations in C, whose arrays have the names given by `Writer`.
    """
    patterns = [_pattern(line) if _may_be_shared(line) else None for line in lines]
    found = Counter(pattern for pattern in patterns if pattern is not None)
    several = [pattern for pattern, times in found.items() if times > 1]
    names = {pattern: f"f{k}" for k, pattern in enumerate(several)}
    calls = [
        f"{names[pattern]}({', '.join(_arrays(line))});" if pattern in names else line
        for line, pattern in zip(lines, patterns, strict=True)
    ]
    return [_function(names[pattern], *pattern) for pattern in several], calls


def _may_be_shared(line: str) -> bool:
    if not line.startswith("for (int ") or _FROM_OUTSIDE.search(line):
        return False
    factors = line.endswith(");")  # a call of a function of lanes.h, which is inlined at each call
    return factors or math.prod(int(bound) for bound in _BOUND.findall(line)) >= _FEWEST_PASSES


def _arrays(line: str) -> list[str]:
    """Return the arrays of a statement, in the order of their first use."""
    return list(dict.fromkeys(_NAME.findall(line)))


def _pattern(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with its arrays numbered, and the kind of each."""
    arrays = _arrays(line)
    number = {name: f"p{k}" for k, name in enumerate(arrays)}
    return _NAME.sub(lambda found: number[found.group()], line), tuple(_KINDS[name[0]] for name in arrays)


def _function(name: str, body: str, kinds: Sequence[str]) -> str:
    parameters = ", ".join(f"{kind} restrict p{k}" for k, kind in enumerate(kinds))
    return f"static __attribute__((noinline)) void {name}({parameters}) {{ {body} }}"
