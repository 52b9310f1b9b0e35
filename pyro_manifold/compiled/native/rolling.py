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


class _Slot(NamedTuple):
    """A slot of a statement of the body whose values differ: its kind, and what is in it in each repeat."""

    place: int
    number: int
    kind: str
    values: list[str]


def rolled(lines: Sequence[str]) -> list[str]:
    """Return statements and declarations in C with repeats in loops.

    Args:
        lines: statements and declarations, whose arrays have the names given by `Writer`.
    """
    declared = {k: found for k, line in enumerate(lines) if (found := _DECLARATION.fullmatch(line))}
    places = [k for k in range(len(lines)) if k not in declared]  # lines that are statements
    if len(places) < FEWEST_STATEMENTS:
        return list(lines)
    sizes = {found[1]: int(found[2]) for found in declared.values()}
    statements = [_parsed(lines[k]) for k in places]
    rolls = list(_rolls(statements, sizes))
    if not rolls:
        return list(lines)
    parts = _parts([slot for _, slots in rolls for slot in slots], sizes)
    loops = {places[roll.first]: _loop(statements, roll, slots, parts, sizes) for roll, slots in rolls}
    inside = {places[k] for roll, _ in rolls for k in range(roll.first, roll.first + roll.period * roll.repeats)}
    kept = [loops.get(k, lines[k]) for k in places if k in loops or k not in inside]
    # Declarations between repeats come before the loop, which is where the first of its statements was.
    others = [lines[k] for k, found in declared.items() if found[1] not in parts]
    used = set(re.findall(r"\ba\d+\b", " ".join(kept)))
    named = {name: first for name, first in parts.items() if name in used}
    views = [f"Vectors {name} = PART({ALL}, {first}, {sizes[name]});" for name, first in named.items()]
    return [f"LARGE_ARRAY({ALL}, {sum(sizes[name] for name in parts)});", *views, *others, *kept]


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


def _rolls(statements: Sequence[_Statement], sizes: dict[str, int]) -> Iterator[tuple[_Roll, list[_Slot]]]:
    """Yield loops that do not overlap, each the longest that begins where it does, with the slots that differ."""
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
        slots = [] if best is None else list(_differing(statements, best))
        if best is not None and all(_may_differ(slot, sizes) for slot in slots):
            yield best, slots
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


def _differing(statements: Sequence[_Statement], roll: _Roll) -> Iterator[_Slot]:
    for place in range(roll.period):
        repeats = [statements[roll.first + place + roll.period * t].slots for t in range(roll.repeats)]
        for number, kind in enumerate(statements[roll.first + place].kinds):
            values = [slots[number] for slots in repeats]
            if len(set(values)) > 1:
                yield _Slot(place, number, kind, values)


def _may_differ(slot: _Slot, sizes: dict[str, int]) -> bool:
    """Return whether a slot has numbers, or arrays of vectors of one size."""
    return slot.kind != "A" or (len({sizes.get(name) for name in slot.values}) == 1 and slot.values[0] in sizes)


def _parts(slots: Sequence[_Slot], sizes: dict[str, int]) -> dict[str, int]:
    """Return the first vector of each array that is a part of the common one, in the order of declarations."""
    names = {name for slot in slots if slot.kind == "A" for name in slot.values}
    first, found = 0, {}
    for name, size in sizes.items():
        if name in names:
            found[name], first = first, first + size
    return found


def _loop(
    statements: Sequence[_Statement], roll: _Roll, slots: Sequence[_Slot], parts: dict[str, int], sizes: dict[str, int]
) -> str:
    tables: list[str] = []
    changed: dict[tuple[int, int], str] = {}
    for place, number, kind, values in slots:
        if kind == "F":
            changed[place, number] = _in_table(tables, "T", values)
            continue
        indices = [parts[value] if kind == "A" else int(value) for value in values]
        at = _affine(indices) or _in_table(tables, "int", [str(index) for index in indices])
        changed[place, number] = f"PART({ALL}, {at}, {sizes[values[0]]})" if kind == "A" else f"({at})"
    body = []
    for place in range(roll.period):
        statement = statements[roll.first + place]
        between = re.split(r"[FAI]\?", statement.text)
        filled = [changed.get((place, k), value) for k, value in enumerate(statement.slots)]
        body.append("".join(itertools.chain(*zip(between, [*filled, ""], strict=True))))
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
