"""Clocks: of a call that is repeated, and of a whole run."""

import gc
import resource
import time
from contextlib import contextmanager


def best_time(function, seconds=0.3, clock=time.perf_counter):
    """Fastest of repeated calls: the one that nothing else disturbed."""
    function()
    best, spent = float("inf"), 0.0
    while spent < seconds:
        started = clock()
        function()
        best = min(best, clock() - started)
        spent += clock() - started
    return best


def process_time(function, repeats=1):
    """Mean seconds of process time of a call."""
    started = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - started) / repeats


@contextmanager
def stopwatch():
    """A dictionary that has ``seconds`` and ``cpu_seconds`` of the block once it has ended.

    Seconds of the processor are of all threads, and of processes that have ended, such as compilers. Python's collector
    is done with what imports have left before the clock starts: a fifth of a second that would fall into any of them.
    """
    gc.collect()
    times, wall, cpu = {}, time.perf_counter(), processor_seconds()
    yield times
    times |= {"seconds": time.perf_counter() - wall, "cpu_seconds": processor_seconds() - cpu}


def processor_seconds():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def timed(owner, method):
    """Put a clock around a method of one object: the list to which each call adds its seconds."""
    function, seconds = getattr(owner, method), []

    def call(*arguments, **options):
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - started)

    setattr(owner, method, call)
    return seconds


def covered(intervals):
    """Length of the union of intervals ``(start, end)``."""
    length, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        length += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return length
