"""Functions of tensors as graphs of tensor operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Callable[..., Any], *example: Tensor) -> fx.GraphModule:
    """The graph of a function, by `make_fx` in a third of its time.

    `make_fx` notes the shape of every node by a tensor without storage. For each it sets up a mode of its own, which
    takes longer than the rest of tracing, unless it finds itself in a context that has one.

    Args:
        function: of tensors.
        *example: inputs to trace with; their shapes are frozen in the graph.
    """
    with tracing(TracingContext(FakeTensorMode())):
        graph: fx.GraphModule = make_fx(function)(*example)
    return graph


_ATEN = torch.ops.aten
_ARITHMETIC = {_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor}


def forward_differentiable(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with numbers as tensors where they meet a tensor without dimensions; changed in place.

    The tangent of x + 1.0, x a single float32, has float64 (pytorch issue 90065), and factorisations refuse what comes
    of it.
    """
    for index, node in enumerate(module.graph.nodes):
        if node.target not in _ARITHMETIC or not isinstance(node.args[1], int | float):
            continue
        value = node.args[0].meta["val"]
        if value.dim() or not value.is_floating_point():
            continue
        name = f"_number{index}"
        module.register_buffer(name, torch.tensor(node.args[1], dtype=value.dtype, device=value.device))
        with module.graph.inserting_before(node):
            node.update_arg(1, module.graph.get_attr(name))
    module.recompile()
    return module
