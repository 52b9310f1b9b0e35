"""Broadcasting of shapes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Size


def broadcast_shapes(*shapes: Iterable[int]) -> Size:
    """Return the shape to which shapes broadcast.

    `torch.broadcast_shapes` imports sympy at its first call, which takes a third of a second.

    Raises:
        ValueError: if there is none.
    """
    return Size(np.broadcast_shapes(*map(tuple, shapes)))
