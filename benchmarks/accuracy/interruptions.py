"""Runs that are killed at random moments, and resumed: do they give the draws of a run that was not?

    python -m benchmarks.accuracy.interruptions --kills 50

Each process is forked from this one, runs with ``resume=True``, and gets a SIGKILL after a random time: while it
prepares, warms up, draws, or writes; every second kill waits until it has begun to store. After each kill the draws
that a reader sees are counted. In the end all draws are compared bit for bit with those of a run that nobody stopped.
"""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, OSGHMC, Store
from pyro_manifold.store import StoredRun
from tests.infer.mcmc.kernels import KERNELS, Case, OnParts

_SEED = 7


def mixture() -> None:
    """A matrix on V(3, 2), a positive number and a vector."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    c = pyro.sample("c", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("pull", 4 * U[0, 0] + U[1, 1] * c[0] - scale)


def rows(y: torch.Tensor) -> None:
    """Data along a direction, in batches of a loader."""
    U = pyro.sample("U", StiefelUniform(4, 2))
    with pyro.plate("rows", 64, subsample_size=len(y)):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(4), 0.3 * torch.eye(4) + U @ U.mT), obs=y)


def _loader() -> DataLoader[Any]:
    y = torch.randn(64, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([2.0, 1.5, 1.0, 1.0])
    return DataLoader(TensorDataset(y), batch_size=16, shuffle=True)


def _of_kernel(case: Case) -> tuple[Any, dict[str, Any]]:
    model = OnParts(case.model) if case.minibatches else case.model
    return case.make_short(model), {"num_samples": 300, "warmup_steps": 150, "num_chains": 4}


Runs = dict[str, Callable[[], tuple[Any, dict[str, Any]]]]
RUNS: Runs = {
    # Enough work for native code to be made while it runs.
    "OHMC, native code": lambda: (OHMC(mixture), {"num_samples": 800, "warmup_steps": 400, "num_chains": 8}),
    "OHMC, thinned": lambda: (
        OHMC(mixture, num_steps=2, step_size=0.3),
        {"num_samples": 1500, "warmup_steps": 300, "num_chains": 4, "thinning": 3},
    ),
    "OSGHMC with a loader": lambda: (
        OSGHMC(rows, step_size=0.01, friction=0.1, num_steps=3),
        {"num_samples": 300, "warmup_steps": 150, "num_chains": 4, "data_loader": _loader()},
    ),
    **{name: partial(_of_kernel, case) for name, case in KERNELS.items()},
}


def run(name: str, folder: Path, seed: int = _SEED) -> MCMC:
    """One of these runs, to its end."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    kernel, options = RUNS[name]()
    pyro.set_rng_seed(seed)
    store = Store(folder, seconds=0.02, draws=17)
    loader = options.pop("data_loader", None)
    mcmc = MCMC(kernel, **options, store=store, resume=True, disable_progbar=True)
    mcmc.run(data_loader=loader)
    return mcmc


def forked(name: str, folder: Path, seed: int = _SEED) -> int:
    """A process that makes the run; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        run(name, folder, seed)
        os._exit(0)
    except BaseException as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
        os._exit(1)


def stored(folder: Path) -> int:
    """Number of draws that a reader sees."""
    try:
        return StoredRun(folder).draws
    except ValueError:
        return 0


def check(name: str, kills: int, chance: random.Random) -> dict[str, int]:
    """Kill so often, and compare.

    Returns:
        How many kills fell before anything was stored, in warm-up, and among draws; and how many runs it took.

    Raises:
        AssertionError: if a draw is lost or another.
    """
    where = {"before": 0, "warm-up": 0, "draws": 0, "runs": 0}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begun = time.monotonic()
        assert os.waitpid(forked(name, folder / "whole"), 0)[1] == 0
        whole_time = time.monotonic() - begun
        expected = _contents(folder / "whole")
        done = 0
        while done < kills:
            where["runs"] += 1
            stopped, before = folder / f"stopped-{where['runs']}", 0
            while True:
                # A process that resumes begins from another seed: nothing may come from there but what is stored.
                child = forked(name, stopped, _SEED if stored(stopped) == 0 and not list(stopped.glob("c*")) else 99)
                if done == kills or not _killed(child, stopped, done % 2 == 0, chance.uniform(0, whole_time)):
                    break
                done += 1
                seen = stored(stopped)
                checkpoints = list(stopped.glob("checkpoint-*.npz"))
                where["draws" if seen else "warm-up" if len(checkpoints) > 1 else "before"] += 1
                assert seen >= before, "a draw that was seen is lost"
                before = seen
                assert not seen or _starts_alike(_contents(stopped), expected, seen)
            status = os.waitpid(child, 0)[1] if done == kills and _alive(child) else 0
            assert status == 0, f"a resumed run ended with {status}"
            assert _starts_alike(_contents(stopped), expected, expected[0])
            shutil.rmtree(stopped)
    return where


def _killed(child: int, folder: Path, storing: bool, seconds: float) -> bool:
    """True if a process was still running and was killed after so long, counted from its first file if ``storing``."""
    before = set(folder.glob("*.npz"))
    end = time.monotonic() + seconds
    while time.monotonic() < end or (storing and set(folder.glob("*.npz")) == before):
        if storing and set(folder.glob("*.npz")) != before:
            storing, end = False, time.monotonic() + seconds / 2
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            assert status == 0, f"a resumed run ended with {status}"
            return False
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _alive(child: int) -> bool:
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return False
    return True


def _contents(folder: Path) -> tuple[int, dict[str, torch.Tensor]]:
    there = StoredRun(folder)
    values = {}
    for group in ("posterior", "sample_stats"):
        for name in there.names(group):
            values[f"{group}/{name}"] = torch.from_numpy(there.read(group, name, 0, there.draws).copy())
    return there.draws, values


def _starts_alike(
    found: tuple[int, dict[str, torch.Tensor]], expected: tuple[int, dict[str, torch.Tensor]], draws: int
) -> bool:
    return found[0] >= draws and all(
        torch.equal(value[:, :draws], found[1][name][:, :draws]) for name, value in expected[1].items()
    )


def main(argv: list[str] | None = None) -> None:
    arguments = read(__doc__, argv, kills=50, seed=option(type=int))
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    share, places = -(-arguments.kills // len(RUNS)), ("before", "warm-up", "draws", "runs")
    checked = ((name, check(name, share, chance)) for name in RUNS)
    columns = ("run", "kills before anything was stored", "in warm-up", "among draws", "runs")
    show(columns, ([name, *(where[place] for place in places)] for name, where in checked))
    print("All draws are those of a run that was not killed, bit for bit; none that was seen was lost.")


if __name__ == "__main__":
    main()
