"""Vectorisation of a function of one row over many rows: trace, vectorise, trace again, compare, and fall back.

Tracing comes before vectorising, since it also covers functions that `torch.vmap` does not support, such as those with
an autograd function of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_manifold.compiled.agreement import FlatFunction
from pyro_manifold.compiled.large_matrices import LARGEST_IN_BATCH
from pyro_manifold.compiled.lowering import vmapped, without_fallback_warnings
from pyro_manifold.compiled.native import NoSpeedupError, compile_function
from pyro_manifold.compiled.operations import first_other_operation
from pyro_manifold.compiled.passes import (
    DEAD_CODE,
    PRODUCTS,
    VECTORISATION,
    WITHOUT_STRIDES,
    folded_graph,
    run,
    simplified,
)
from pyro_manifold.compiled.rewriting import ATEN, example, writes
from pyro_manifold.compiled.tracing import copied, copied_graph, trace
from pyro_manifold.compiled.verified import Labels, Verified

_LARGEST_KEPT_BLOCK = 32 * 2**20 - 2**12  # bytes that glibc keeps in its heap; larger blocks fault page by page
_BY_LU = {"linalg_inv_ex", "linalg_lu", "linalg_lu_factor_ex", "_linalg_det", "_linalg_slogdet", "_linalg_solve_ex"}
_COMPARED_ROWS = 4  # a few suffice; evaluating the function itself is slow


class Vectorised(Verified):
    """A function of rows, by the first of these backends that works and agrees with the function of each row.

    They are C code of the graph, ``"native"``, where that is asked for; the traced and vectorised graph, ``"traced"``;
    the function under `torch.vmap`, ``"vmapped"``; and a loop over rows, ``"loop"``, which is in use until `vectorise`
    is called.

    Args:
        function: from tensors of one row to a tuple of tensors.
        example: inputs of all rows, ``(rows, ...)``; they give number, shapes, dtypes and devices.
        shared: number of the last inputs that are common to all rows, and have no dimension of rows.
        labels: names in reports of differences.

    Attributes:
        graph: the graph of one row; None if there is none.
    """

    graph: GraphModule | None = None
    _single: FlatFunction | None = None
    _trace: GraphModule | None = None

    def __init__(
        self, function: FlatFunction, example: Sequence[Tensor], *, shared: int = 0, labels: Labels | None = None
    ) -> None:
        self._of_one, self._example, self._own = function, example, len(example) - shared
        super().__init__(self._row_by_row, "loop", shared, labels)

    def vectorise(
        self,
        points: Iterable[Sequence[Tensor]],
        *,
        alternative: FlatFunction | None = None,
        subject: str | None = None,
        folded: bool = True,
        compared: int | None = _COMPARED_ROWS,
        native_from: int | None = None,
    ) -> None:
        """Use the first backend that can be built and agrees at all points.

        Args:
            points: inputs for the comparison, different from the example, so that a branch on values is detected.
            alternative: the function in a form that `torch.vmap` supports, if the graph cannot be used; None to
                continue row by row.
            subject: the function in warnings, such as "The model"; None for no warning.
            folded: whether to trace the vectorised graph too, which pays off from the second call on.
            compared: number of rows that are compared; None for all.
            native_from: number of operators from which the graph is compiled as C, which takes as long as vectorising
                it, and then hundreds of evaluations by torch; None for never.
        """
        rows = None if compared is None else list(range(min(len(self._example[0]), compared)))
        following = "a loop over rows, which is slow" if alternative is None else "torch.vmap"
        backends = [("traced", lambda _: self._traced(folded), following)]
        if alternative is not None:
            over_rows = without_fallback_warnings(torch.func.vmap(alternative, in_dims=self._dimensions))
            backends.append(("vmapped", lambda _: over_rows, "a loop over chains, which is slow"))
        points = list(points)
        if native_from is not None and self._own == len(self._example):
            natively = partial(self._natively, at_least=native_from)
            if self.attempt("native", natively, points, rows=[0]):  # each point is another position, and a second long
                return
        for backend, build, following in backends:
            failure = f"{subject} cannot be {backend} ({{reason}}); falling back to {following}."
            if self.attempt(backend, build, points, rows=rows, failure=None if subject is None else failure):
                break

    @property
    def of_single_rows(self) -> FlatFunction | None:
        """The function of rows ``(1, ...)``, by native code and its graph; None without native code."""
        return self._single if self.backend == "native" else None

    @property
    def of_one_row(self) -> FlatFunction:
        """The graph of one row, with the gradients that the function computes; if there is none, the function."""
        return self._of_one if self.graph is None else self.graph

    def row(self, number: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of one row: its own, and the common ones."""
        return [*[value[number] for value in inputs[: self._own]], *inputs[self._own :]]

    def other_operation(self, inputs: Sequence[Tensor], row: int) -> str | None:
        """Describe how the operations for a row differ from the trace, as only a branch can cause; None if not at all.

        Raises:
            Exception: that of the function.
        """
        if self._trace is None:
            return None
        one = [value.clone() for value in self.row(row, inputs)]
        if not self._of_one(*one)[0].isfinite().all():
            return None  # a run that raises on the way, such as by a factorisation, has a short trace
        return first_other_operation(self._trace, self._graph_of(one))

    @property
    def _dimensions(self) -> tuple[int | None, ...]:
        """Dimension of the rows in each input, as ``in_dims`` of `torch.vmap`."""
        return (*[0] * self._own, *[None] * (len(self._example) - self._own))

    def _row_by_row(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = [self._of_one(*self.row(number, inputs)) for number in range(len(inputs[0]))]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def _traced(self, folded: bool) -> FlatFunction:
        # Distinct storage for each input: tracing merges inputs that are the same tensor object.
        inputs = [value.clone(memory_format=torch.contiguous_format) for value in self._example]
        one = [value.clone() for value in self.row(0, inputs)]
        graph = self._trace_at(one)
        if not folded:
            self.graph = run([DEAD_CODE], graph)
            return vmapped(self.graph, self._dimensions)
        try:
            return self._of_all_rows(graph, inputs)
        except RuntimeError:
            # torch.vmap does not write values that differ between rows into a tensor that does not, and has no views
            # that the memory layout of many rows does not allow.
            if not writes(graph) and ATEN.view.default not in {node.target for node in graph.graph.nodes}:
                raise
        return self._of_all_rows(run(VECTORISATION, graph, *one), inputs)

    def _trace_at(self, one: Sequence[Tensor]) -> GraphModule:
        """Return the trace of one row, which is made once."""
        if self._trace is None:
            self._trace = self._graph_of(one)
        return self._trace

    def _natively(self, _: FlatFunction, at_least: int) -> FlatFunction:
        """Return C code of the graph of one row."""
        graph = self._trace_at([value.clone() for value in self.row(0, self._example)])
        if len(graph.graph.nodes) < at_least:
            raise NoSpeedupError("it is short")

        rows = len(self._example[0])
        code = compile_function(self._with_row_dimension(copied_graph(graph)), self._example, rows)

        def of_code(*values: Tensor) -> tuple[Tensor, ...]:
            return tuple(value[:1].clone() for value in code(0, *[x.expand(rows, *x.shape[1:]) for x in values]))

        self.graph, self._single = graph, copied(code.loop.end, of_code, self._with_row_dimension(graph))
        return lambda *values: tuple(code(0, *values))

    def _graph_of(self, one: Sequence[Tensor]) -> GraphModule:
        # A lambda, because the tracer would count the self of a method among the inputs.
        return run(WITHOUT_STRIDES, trace(lambda *values: self._of_one(*values), *one))

    def _of_all_rows(self, graph: GraphModule, inputs: Sequence[Tensor]) -> FlatFunction:
        self.graph = graph
        rows, on_cpu, own = len(inputs[0]), inputs[0].device.type == "cpu", self._own
        batch = min(rows, _rows_at_a_time(graph)) if on_cpu else rows

        def part(values: Sequence[Tensor], first: int) -> list[Tensor]:
            # Backward formulas of some factorisations depend on the memory layout, which a trace freezes: one for all.
            each = [value[first : first + batch].contiguous() for value in values[:own]]
            return [*each, *[value.contiguous() for value in values[own:]]]

        # Traced once more, so that vectorising costs nothing at each call; branches on constants are resolved here.
        graphs: dict[int, FlatFunction] = {}
        for first in range(0, rows, batch):
            count = min(batch, rows - first)
            if count not in graphs:
                then = PRODUCTS if on_cpu else ()
                if count == 1 and not writes(graph):
                    graphs[count] = self._with_row_dimension(simplified(graph, then=then))
                else:
                    graphs[count] = folded_graph(vmapped(graph, self._dimensions), *part(inputs, first), then=then)

        def traced(*values: Tensor) -> tuple[Tensor, ...]:
            starts = range(0, rows, batch)
            results = [graphs[min(batch, rows - first)](*part(values, first)) for first in starts]
            return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))

        return traced

    def _with_row_dimension(self, graph: FlatFunction) -> FlatFunction:
        """Return the graph of one row as a function of inputs with one row each, without another trace."""
        return lambda *values: tuple(value.unsqueeze(0) for value in graph(*self.row(0, values)))


def vectorise(
    function: FlatFunction,
    example: Sequence[Tensor],
    *,
    shared: int = 0,
    points: Iterable[Sequence[Tensor]] | None = None,
    alternative: FlatFunction | None = None,
    subject: str | None = "The function",
    folded: bool = True,
    compared: int | None = _COMPARED_ROWS,
) -> Vectorised:
    """Vectorise a function of one row over rows, by the fastest backend that agrees with it.

    Args:
        function: from tensors of one row to a tuple of tensors.
        example: inputs of all rows, ``(rows, ...)``.
        shared: number of the last inputs that are common to all rows.
        points: inputs for the comparison; the example with noise if None.
        alternative: the function in a form that `torch.vmap` supports, if the graph cannot be used.
        subject: the function in warnings; None for no warning.
        folded: whether to trace the vectorised graph too, which pays off from the second call on.
        compared: number of rows that are compared at each point; None for all.

    Returns:
        The function of all rows, a tuple of tensors ``(rows, ...)``.

    Raises:
        ValueError: for a function that returns no tuple, or an example that is no list of tensors.

    Warns:
        NotTraced: if there is no graph, with the reason.

    Examples:
        >>> def density(x):
        ...     return (-x.square().sum() / 2,)
        >>> many = vectorise(density, [torch.randn(5, 3)])
        >>> many.backend, many(torch.ones(5, 3))[0].tolist()
        ('traced', [-1.5, -1.5, -1.5, -1.5, -1.5])
    """
    if not callable(function) or isinstance(example, Tensor) or not all(isinstance(x, Tensor) for x in example):
        raise ValueError("vectorise: expected a function of tensors, and a list of example tensors, (rows, ...).")
    found = Vectorised(function, example, shared=shared)
    if not isinstance(function(*found.row(0, example)), tuple | list):
        raise ValueError("vectorise: the function returns one value, expected a tuple of tensors, such as (value,).")
    points = _with_noise(example) if points is None else points
    found.vectorise(points, alternative=alternative, subject=subject, folded=folded, compared=compared)
    return found


def _with_noise(example: Sequence[Tensor]) -> list[list[Tensor]]:
    noise = torch.Generator().manual_seed(0)

    def moved(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        return value + 0.1 * torch.randn(value.shape, generator=noise, dtype=value.dtype).to(value.device)

    return [list(example), [moved(value) for value in example]]


def _rows_at_a_time(graph: GraphModule) -> int:
    """Return the number of rows whose intermediate values all stay below the size that is memory-mapped again.

    It is one with an LU factorisation of a large matrix: torch's of several, on several threads, is wrong.
    """
    if any(_is_of_a_large_matrix(node) for node in graph.graph.nodes):
        return 1
    values: list[Any] = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"]
    sizes = [value.numel() * value.element_size() for value in values if isinstance(value, Tensor)]
    return max(1, _LARGEST_KEPT_BLOCK // max([*sizes, 1]))


def _is_of_a_large_matrix(node: Node) -> bool:
    if getattr(node.target, "__name__", "").split(".")[0] not in _BY_LU:
        return False
    matrix = example(node.args[0])
    return matrix is not None and matrix.shape[-1] > LARGEST_IN_BATCH
