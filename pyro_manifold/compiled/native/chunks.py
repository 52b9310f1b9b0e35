"""Loops over chunks of rows, each shared by consecutive statements, which then find their arrays in the cache."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

VECTORS = 16
"""Vectors of a column in a chunk. Some ten columns of them fill half of a core's smallest cache."""

_NAME = re.compile(r"\b[akjt]\d+\b")
_KINDS = {"a": "Vectors", "k": "Numbers", "j": "Integers", "t": "Numbers"}
_MOVABLE = ("for (int ", "{ AT(", "{ V ", "ARRAY(", "LARGE_ARRAY(", "PACKED(")

_DECLARATIONS = ("ARRAY(", "LARGE_ARRAY(", "PACKED(")


class Statement(NamedTuple):
    """A statement on rows.

    Attributes:
        body: loops over ``m`` vectors of rows from vector ``first`` on.
        before: code that runs before the first chunk.
        after: code that runs after the last chunk.
        totals: names of arrays that are complete only after the last chunk.
    """

    body: str
    before: str = ""
    after: str = ""
    totals: frozenset[str] = frozenset()


@dataclass
class Group:
    """Statements of one loop over chunks."""

    statements: list[Statement] = field(default_factory=list)

    @property
    def totals(self) -> frozenset[str]:
        return frozenset().union(*(statement.totals for statement in self.statements))

    @property
    def names(self) -> list[str]:
        """Arrays of the loop, in the order of their first use."""
        return list(dict.fromkeys(_NAME.findall(" ".join(statement.body for statement in self.statements))))

    @property
    def mentioned(self) -> set[str]:
        return names(" ".join(" ".join(statement[:3]) for statement in self.statements))


class Schedule:
    """Lines of C in which statements on rows are collected in groups.

    Lines between the statements of an open group are moved before it, or after it if they depend on it, so that the
    loop stays open.
    """

    def __init__(self) -> None:
        self.items: list[str | Group] = []
        self._open: Group | None = None
        self._later: list[str] = []
        self._written: set[str] = set()

    def append(self, line: str) -> None:
        """Add a line; arrays that it writes are new if it is a loop, an assignment or a declaration."""
        if self._open is None:
            self.items.append(line)
        elif not line.startswith(_MOVABLE):
            self.close()
            self.items.append(line)
        elif self._written & names(line) and not line.startswith(_DECLARATIONS):
            self._later.append(line)
            self._written |= names(line)
        else:
            self.items.append(line)

    def add(self, statement: Statement) -> None:
        """Add a statement on rows to the open group, or to a new one if it depends on what comes after that."""
        if self._open is not None:
            complete = self._open.totals.union(*map(names, self._later))
            if names(statement.body + statement.before) & complete:
                self.close()
        if self._open is None:
            self._open = Group()
        self._open.statements.append(statement)
        self._written |= names(statement.body + statement.after)

    def close(self) -> None:
        """End the open group."""
        if self._open is not None:
            self.items += [self._open, *self._later]
        self._open, self._later, self._written = None, [], set()

    def resolved(self, widths: dict[str, int], count: int) -> tuple[list[str], list[str], int]:
        """Return functions, lines, and the number of vectors of arrays of rows.

        An array of rows that only one loop uses holds one chunk.

        Args:
            widths: vectors side by side in each array of rows.
            count: vectors of a column.
        """
        self.close()
        uses = Counter(
            name for item in self.items for name in (names(item) if isinstance(item, str) else item.mentioned)
        )
        local = {
            name
            for item in self.items
            if isinstance(item, Group)
            for name in item.mentioned & widths.keys()
            if uses[name] == 1
        }
        sizes = {name: width * (min(VECTORS, count) if name in local else count) for name, width in widths.items()}
        functions: list[str] = []
        lines = [f"LARGE_ARRAY(b{a[1:]}, {n}); Vectors {a} = b{a[1:]};" for a, n in sizes.items()]
        for item in self.items:
            if isinstance(item, str):
                lines.append(item)
                continue
            name = f"rows{len(functions)}"
            functions.append(_function(name, item))
            lines += _calls(name, item, widths, local, count)
        return functions, lines, sum(sizes.values())


def names(text: str) -> set[str]:
    """Return the arrays that a text mentions."""
    return set(_NAME.findall(text))


def _function(name: str, group: Group) -> str:
    parameters = ", ".join(f"{_KINDS[array[0]]} restrict {array}" for array in group.names)
    bodies = "\n  ".join(statement.body for statement in group.statements)
    return f"static __attribute__((noinline)) void {name}(int m, int first, {parameters}) {{\n  {bodies}\n}}"


def _calls(name: str, group: Group, widths: dict[str, int], local: set[str], count: int) -> list[str]:
    arguments = ", ".join(
        f"PART({array}, {0 if array in local else f'first * {widths[array]}'}, m * {widths[array]})"
        if array in widths
        else array
        for array in group.names
    )
    m = f"{count} - first < {VECTORS} ? {count} - first : {VECTORS}"
    loop = f"for (int first = 0; first < {count}; first += {VECTORS}) {{ int m = {m}; {name}(m, first, {arguments}); }}"
    before = [each.before for each in group.statements if each.before]
    after = [each.after for each in group.statements if each.after]
    return [*before, loop, *after]
