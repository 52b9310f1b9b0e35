"""Functions of tensors as graphs of tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode


def trace(
    function: Callable[..., Any], *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """The graph of a function, by `make_fx` in a third of its time.

    `make_fx` notes the shape of every node by a tensor without storage. For each it sets up a mode of its own, which
    takes longer than the rest of tracing, unless it finds itself in a context that has one.

    Args:
        function: of tensors.
        *example: inputs to trace with; their shapes are frozen in the graph.
        decompositions: operators to functions that stand for them, in terms of others.
    """
    with tracing(TracingContext(FakeTensorMode())), _PlainProducts():
        graph: fx.GraphModule = make_fx(function, decomposition_table=decompositions)(*example)
    return graph


class _PlainProducts(TorchFunctionMode):
    """Cumulative products as a few multiplications: torch's derivative looks for zeros, which no graph does cheaply.

    Of n numbers, ⌈log₂ n⌉ multiplications of vectors. Stick-breaking has one: Dirichlet and LKJ in unconstrained space.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (torch.cumprod, Tensor.cumprod):
            return _cumulative_product(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _cumulative_product(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    product = input if dtype is None else input.to(dtype)
    if not product.dim():
        return product.clone()
    shift, size = 1, product.shape[dim]
    while shift < size:
        first, later = product.narrow(dim, 0, shift), product.narrow(dim, shift, size - shift)
        product = torch.cat([first, later * product.narrow(dim, 0, size - shift)], dim)
        shift *= 2
    return product


_ATEN = torch.ops.aten
_ARITHMETIC = {_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor}


def forward_differentiable(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without what torch cannot differentiate forwards; changed in place.

    Numbers become tensors where they meet a tensor without dimensions: the tangent of x + 1.0, x a single float32, has
    float64 (pytorch issue 90065), and factorisations refuse what comes of it. And atanh x becomes a difference of
    logarithms, for tracing the reverse derivative of its tangent ends the process (torch 2.13).
    """
    for index, node in enumerate(module.graph.nodes):
        with module.graph.inserting_before(node):
            if node.target is _ATEN.atanh.default:
                _replace_atanh(module.graph, node)
            elif node.target in _ARITHMETIC and isinstance(node.args[1], int | float):
                value = node.args[0].meta["val"]
                if not value.dim() and value.is_floating_point():
                    name = f"_number{index}"
                    number = torch.tensor(node.args[1], dtype=value.dtype, device=value.device)
                    module.register_buffer(name, number)
                    node.update_arg(1, module.graph.get_attr(name))
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _replace_atanh(graph: fx.Graph, node: fx.Node) -> None:
    above = graph.call_function(_ATEN.log1p.default, node.args)
    below = graph.call_function(_ATEN.log1p.default, (graph.call_function(_ATEN.neg.default, node.args),))
    difference = graph.call_function(_ATEN.sub.Tensor, (above, below))
    half = graph.call_function(_ATEN.div.Scalar, (difference, 2))
    half.meta = node.meta
    node.replace_all_uses_with(half)
