"""Steps of `pyro_manifold.infer.SVI` beside those of `pyro.infer.SVI`, in processor time.

python -m benchmarks.speed.svi
python -m benchmarks.speed.svi "111 dimensions"             problems whose name contains this
python -m benchmarks.speed.svi "111 dimensions" Stiefel     and the guides whose name contains this
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import JitTrace_ELBO, Trace_ELBO
from pyro.infer import autoguide as pyros

from benchmarks.study import set_up
from benchmarks.tables import formatted, show
from benchmarks.timing import stopwatch
from pyro_manifold.infer import SVI
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from pyro_manifold.optim import RiemannianAdam

PARTICLES, RANK = 8, 3
BLOCKS, SECONDS = 5, 0.4
SIZES = {30: 300, 111: 351, 1000: 500}
PREFACE = f"""\
Microseconds of processor time a step, with {PARTICLES} particles in float64 on one thread: the median of {BLOCKS}
blocks. Each figure is of a process of its own. Low-rank guides have rank {RANK}. Pyro's steps have vectorised
particles; *Jit* is `JitTrace_ELBO`, without the time to compile it. *Ready* are the seconds of the processor, those of
the C compiler among them, until native code is in use.
"""
HEAD = ["problem", "guide", "optimiser", "Pyro", "Jit", "ours", "Pyro / ours", "Jit / ours", "form", "ready"]
GUIDES = {
    "Stiefel": partial(AutoStiefelLowRankMultivariateNormal, rank=RANK),
    "Pyro's low rank": partial(pyros.AutoLowRankMultivariateNormal, rank=RANK),
    "AutoNormal": pyros.AutoNormal,
    "AutoMultivariateNormal": pyros.AutoMultivariateNormal,
}
LARGEST_FULL_RANK = 1000
OPTIMISERS = {
    "Adam": lambda: pyro.optim.Adam({"lr": 0.01}),
    "ClippedAdam": lambda: pyro.optim.ClippedAdam({"lr": 0.01}),
    "RiemannianAdam": lambda: RiemannianAdam({"lr": 0.01}),
}


class Problem(NamedTuple):
    """A model with its data."""

    name: str
    model: Callable
    data: tuple
    dimensions: int
    options: dict = {}  # noqa: RUF012


def logistic(x, y, drawn=None):
    """Logistic regression whose particles can be in front; of a part of the rows at each step, if ``drawn``."""
    b = pyro.sample("b", dist.Normal(torch.zeros(x.shape[-1]), 1.0).to_event(1))
    with pyro.plate("rows", len(x), subsample_size=drawn) as rows:
        if drawn is not None:
            x, y = x[rows], y[rows]
        pyro.sample("y", dist.Bernoulli(logits=(x * b).sum(-1)), obs=y)


def horseshoe(x, y):
    """Logistic regression with a horseshoe prior, as on leukemia, whose particles can be in front."""
    size = x.shape[-1]
    tau = pyro.sample("tau", dist.HalfCauchy(torch.ones(())))
    scales = pyro.sample("scales", dist.HalfCauchy(torch.ones(size)).to_event(1))
    b = pyro.sample("b", dist.Normal(torch.zeros(size), tau.unsqueeze(-1) * scales).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=(x * b).sum(-1)), obs=y)


def problems():
    for dimensions, rows in SIZES.items():
        x, y = simulated(rows, dimensions)
        yield Problem(f"{dimensions} dimensions", logistic, (x, y), dimensions)
        if dimensions == 111:
            yield Problem("111 dimensions, 64 rows a step", logistic, (x, y), dimensions, {"drawn": 64})
    yield Problem("7,130 dimensions, 38 rows", logistic, simulated(38, 7130), 7130)
    yield Problem("horseshoe, 2,001 dimensions", horseshoe, simulated(72, 1000), 2001)


def simulated(rows, dimensions):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, dimensions, generator=random)
    return x, (x[:, 0] > 0).to(x.dtype)


def seconds_a_step(step):
    """Median over blocks of the processor time of a step."""
    found = []
    for _ in range(BLOCKS):
        count, start = 0, time.process_time()
        while (spent := time.process_time() - start) < SECONDS / BLOCKS or not count:
            step()
            count += 1
        found.append(spent / count)
    return sorted(found)[BLOCKS // 2]


def fresh(problem, guide, optimiser, infer, loss):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    elbo = loss(num_particles=PARTICLES, vectorize_particles=True, max_plate_nesting=1)
    return infer(problem.model, guide(problem.model), optimiser(), elbo)


def pyros_own(problem, guide, optimiser, loss):
    """Seconds of a step of Pyro's."""
    svi = fresh(problem, guide, optimiser, pyro.infer.SVI, loss)
    for _ in range(3):
        svi.step(*problem.data, **problem.options)
    return seconds_a_step(partial(svi.step, *problem.data, **problem.options))


def ours(problem, guide, optimiser):
    """Seconds of a step, its form, and the seconds until that is in use."""
    svi = fresh(problem, guide, optimiser, SVI, Trace_ELBO)
    with stopwatch() as ready:
        svi.step(*problem.data, **problem.options)
        svi._steps.compile()
    for _ in range(300 if svi.backend == "native" else 3):  # past the first comparisons with the model
        svi.step(*problem.data, **problem.options)
    seconds = seconds_a_step(partial(svi.step, *problem.data, **problem.options))
    return seconds, svi.backend, ready["cpu_seconds"]


def apart(function, *args):
    """The result of a function in a process of its own.

    Large blocks that one method has freed are not mapped again in the next: Pyro's steps at 1,000 dimensions take 10 ms
    after others have run, and 33 ms before.
    """
    receive, send = multiprocessing.Pipe(duplex=False)

    def send_result():
        torch.set_num_threads(1)  # a forked process waits for ever for the threads of its parent
        send.send(function(*args))

    process = multiprocessing.get_context("fork").Process(target=send_result)
    process.start()
    found = receive.recv()
    process.join()
    return found


def rows(only="", guides=GUIDES, optimisers=OPTIMISERS):
    for problem in problems():
        if only not in problem.name:
            continue
        for name, guide in guides.items():
            if name == "AutoMultivariateNormal" and problem.dimensions > LARGEST_FULL_RANK:
                continue
            chosen = optimisers if name in ("Stiefel", "Pyro's low rank") else dict(list(optimisers.items())[:1])
            for optimiser, build in chosen.items():
                case = problem, guide, build
                theirs = [apart(pyros_own, *case, loss) for loss in (Trace_ELBO, JitTrace_ELBO)]
                own, form, ready = apart(ours, *case)
                figures = *(1e6 * seconds for seconds in (*theirs, own)), *(seconds / own for seconds in theirs)
                cells = formatted(".0f .0f .0f .1f .1f", *figures)
                yield [problem.name, name, optimiser, *cells, form, f"{ready:.1f}"]


def main(only="", guide=""):
    set_up()
    print(f"## Steps of SVI beside Pyro's\n\n{PREFACE}")
    with tempfile.TemporaryDirectory() as empty:
        os.environ["PYRO_MANIFOLD_CACHE"] = empty
        show(HEAD, rows(only, {name: build for name, build in GUIDES.items() if guide in name}))


if __name__ == "__main__":
    main(*sys.argv[1:])
