"""Windows of warm-up, at whose ends masses and trajectory lengths are set."""

from __future__ import annotations

import math
from itertools import pairwise

SHORT = 150  # iterations of warm-up below which windows are those of Stan and Pyro
_BEFORE_MASSES, _FIRST_MASSES, _END = 10, 15, 50  # iterations of the first, second (at most) and last window
_GROWTH = 1.5


def windows(warmup_steps: int) -> list[range]:
    """Split the iterations of warm-up, counted from 0, into windows; the first and the last estimate no masses.

    Stan's windows double in size, and the last one is extended to the end: of 350 iterations, half are in one window.
    While chains still move towards the typical set, earlier masses are wrong, and without masses trajectories need many
    short steps. Windows here therefore grow by a factor of 1.5, and masses are first estimated after some 20 iterations
    instead of 100. Warm-ups of less than 150 iterations have one window for masses as in Stan, between the first 15 %
    and the last 10 %. Below 20 iterations there is a single window, without masses.
    """
    if warmup_steps < 20:
        return [range(warmup_steps)]
    if warmup_steps < SHORT:
        first, last = int(0.15 * warmup_steps), int(0.1 * warmup_steps)
        edges = [0, first, warmup_steps - last, warmup_steps]
    else:
        start, end = _BEFORE_MASSES, warmup_steps - _END
        # The number of windows is rounded up and their sizes, proportional to 1, g, g², …, are shrunk to fit.
        count = math.ceil(math.log(1 + (end - start) * (_GROWTH - 1) / _FIRST_MASSES) / math.log(_GROWTH))
        ends = [start + (end - start) * (_GROWTH**k - 1) / (_GROWTH**count - 1) for k in range(count + 1)]
        edges = [0, *(round(edge) for edge in ends), warmup_steps]
    return [range(*pair) for pair in pairwise(edges)]
