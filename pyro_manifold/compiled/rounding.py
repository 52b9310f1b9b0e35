"""Monte Carlo arithmetic: evaluation of a function with random rounding of each operation."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

_UNITS = 4.0  # of rounding: the error that vector math libraries allow in exp, erf and the like
_UNITS_OF_ARITHMETIC = 1.0
_ARITHMETIC = frozenset(("add", "addcmul", "div", "mean", "mul", "reciprocal", "rsub", "sqrt", "square", "sub", "sum"))
_EXACT = frozenset(
    (
        *("_to_copy", "abs", "amax", "amin", "arange", "bernoulli", "cat", "ceil", "clamp", "clamp_max", "clamp_min"),
        *("clone", "constant_pad_nd", "copy", "diag_embed", "empty", "empty_like", "eye", "fill", "flip", "floor"),
        *("full", "full_like", "gather", "index", "index_put", "index_select", "lift_fresh", "lift_fresh_copy"),
        *("masked_fill", "max", "maximum", "min", "minimum", "neg", "new_empty", "new_full", "new_ones", "new_zeros"),
        *("ones", "ones_like", "relu", "repeat", "roll", "round", "scalar_tensor", "scatter", "select_backward"),
        *("sgn", "sign", "slice_backward", "sort", "stack", "threshold_backward", "tril", "triu", "trunc", "where"),
        *("zero", "zeros", "zeros_like", "empty_strided", "new_empty_strided", "resolve_conj", "resolve_neg"),
    )
)
"""Operators whose results are existing numbers; noise on integers would change what they count."""


class OtherRounding(TorchDispatchMode):
    """Dispatch mode that perturbs each rounded result by a few units of rounding, at random.

    If the result changes much, as that of the logarithm of 1 - Φ(8), it is determined by rounding alone.

    Source: Parker, Monte Carlo arithmetic, UCLA report CSD-970002 (1997).

    Args:
        noise: generator of the random numbers.
    """

    def __init__(self, noise: torch.Generator) -> None:
        super().__init__()
        self._noise = noise

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as the tracer's mode does: nothing here is run under `torch.compile`."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        kind, units = _kind(func), _UNITS_OF_ARITHMETIC if _name(func) in _ARITHMETIC else _UNITS
        if kind == "exact":
            return result
        if kind == "in place":
            return result.mul_(self._factor(result, units)) if _rounded(result) else result
        if isinstance(result, tuple | list):
            moved = [self._moved(part, units) for part in result]
            return type(result)(*moved) if hasattr(result, "_fields") else type(result)(moved)
        return self._moved(result, units)

    def _moved(self, value: Any, units: float) -> Any:
        return value * self._factor(value, units) if _rounded(value) else value

    def _factor(self, value: Tensor, units: float) -> Tensor:
        """Return random factors close to one for each entry."""
        real = value.real if value.is_complex() else value
        share = units * torch.finfo(real.dtype).eps
        dtype = torch.promote_types(real.dtype, torch.float32)  # half precision has too few numbers between 0 and 1
        uniform = torch.rand(real.shape, generator=self._noise, dtype=dtype)
        return uniform.mul_(2 * share).add_(1 - share).to(real)


def with_other_rounding(function: Callable[..., Any], noise: torch.Generator) -> Callable[..., Any]:
    """Return the function with random rounding of each operation, different at each call."""

    def otherwise(*inputs: Tensor) -> Any:
        with OtherRounding(noise):
            return function(*inputs)

    return otherwise


def _rounded(value: Any) -> bool:
    if not isinstance(value, Tensor) or value._is_zerotensor():  # zeros without storage, of forward derivatives
        return False
    return (value.is_floating_point() or value.is_complex()) and value.numel() > 0


@cache
def _name(func: OpOverload[..., Any]) -> str:
    return func._schema.name.split("::")[1].rstrip("_")


@cache
def _kind(func: OpOverload[..., Any]) -> str:
    """Return whether an operator gives existing numbers, writes rounded ones in place, or gives new ones."""
    if _name(func) in _EXACT:
        return "exact"
    aliases = [returned.alias_info for returned in func._schema.returns]
    if any(alias is not None and alias.is_write for alias in aliases):
        return "in place" if len(aliases) == 1 else "exact"
    return "exact" if any(alias is not None for alias in aliases) else "new"
