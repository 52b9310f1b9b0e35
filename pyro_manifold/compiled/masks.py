"""Boolean masks without results whose size depends on values, which the graph of many chains cannot represent.

A mask that does not depend on what is sampled is a constant, and is replaced by the indices where it is true. An
assignment by a mask that does, ``x[mask] = 0``, is computed entrywise, as by `torch.where`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled.broadcasting import broadcast_shapes

_ATEN = torch.ops.aten
_BY_INDEX = {
    getattr(_ATEN, name)
    for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
    if hasattr(_ATEN, name)
}
_TRUTHS = (torch.bool, torch.uint8)


def assign(x: Tensor, index: Any, value: Any) -> bool:
    """Assign one number by a mask, as ``x[index] = value`` does, and return True; else return False."""
    *before, mask = index if isinstance(index, tuple) and index else (index,)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not mask.dim():
        return False
    if any(part is not None and part is not ... and type(part) not in (int, slice) for part in before):
        return False
    if isinstance(value, Tensor):
        if value.numel() != 1:
            return False
        value = value.reshape(()).to(x)
    rest = 0 if ... in before else x.dim() - sum(part is not None for part in before) - mask.dim()
    if rest < 0:
        return False
    part = x[tuple(before)] if before else x
    part.masked_fill_(mask.reshape(*mask.shape, *[1] * rest), value)
    return True


def is_by_mask(func: Any, args: Sequence[Any]) -> bool:
    """Return whether an operator selects or assigns entries by a mask."""
    if func is _ATEN.masked_select.default or func is _ATEN.masked_scatter.default:
        return True
    return func.overloadpacket in _BY_INDEX and any(_is_mask(index) for index in args[1])


def by_places(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], Tensor]:
    """Return a function that replaces masks, which are constants, by the indices where they are true.

    Args:
        func: an operator for which `is_by_mask` holds.
        args: its arguments, tensors with values.
        kwargs: its further arguments.
    """
    if func is _ATEN.masked_select.default:
        x, mask = args
        shape = broadcast_shapes(x.shape, mask.shape)
        places = _places(mask.expand(shape))
        return lambda: _ATEN.index.Tensor(x.expand(shape), places)
    if func is _ATEN.masked_scatter.default:
        x, mask, source = args
        places = _places(mask.expand(x.shape))
        return lambda: _ATEN.index_put.default(x, places, source.reshape(-1)[: len(places[0])])
    indices = [place for index in args[1] for place in (_places(index) if _is_mask(index) else [index])]
    return lambda: func(args[0], indices, *args[2:], **kwargs)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in _TRUTHS


def _places(mask: Tensor) -> list[Tensor]:
    return [place.contiguous() for place in mask.nonzero().unbind(1)]
