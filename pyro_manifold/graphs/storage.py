"""Tensors with shape, strides and dtype only."""

from __future__ import annotations

import torch
from torch import Tensor


def without_storage(value: Tensor) -> Tensor:
    """Return a tensor of the same shape, strides and dtype on the meta device, without entries."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
