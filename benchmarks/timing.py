"""Clocks: of a call that is repeated, and of a whole run."""

from __future__ import annotations

import time
from contextlib import contextmanager


def best_time(function, seconds=0.3):
    """Fastest of repeated calls: the one that nothing else disturbed."""
    function()
    best, spent = float("inf"), 0.0
    while spent < seconds:
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
        spent += time.perf_counter() - started
    return best


def process_time(function, repeats=1):
    """Mean seconds of process time of a call."""
    started = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - started) / repeats


@contextmanager
def stopwatch():
    """A dictionary that has ``seconds`` and ``cpu_seconds`` of the block once it has ended."""
    times, wall, cpu = {}, time.perf_counter(), time.process_time()
    yield times
    times |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
