"""Which entries of a batch are copies of one another, so that a costly function of each is computed once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_INTEGERS = (torch.int32, torch.int64)


class RepeatedRows(NamedTuple):
    """A batch of events as distinct ones and where they go.

    Attributes:
        distinct: the events, with fewer or shorter batch dimensions.
        group: for each position in the batch dimension ``dim``, which of the distinct; None if they only broadcast.
        dim: the dimension of ``distinct`` that the group stands for.
    """

    distinct: Tensor
    group: Tensor | None
    dim: int

    def spread(self, values: Tensor) -> Tensor:
        """Values of the distinct events, one each, as values that broadcast to the batch."""
        return values if self.group is None else values[(slice(None),) * self.dim + (self.group,)]


def repeated_rows(events: Tensor, event_dim: int) -> RepeatedRows:
    """The distinct of a batch of events, as far as its making tells: by ``expand``, or as ``parameter[group]``.

    Copies by ``expand`` lie at one place in memory. Those by an index of integers are seen in what autograd notes of
    it, so only in a tensor with a gradient that is that index's direct result. Values are not compared: the answer
    holds for every value of the parameter, and functions of it can be traced.

    Args:
        events: ``batch + event``.
        event_dim: dimensions of an event.

    Example:
        >>> parameter = torch.randn(4, 3, 2, requires_grad=True)
        >>> rows = repeated_rows(parameter[torch.arange(98) % 4], 2)
        >>> rows.distinct.shape, rows.spread(rows.distinct.sum((-2, -1))).shape
        (torch.Size([4, 3, 2]), torch.Size([98]))
    """
    found = _noted_index(events, event_dim)
    index, dim = None, 0
    if found is not None:
        index, dim, size = found
        # One position of each group; a group that has none may have any, for nothing goes to it.
        positions = torch.arange(index.numel(), device=index.device)
        holders = torch.zeros(size, dtype=torch.int64, device=index.device).scatter(0, index.reshape(-1), positions)
        events = events.flatten(dim, dim + index.dim() - 1).index_select(dim, holders)
    for position, stride in enumerate(events.stride()[: events.dim() - event_dim]):
        if not stride and events.shape[position]:
            events = events.narrow(position, 0, 1)
    return RepeatedRows(events, index, dim)


def _noted_index(events: Tensor, event_dim: int) -> tuple[Tensor, int, int] | None:
    """The index that made a tensor, its dimension, and how many entries that had; None unless it repeats some."""
    function = events.grad_fn
    if function is None or function.name() != "IndexBackward0":
        return None
    try:
        indices, sizes = function._saved_indices, function._saved_self_sym_sizes  # type: ignore[attr-defined]
    except RuntimeError:  # a backward pass has freed them
        return None
    given = [dim for dim, index in enumerate(indices) if index is not None]
    if len(given) != 1 or given[0] >= len(sizes) - event_dim:
        return None
    (dim,) = given
    index, size = indices[dim], int(sizes[dim])
    if index.dtype not in _INTEGERS or not index.dim() or not size < index.numel():
        return None
    return index.long() % size, dim, size
