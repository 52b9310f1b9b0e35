"""Construction of faster backends of a function, verification against the function, and fallback."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.agreement import FactorisationError, FlatFunction, difference
from pyro_manifold.compiled.native import NoSpeedupError
from pyro_manifold.compiled.refusals import NotTraced

_SITES_SHOWN, _ENTRIES_SHOWN = 3, 4


class NotAFunctionError(ValueError):
    """Error of a function whose structure depends on its inputs, which is not a failure of a backend."""


def _no_cause(candidate: FlatFunction, inputs: Sequence[Tensor], row: int) -> str | None:
    return None


@dataclass(frozen=True)
class Labels:
    """Names of inputs and outputs, by which differences are reported.

    Attributes:
        outputs: names of the outputs, such as "the gradient of 'x'".
        places: ``{index of an input: name}`` of the inputs that are positions of a chain.
        cause: function from the backend, the inputs and a row of these to a clause that explains the difference there,
            or None.
    """

    outputs: Sequence[str] = ()
    places: Mapping[int, str] = field(default_factory=dict)
    cause: Callable[[FlatFunction, Sequence[Tensor], int], str | None] = _no_cause

    def where(self, inputs: Sequence[Tensor], row: int) -> str:
        """Return a clause with the values of small inputs at a row."""
        small = [
            f"'{name}' is {_in_digits(inputs[number][row])}"
            for number, name in self.places.items()
            if 0 < inputs[number][row].numel() <= _ENTRIES_SHOWN
        ]
        return f", where {' and '.join(small[:_SITES_SHOWN])}" if small else ""


def _in_digits(value: Tensor) -> str:
    digits = [f"{float(x):.4g}" for x in value.detach().reshape(-1)]
    return digits[0] if len(digits) == 1 else f"[{', '.join(digits)}]"


class Verified:
    """A function of tensors, evaluated by the fastest backend that agrees with the function itself.

    Initially the function itself is in use. Each `attempt` builds another backend, compares it with the function, and
    uses it if they agree. If a backend raises because a matrix factorisation failed in some chain, the function itself
    is evaluated.

    Args:
        function: the reference for every backend, from tensors to a tuple of tensors.
        backend: name of the function itself as a backend, in use until an attempt succeeds.
        common: number of the last inputs that are shared by all rows.
        labels: names in reports of differences.

    Attributes:
        backend: the name of the backend in use.
        labels: names in reports of differences.
    """

    def __init__(self, function: FlatFunction, backend: str, common: int = 0, labels: Labels | None = None) -> None:
        self._function = self._fastest = function
        self._own_backend = self.backend = backend
        self._common, self.labels = common, labels or Labels()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._fastest(*inputs)
        except FactorisationError:
            return self._function(*inputs)

    def attempt(
        self,
        backend: str,
        build: Callable[[FlatFunction], FlatFunction],
        points: Iterable[Sequence[Tensor]],
        *,
        rows: list[int] | None = None,
        contains: Verified | None = None,
        failure: str | None = None,
    ) -> bool:
        """Use another backend, if it can be built and agrees with the function at all points of comparison.

        Args:
            backend: name of the backend.
            build: function from the backend in use to the new one; any exception counts as a failure to build it.
            points: inputs for the comparison, different from those of the trace, so that a branch on values is
                detected. A point at which a matrix cannot be factorised is skipped.
            rows: compare only these rows of inputs and outputs, if rows are chains and the function is slow.
            contains: another function that becomes part of it; if that has no graph, the attempt fails.
            failure: text of a warning if the attempt fails, with ``{reason}`` in it; None for no warning.

        Returns:
            Whether the new backend is in use.

        Raises:
            NotAFunctionError: by the function itself.
        """
        try:
            if contains is not None and not contains.is_graph:
                raise ValueError("the model cannot be traced")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations inside torch's own compiler
                candidate = build(self._fastest)
                self._compare(candidate, points, rows)
        except NotAFunctionError:
            raise
        except Exception as error:  # a tracer or compiler can raise any exception; the backend in use is kept
            if failure is not None and not isinstance(error, NoSpeedupError):
                warnings.warn(NotTraced(failure.format(reason=reason(error)), backend), stacklevel=2)
            return False
        self._fastest, self.backend = candidate, backend
        return True

    @property
    def is_graph(self) -> bool:
        """Return whether a backend other than the function itself is in use."""
        return self.backend != self._own_backend

    def difference_at(self, inputs: Sequence[Tensor], rows: list[int] | None = None) -> str | None:
        """Describe how the backend in use differs from the function at these rows; None if it agrees."""
        if not self.is_graph:
            return None
        try:
            return self._difference(self._fastest, inputs, rows)
        except FactorisationError:
            return None

    def use_reference(self) -> None:
        """Discard the backend in use: evaluate the function itself."""
        self._fastest, self.backend = self._function, self._own_backend

    def _compare(self, candidate: FlatFunction, points: Iterable[Sequence[Tensor]], rows: list[int] | None) -> None:
        compared = 0
        for inputs in points:
            try:
                differs = self._difference(candidate, inputs, rows)
            except FactorisationError:
                continue  # outside the support in some chain; compared at the other points
            compared += 1
            if differs:
                raise ValueError(differs)
        if not compared:
            raise ValueError("it cannot be compared with the model, whose factorisations fail at all points tried")

    def _difference(self, candidate: FlatFunction, inputs: Sequence[Tensor], rows: list[int] | None) -> str | None:
        own = len(inputs) - self._common

        def of_rows(*inputs: Tensor) -> tuple[Tensor, ...]:
            found = candidate(*inputs)
            return found if rows is None else tuple(value[rows] for value in found)

        def function(*inputs: Tensor) -> tuple[Tensor, ...]:
            if rows is None:
                return self._function(*inputs)
            each = [value[rows] if len(value) > 1 else value for value in inputs[:own]]  # shared inputs have one row
            return self._function(*each, *inputs[own:])

        found = difference(of_rows, function, inputs)
        if found is None:
            return None
        if not found.entry:
            return found.described(self.labels.outputs)
        row = found.entry[0] if rows is None else rows[found.entry[0]]
        clause = found._replace(entry=(row, *found.entry[1:])).described(self.labels.outputs)
        cause = self.labels.cause(candidate, inputs, row)
        return f"{clause}{self.labels.where(inputs, row)}{'; ' if cause else ''}{cause or ''}"


def compiled(graph: FlatFunction, options: Mapping[str, Any] | None) -> FlatFunction:
    """Compile a graph by `torch.compile`, for the shapes of its inputs unless ``options`` has ``dynamic``."""
    function: FlatFunction = torch.compile(graph, **{"dynamic": False, **(options or {})})
    return function


def reason(error: Exception) -> str:
    """Return the reason for the lack of a graph: the first sentence of the error of a tracer or compiler."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
