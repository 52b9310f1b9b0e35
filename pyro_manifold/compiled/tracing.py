"""Tracing of functions of tensors to graphs of tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.distributions import Distribution
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from pyro_manifold.compiled import masks
from pyro_manifold.compiled.refusals import BRANCHES_ON_A_VALUE
from pyro_manifold.compiled.rewriting import without_storage


def trace(
    function: Callable[..., Any], *example: Tensor, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """Return the graph of a function, as torch's `make_fx` does, in a third of its time.

    Each node has a tensor without storage, of the shape, strides and dtype of its value, in ``meta["val"]``, its
    strides and its offset in the storage of which it is a view in ``meta["layout"]``, and its device in
    ``meta["device"]``. The modules of `torch.compile`, whose import takes longer than many a whole run, are not
    imported. If `recorder` does not work with the installed torch, `make_fx` is used, which does not set
    ``meta["layout"]``.

    Args:
        function: function of tensors, to tensors in tuples, lists and dictionaries.
        *example: inputs to trace with, all different tensors; their shapes are frozen in the graph.
        decompositions: operators and functions that replace them, in terms of others.

    Raises:
        ValueError: if the function needs a Python number that depends on its inputs, as for a branch on values.
    """
    graph_of = recorded if recorder_works() else by_make_fx
    with _PlainFunctions(), _plain_attention(example), _without_validation():
        return graph_of(function, example, decompositions or {})


@cache
def recorder_works() -> bool:
    """Return whether the recorder of this package works with the installed torch, whose private parts it uses.

    These may change in any version; a small function with a constant, an in-place operator and a composite operator is
    recorded, and its graph compared with it at another point.
    """
    constant = torch.tensor([1.0, 2.0])

    def small(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.zeros_like(x)
        y[1:] = x[1:] * constant[0]
        return y.matmul(constant), x.unbind()[0]

    try:
        graph = recorded(small, (torch.tensor([0.5, 0.25]),), {})
        other = torch.tensor([3.0, -1.0])
        return all(torch.equal(*pair) for pair in zip(graph(other), small(other), strict=True))
    except Exception:
        return False


def recorded(
    function: Callable[..., Any], example: tuple[Tensor, ...], decompositions: Mapping[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """Return the graph of a function by the recorder of this package; see `trace`."""
    from pyro_manifold.compiled.recorder import Recorder

    recorder = Recorder(decompositions)
    recorder.begin(example)
    with recorder:
        result = function(*example)
    return recorder.end(result)


def copied(
    graph: fx.GraphModule, fast: Callable[..., tuple[Tensor, ...]], function: Callable[..., tuple[Tensor, ...]]
) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that is evaluated by fast code, and of which traces have a copy of the graph.

    Args:
        graph: the graph of the function, which writes to no tensor.
        fast: the same function, for values.
        function: the same function, for tensors that torch differentiates or transforms.
    """

    def of_values(*values: Tensor) -> tuple[Tensor, ...]:
        if not recorder_works() or any(value.requires_grad for value in values):
            return function(*values)
        from pyro_manifold.compiled.recorder import active_recorder, are_plain

        if not are_plain(values):
            return function(*values)
        recorder = active_recorder()
        with unrecorded():
            outputs = fast(*values)
        if recorder is not None:
            recorder.copy_of(graph, values, outputs)
        return outputs

    return of_values


def copied_graph(graph: fx.GraphModule) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function of a graph, of which traces have a copy, and results that stand in for those of the graph.

    A trace of its operators one by one takes as long as ten evaluations.
    """

    def stand_ins(*_: Tensor) -> tuple[Tensor, ...]:
        from pyro_manifold.compiled.recorder import stand_in_for

        outputs: Any = graph.graph.output_node().args[0]
        return tuple(map(stand_in_for, outputs))

    # Interpreted, since writing the graph's code in Python and compiling that takes longer than one evaluation.
    return copied(graph, stand_ins, fx.Interpreter(graph).run)


def by_make_fx(
    function: Callable[..., Any], example: tuple[Tensor, ...], decompositions: Mapping[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """Return the graph of a function by torch's own `make_fx`; see `trace`."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        graph = make_fx(function, decomposition_table=dict(decompositions))(*example)
    except RuntimeError as error:
        if "data-dependent" not in str(error):
            raise
        raise ValueError(BRANCHES_ON_A_VALUE) from error
    for node in graph.graph.nodes:
        if node.op == "get_attr" and isinstance(value := getattr(graph, node.target), Tensor):
            node.meta |= {"val": without_storage(value), "device": value.device}
            delattr(graph, node.target)  # a parameter would require gradients of its own
            graph.register_buffer(node.target, value.detach())
        elif isinstance(value := node.meta.get("val"), Tensor):
            node.meta["device"] = value.device
    return graph


def _plain_attention(example: tuple[Tensor, ...]) -> AbstractContextManager[None]:
    """Select attention by products and softmax on CPUs: `torch.vmap` would loop over the fused operator."""
    return sdpa_kernel(SDPBackend.MATH) if all(not value.is_cuda for value in example) else nullcontext()


@contextmanager
def _without_validation() -> Iterator[None]:
    """Turn off the validation of distributions that are constructed meanwhile: it branches on values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def unrecorded() -> AbstractContextManager[object]:
    """Suspend recording, for values that are to be constants of the graph."""
    try:
        from torch.utils._python_dispatch import _disable_current_modes
    except ImportError:  # another version of torch: the values are recorded, and folded later
        return nullcontext()
    return _disable_current_modes()


class _PlainFunctions(TorchFunctionMode):
    """Function mode that replaces functions whose torch implementation inspects values.

    Cumulative products, as of stick-breaking (Dirichlet and LKJ in unconstrained space), are computed by ⌈log₂ n⌉
    multiplications of vectors of length n: torch's derivative searches for zeros, which a graph cannot do cheaply. A
    number assigned by a mask is an entrywise selection; torch's derivative counts the entries of the mask. ``ldexp`` is
    replaced because tracing the tangent of its derivative crashes the process (torch 2.13).
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in (torch.cumprod, Tensor.cumprod) and "out" not in kwargs:
            return cumulative_product(*args, **kwargs)
        if function in (torch.ldexp, Tensor.ldexp) and "out" not in kwargs:
            return _times_power_of_two(*args, **kwargs)
        if function is Tensor.__setitem__ and masks.assign(*args):
            return None
        return function(*args, **kwargs)


def _times_power_of_two(input: Tensor, other: Tensor) -> Tensor:
    return input * torch.exp2(other)


def cumulative_product(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None and not (input.is_floating_point() or input.is_complex()):
        dtype = torch.int64
    product = input if dtype is None else input.to(dtype)
    if not product.dim():
        return product.clone()
    shift, size = 1, product.shape[dim]
    while shift < size:
        first, later = product.narrow(dim, 0, shift), product.narrow(dim, shift, size - shift)
        product = torch.cat([first, later * product.narrow(dim, 0, size - shift)], dim)
        shift *= 2
    return product
