"""Detection of copies among the entries of a batch, so that a costly function of each is computed once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_INTEGERS = (torch.int32, torch.int64)


class RepeatedRows(NamedTuple):
    """The distinct events of a batch, and the position of each event among them.

    Attributes:
        distinct: the distinct events, with fewer or shorter batch dimensions.
        group: for each position in the batch dimension ``dim``, the index of its distinct event; None if the distinct
            events only broadcast.
        dim: the dimension of ``distinct`` that ``group`` indexes.
    """

    distinct: Tensor
    group: Tensor | None
    dim: int

    def spread(self, values: Tensor) -> Tensor:
        """Expand values of the distinct events, one each, to values that broadcast to the batch."""
        return values if self.group is None else values[(slice(None),) * self.dim + (self.group,)]


def repeated_rows(events: Tensor, event_dim: int) -> RepeatedRows:
    """Find the distinct events of a batch that was made by ``expand``, or by an index as ``parameter[group]``.

    Copies by ``expand`` share memory. Copies by an integer index are recognised by the autograd graph, and therefore
    only in a tensor with a gradient that is the direct result of that index and was not written to. Values are not
    compared: the result holds for every value of the parameter, and functions of it can be traced. A distinct event is
    the mean of its copies, so that a gradient reaches all of them equally.

    Args:
        events: ``batch + event``.
        event_dim: number of dimensions of an event.

    Examples:
        >>> parameter = torch.randn(4, 3, 2, requires_grad=True)
        >>> rows = repeated_rows(parameter[torch.arange(98) % 4], 2)
        >>> rows.distinct.shape, rows.spread(rows.distinct.sum((-2, -1))).shape
        (torch.Size([4, 3, 2]), torch.Size([98]))
    """
    found = _index_in_graph(events, event_dim)
    index, dim = None, 0
    if found is not None:
        index, dim, size = found
        events = _group_means(events.flatten(dim, dim + index.dim() - 1), index.reshape(-1), dim, size)
    for position, stride in enumerate(events.stride()[: events.dim() - event_dim]):
        if not stride and events.shape[position]:
            events = events.mean(position, keepdim=True) if events.requires_grad else events.narrow(position, 0, 1)
    return RepeatedRows(events, index, dim)


def _group_means(events: Tensor, index: Tensor, dim: int, size: int) -> Tensor:
    """Return the mean of each group along a dimension; a group without events gets zeros, which are not used."""
    counts = torch.zeros(size, dtype=torch.int64, device=index.device).index_add(0, index, torch.ones_like(index))
    shape = *events.shape[:dim], size, *events.shape[dim + 1 :]
    sums = torch.zeros(shape, dtype=events.dtype, device=events.device).index_add(dim, index, events)
    return sums / counts.clamp(min=1).reshape(-1, *[1] * (events.dim() - dim - 1))


def _index_in_graph(events: Tensor, event_dim: int) -> tuple[Tensor, int, int] | None:
    """Return the index that made a tensor, its dimension, and the size of that; None unless it repeats some entries."""
    function = events.grad_fn
    if function is None or function.name() != "IndexBackward0" or events._version:
        return None
    try:
        indices, sizes = function._saved_indices, function._saved_self_sym_sizes  # type: ignore[attr-defined]
    except RuntimeError:  # freed by a backward pass
        return None
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0] >= len(sizes) - event_dim:
        return None
    (dim,) = given
    index, size = indices[dim], int(sizes[dim])
    if index.dtype not in _INTEGERS or not index.dim() or not size < index.numel():
        return None
    return index.long() % size, dim, size
