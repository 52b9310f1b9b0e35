"""A peer on a problem, here or in a process of its own.

    python -m benchmarks.measure PROBLEMS PROBLEM SETTING FILE

with PROBLEMS as `module:dictionary` and SETTING as JSON leaves the values of the problem's functionals in a file of
NumPy's and prints a line of JSON; `measure_apart` calls it.
"""

import json
import os
import pkgutil
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import confine
from benchmarks.peers import PEERS


class Setting(NamedTuple):
    """A row of a table: how the table calls it, the peer, chains, warm-up and draws of each, and the peer's options."""

    name: str
    peer: str
    chains: int
    warmup: int
    draws: int
    options: dict[str, Any]

    @property
    def sizes(self):
        return f"{self.chains} × ({self.warmup} + {self.draws})"


def measure(problem, setting):
    """Values ``{functional: (chains, draws)}`` of the draws, and figures of the run."""
    warnings.filterwarnings("ignore")
    sizes = {"chains": setting.chains, "warmup": setting.warmup, "draws": setting.draws}
    run = PEERS[setting.peer](problem, **sizes, **setting.options)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return problem.values(run.draws), {**run.figures, "memory_mb": memory}


def measure_apart(problems, name, setting, threads, limit):
    """`measure` in a process of its own, with so many threads and at most ``limit`` seconds.

    Args:
        problems: where the problem is, ``"module:dictionary"``.
        name: of the problem.
        setting: the peer and its sizes.
        threads: of the process.
        limit: in seconds.

    Returns:
        Values and figures; None and ``{"failed": why}`` if it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        arguments = (problems, name, json.dumps(setting), str(path))
        figures = run_apart("benchmarks.measure", *arguments, threads=threads, limit=limit)
        if "failed" in figures:
            return None, figures
        with np.load(path) as values:
            return dict(values), figures


def run_apart(module, *arguments, threads, limit):
    """The JSON that a module prints last when it runs in a process of its own; ``{"failed": why}`` if it fails."""
    command = [sys.executable, "-m", module, *arguments]
    with tempfile.TemporaryDirectory() as caches:
        settings = {"env": environment(threads, caches), "timeout": limit}
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {limit} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment(threads, caches):
    """Variables of a process with so many threads whose compilers find nothing that they have compiled before."""
    return {
        **os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
        "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}",
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads), "PYRO_MANIFOLD_CACHE": f"{caches}/native",
        "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "NUMBA_CACHE_DIR": f"{caches}/numba",
        "PYTENSOR_FLAGS": f"base_compiledir={caches}/pytensor,blas__ldflags=",
    }  # fmt: skip


def main(problems, name, setting, path):
    confine(int(os.environ.get("OMP_NUM_THREADS", "1")))
    values, figures = measure(pkgutil.resolve_name(problems)[name], Setting(*json.loads(setting)))
    np.savez(path, **values)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
