"""Memory over a million iterations, stored and not.

    python -m benchmarks.speed.storing.memory --figure docs/images/stored_memory.svg

Four chains on V(3, 2), one leapfrog step an iteration. Without a store draws are kept for as long as memory allows;
that run ends earlier.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyro
import torch

from benchmarks.pictures import pyplot
from benchmarks.speed.storing.cost import model
from benchmarks.study import option, read
from pyro_manifold.infer import MCMC, OHMC

_LOOKS = 100
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> float:
    """Memory of this process that no file stands for, in MiB."""
    _, whole, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (whole - shared) * _PAGE / 2**20


def child(iterations: int, store: str | None) -> None:
    """Run, and print memory now and then."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)

    def look(iteration: Any) -> None:
        if iteration.kept and (iteration.index + 1) % (iterations // _LOOKS) == 0:
            print(iteration.index + 1, resident(), flush=True)

    kernel = OHMC(model, num_steps=1, step_size=0.5, adapt_step_size=False, adapt_mass_matrix=False)
    mcmc = MCMC(kernel, iterations, 100, num_chains=4, disable_progbar=True, store=store, consumers=[look])
    mcmc.run()


def measured(iterations: int, store: str | None) -> list[tuple[int, float]]:
    """``(iteration, MiB)`` of a run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.speed.storing.memory", "--child", str(iterations)]
    command += [store] if store else []
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [(int(first), float(second)) for first, second in map(str.split, lines)]


def figure(stored: list[tuple[int, float]], kept: list[tuple[int, float]], path: str) -> None:
    """Both, over iterations."""
    plt = pyplot()

    _, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    axes.plot(*zip(*kept, strict=True), color="C1", label="draws kept in memory")
    axes.plot(*zip(*stored, strict=True), color="C0", label='store="runs/first"')
    axes.set(xlabel="iterations after warm-up", ylabel="memory of the process, MiB", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    plt.savefig(path)


def main(argv: list[str] | None = None) -> None:
    arguments = read(
        __doc__, argv, iterations=1_000_000, kept=option(200_000, "iterations of the run without a store"), figure=None,
        child=option(None, argparse.SUPPRESS, nargs="+"),
    )  # fmt: skip
    if arguments.child:
        iterations, *store = arguments.child
        return child(int(iterations), *(store or [None]))
    with tempfile.TemporaryDirectory() as place:
        stored = measured(arguments.iterations, f"{place}/run")
        size = sum(path.stat().st_size for path in Path(place, "run").iterdir()) / 2**20
    kept = measured(arguments.kept, None)
    half = [memory for iteration, memory in stored if iteration > arguments.iterations / 10]
    print(
        f"stored, {stored[-1][0]:,} iterations: {min(half):.1f} to {max(half):.1f} MiB from a tenth on, last "
        f"{half[-1]:.1f}; {size:.0f} MiB on disk"
    )
    print(f"in memory, {kept[-1][0]:,} iterations: {kept[0][1]:.1f} MiB at first, {kept[-1][1]:.1f} at last")
    return figure(stored, kept, arguments.figure) if arguments.figure else None


if __name__ == "__main__":
    main()
