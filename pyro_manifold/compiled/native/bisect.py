"""Search for the first operator of a loop whose result in C differs from torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pyro_manifold.compiled.agreement import FlatFunction, agrees
from pyro_manifold.compiled.native.decompositions import decompositions
from pyro_manifold.compiled.native.emit import Loop
from pyro_manifold.compiled.native.loop import NativeLoop
from pyro_manifold.compiled.passes import folded_graph

_MOST_STEPS = 64
_OPERANDS_SHOWN = 3


def wrong_operator(loop: Loop, inputs: Sequence[Tensor], steps: int) -> str | None:
    """Return a clause on the first operator of a step whose result in C differs from torch's for the same operands.

    Args:
        loop: graphs of one chain.
        inputs: inputs of one chain, ``(1, ...)``.
        steps: number of steps to check.

    Returns:
        The clause; None if no single operator differs.

    Raises:
        Exception: if native code for all values of a step cannot be compiled.
    """
    with torch.no_grad():
        state = list(loop.begin(*inputs))[: loop.carried]
        values = _all_values(loop, [*inputs, *state])
        for _ in range(min(steps, _MOST_STEPS)):
            given = [value.contiguous() for value in (*inputs, *state)]
            found = _Checked(loop.step, values(0, *given)).first_wrong(*given)
            if found is not None:
                return found
            state = list(loop.step(*inputs, *state))
    return None


def wrong_operator_of(loop: Loop) -> Callable[[FlatFunction, Sequence[Tensor], int], str | None]:
    """Return a function for `Labels.cause` that names the wrong operator; the last input is the number of steps."""

    def cause(_: FlatFunction, inputs: Sequence[Tensor], row: int) -> str | None:
        given = [value[row : row + 1] if len(value) > 1 else value for value in inputs[:-1]]
        try:
            return wrong_operator(loop, given, int(inputs[-1]))
        except Exception:  # native code of another shape can fail in any way; the operator is optional information
            return None

    return cause


def _all_values(loop: Loop, example: Sequence[Tensor]) -> NativeLoop:
    """Compile native code whose outputs are the results of all operators of a step."""
    one = [value.clone() for value in example]
    nothing = one[0].clone()

    def collected(*given: Tensor) -> list[Tensor]:
        collector = _Collector(loop.step)
        collector.run(*given[:-1])
        return [value.unsqueeze(0) for value in collector.values]

    first = _graph(lambda *given: [given[0].clone()], *one)
    step = _graph(lambda *given: [given[-1].clone()], *one, nothing)
    return NativeLoop(Loop(first, step, _graph(collected, *one, nothing), 1, loop.shared), one, 1)


def _graph(function: Any, *example: Tensor) -> fx.GraphModule:
    return folded_graph(function, *example, decompositions=decompositions())


def _is_compared(node: fx.Node, value: object) -> bool:
    return node.op == "call_function" and isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


class _Collector(fx.Interpreter):
    """Interpreter that collects the results of all operators, in order."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.values: list[Tensor] = []

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if _is_compared(n, value):
            self.values.append(value)
        return value


class _Checked(fx.Interpreter):
    """Interpreter that compares each operator in torch with native code, and continues with the native result."""

    def __init__(self, graph: fx.GraphModule, found: Sequence[Tensor]) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self._found = iter(found)
        self._wrong: str | None = None

    def first_wrong(self, *inputs: Tensor) -> str | None:
        self.run(*inputs)
        return self._wrong

    def run_node(self, n: fx.Node) -> Any:
        expected = super().run_node(n)
        if not _is_compared(n, expected):
            return expected
        found = next(self._found)[0]
        if self._wrong is None and not agrees(found, expected):
            self._wrong = self._described(n, found, expected)
        return found

    def _described(self, node: fx.Node, found: Tensor, expected: Tensor) -> str:
        excess = (found - expected).abs().nan_to_num(nan=torch.inf).reshape(-1)
        place = int(excess.argmax())
        values = [self.env[argument] for argument in node.all_input_nodes]
        entries = [
            f"{float(value.reshape(-1)[place]):.4g}"
            for value in values
            if isinstance(value, Tensor) and value.shape == expected.shape
        ]
        of = f" of {', '.join(entries[:_OPERANDS_SHOWN])}" if entries else ""
        name = str(getattr(node.target, "__name__", node.target)).split(".")[0]
        here, there = (float(value.reshape(-1)[place]) for value in (found, expected))
        return f"the operator {name}{of} gives {here:.7g} in native code and {there:.7g} in torch"
