"""Loops over statements that repeat with other arrays and numbers, as the unrolled steps of a series do.

A compiler takes a second for a thousand statements. Statements that differ only in the names of arrays, in indices and
in constants are one loop over t: arrays that differ are parts of one array, at places that are affine in t or in a
table, and so are indices; constants are in a table. The statements, and their order, are the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

FEWEST_STATEMENTS = 600
"""Statements of a program from which repeats become loops. Fewer are compiled in some seconds, and most are faster: the
compiler keeps their values in registers."""

_FEWEST_IN_A_LOOP = 48
_FEWEST_REPEATS = 4
_LONGEST_BODY = 400  # statements
_CANDIDATES = 6  # periods that are tried at each statement
ALL = "a0"
"""Name of the array of which others are parts; those of `Writer` begin at a1."""

_DECLARATION = re.compile(r"(?:LARGE_)?ARRAY\((a\d+), (\d+)\);")
_NUMBER = r"-?(?:0x[0-9a-f.]+p[+-]\d+|\d+|INFINITY|NAN)"
_SLOT = re.compile(rf"spread\(({_NUMBER})\)|\b([akj]\d+)\b|(?<![\w.])(?<!p[+-])(\d+)(?![\w.])")


class _Statement(NamedTuple):
    """A line as its text without what may differ, and the number, name or index in each of the gaps."""

    text: str
    slots: tuple[str, ...]
    kinds: str


class _Roll(NamedTuple):
    """Statements first, first + 1, … of which each ``period`` repeat ``repeats`` times."""

    first: int
    period: int
    repeats: int


def rolled(lines: Sequence[str]) -> list[str]:
    """Return statements and declarations in C with repeats in loops.

    Args:
        lines: statements and declarations, whose arrays have the names given by `Writer`.
    """
    sizes = {found[1]: int(found[2]) for line in lines if (found := _DECLARATION.fullmatch(line))}
    statements = [None if _DECLARATION.fullmatch(line) else _parsed(line) for line in lines]
    places = [k for k, each in enumerate(statements) if each is not None]  # lines that are statements
    parsed: list[_Statement] = [each for each in statements if each is not None]
    if len(parsed) < FEWEST_STATEMENTS:
        return list(lines)
    rolls = list(_rolls(parsed, sizes))
    if not rolls:
        return list(lines)
    parts = _parts(parsed, rolls, sizes)
    loops = {places[roll.first]: _loop(parsed, roll, parts, sizes) for roll in rolls}
    inside = {places[k] for roll in rolls for k in range(roll.first, roll.first + roll.period * roll.repeats)}
    result = [f"LARGE_ARRAY({ALL}, {sum(sizes[name] for name in parts)});"]
    kept = [loops.get(k, line) for k, line in enumerate(lines) if k in loops or k not in inside]
    kept = [line for line in kept if not ((found := _DECLARATION.fullmatch(line)) and found[1] in parts)]
    used = set(re.findall(r"\ba\d+\b", " ".join(kept)))
    named = {name: first for name, first in parts.items() if name in used}
    result += [f"Vectors {name} = PART({ALL}, {first}, {sizes[name]});" for name, first in named.items()]
    # Declarations between repeats come before the loop, which is where the first of its statements was.
    hoisted = [line for line in kept if _DECLARATION.fullmatch(line)]
    return [*result, *hoisted, *(line for line in kept if not _DECLARATION.fullmatch(line))]


def _parsed(line: str) -> _Statement:
    slots: list[str] = []
    kinds: list[str] = []

    def gap(found: re.Match[str]) -> str:
        kind = next(kind for kind, text in zip("FAI", found.groups(), strict=True) if text is not None)
        slots.append(found[found.lastindex or 0])
        kinds.append(kind)
        return f"spread({kind}?)" if kind == "F" else f"{kind}?"

    text = _SLOT.sub(gap, line)
    return _Statement(text, tuple(slots), "".join(kinds))


def _is_whole(statement: _Statement) -> bool:
    """Return whether a statement begins and ends in its line, so that it may be in a loop."""
    return statement.text.count("{") == statement.text.count("}") and not statement.text.startswith("for (int64_t")


def _rolls(statements: Sequence[_Statement], sizes: dict[str, int]) -> Iterator[_Roll]:
    """Yield loops that do not overlap, each the longest that begins where it does."""
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(s.text, len(numbers)) if _is_whole(s) else -1 - k for k, s in enumerate(statements)]
    following: list[int | None] = [None] * len(ids)  # the next statement of the same text
    last: dict[int, int] = {}
    for k in range(len(ids) - 1, -1, -1):
        following[k] = last.get(ids[k])
        last[ids[k]] = k
    k = 0
    while k < len(ids):
        best = _longest(ids, following, k)
        if best is not None and _varies_as_it_may(statements, best, sizes):
            yield best
            k += best.period * best.repeats
        else:
            k += 1


def _longest(ids: Sequence[int], following: Sequence[int | None], first: int) -> _Roll | None:
    best: _Roll | None = None
    again = following[first]
    for _ in range(_CANDIDATES):
        if again is None or again - first > _LONGEST_BODY:
            break
        period, end = again - first, again
        while end < len(ids) and ids[end] == ids[end - period]:
            end += 1
        count = (end - first) // period
        long_enough = count >= _FEWEST_REPEATS and count * period >= _FEWEST_IN_A_LOOP
        if long_enough and (best is None or count * period > best.repeats * best.period):
            best = _Roll(first, period, count)
        again = following[again]
    return best


def _values(statements: Sequence[_Statement], roll: _Roll, place: int, slot: int) -> list[str]:
    """Return what is in a slot of a statement of the body, in each repeat."""
    return [statements[roll.first + place + roll.period * t].slots[slot] for t in range(roll.repeats)]


def _slots(statements: Sequence[_Statement], roll: _Roll) -> Iterator[tuple[int, int, str, list[str]]]:
    """Yield place in the body, slot, kind and values of the slots whose values differ."""
    for place in range(roll.period):
        for slot, kind in enumerate(statements[roll.first + place].kinds):
            values = _values(statements, roll, place, slot)
            if len(set(values)) > 1:
                yield place, slot, kind, values


def _varies_as_it_may(statements: Sequence[_Statement], roll: _Roll, sizes: dict[str, int]) -> bool:
    """Return whether arrays that differ are arrays of vectors, of one size in each slot."""
    return all(
        kind != "A" or (len({sizes.get(name) for name in values}) == 1 and values[0] in sizes)
        for _, _, kind, values in _slots(statements, roll)
    )


def _parts(statements: Sequence[_Statement], rolls: Sequence[_Roll], sizes: dict[str, int]) -> dict[str, int]:
    """Return the first vector of each array that is a part of the common one, in the order of declarations."""
    names = {name for roll in rolls for *_, kind, values in _slots(statements, roll) if kind == "A" for name in values}
    first, found = 0, {}
    for name, size in sizes.items():
        if name in names:
            found[name], first = first, first + size
    return found


def _loop(statements: Sequence[_Statement], roll: _Roll, parts: dict[str, int], sizes: dict[str, int]) -> str:
    tables: list[str] = []
    changed: dict[tuple[int, int], str] = {}
    for place, slot, kind, values in _slots(statements, roll):
        if kind == "F":
            changed[place, slot] = _in_table(tables, "T", values)
            continue
        numbers = [parts[value] if kind == "A" else int(value) for value in values]
        at = _affine(numbers) or _in_table(tables, "int", [str(number) for number in numbers])
        changed[place, slot] = f"PART({ALL}, {at}, {sizes[values[0]]})" if kind == "A" else f"({at})"
    body = []
    for place in range(roll.period):
        statement = statements[roll.first + place]
        parts_of_text = re.split(r"[FAI]\?", statement.text)
        slots = [changed.get((place, k), value) for k, value in enumerate(statement.slots)]
        body.append("".join(itertools.chain(*zip(parts_of_text, [*slots, ""], strict=True))))
    return f"{{ {' '.join(tables)} for (int t = 0; t < {roll.repeats}; t++) {{ {' '.join(body)} }} }}"


def _affine(numbers: Sequence[int]) -> str | None:
    step = numbers[1] - numbers[0]
    if any(number != numbers[0] + step * t for t, number in enumerate(numbers)):
        return None
    return f"{numbers[0]} + {step} * t"


def _in_table(tables: list[str], kind: str, values: Sequence[str]) -> str:
    name = f"table{len(tables)}"
    tables.append(f"static const {kind} {name}[] = {{{', '.join(values)}}};")
    return f"{name}[t]"
