"""Time of an iteration of every kernel that has native code, with it and without, all that surrounds it in Python in.

python -m benchmarks.speed.native_kernels            two minutes
python -m benchmarks.speed.native_kernels --short    some kernels, few iterations
"""

import itertools
import os
import time
import warnings
from unittest import mock

import pyro
import pyro.distributions as dist
import torch

from benchmarks.machine import confine
from benchmarks.speed.tuning.posteriors import stretched_langevin
from benchmarks.study import read, switch
from benchmarks.tables import formatted, show
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC, OSGHMC, PSGLD, SGHMC, SGLD

CHAINS, DRAWS, ITERATIONS, SECONDS = 4, 3000, 500, 2.0
PREFACE = f"""\
Microseconds of processor time of an iteration of {CHAINS} chains after warm-up, draws and statistics kept: a matrix
Langevin distribution on V(10,4), a regression of 60 rows on one input by its sine (MSD), principal components of 1,000
rows in batches of 50 (OSGHMC), effects of 20 groups of 1,000 rows in batches of 50 (the others).
"""


def curve():
    x = torch.linspace(-1, 1, 60)
    y = torch.sin(2 * x) + 0.3 * torch.randn(60, generator=torch.Generator().manual_seed(0))

    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        noise = pyro.sample("noise", dist.LogNormal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w[0] + torch.sin(w[1] * x), noise), obs=y)

    return model


def components(rows=1000, n=6):

    random = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=random) @ torch.randn(3, n, generator=random)

    def model():
        U = pyro.sample("U", StiefelUniform(n, 2))
        scales = pyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
        with pyro.plate("rows", rows, subsample_size=50) as chosen:
            covariance = U * scales, torch.ones(n)
            pyro.sample("x", dist.LowRankMultivariateNormal(torch.zeros(n), *covariance), obs=x[chosen])

    return model


def effects(rows=1000, groups=20):
    random = torch.Generator().manual_seed(0)
    group, y = torch.randint(groups, (rows,), generator=random), torch.randn(rows, generator=random)

    def model():
        with pyro.plate("groups", groups):
            effect = pyro.sample("effect", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", rows, subsample_size=50) as chosen:
            pyro.sample("y", dist.Normal(effect[group[chosen]], 1.0), obs=y[chosen])

    return model


def cases():
    """Kernel, its steps in an iteration, and how it is made."""
    fixed = {"step_size": 0.05, "adapt_step_size": False, "adapt_mass_matrix": False}
    yield "OHMC", 10, lambda: OHMC(stretched_langevin(), num_steps=10, **fixed)
    yield "GHMC", 1, lambda: GHMC(stretched_langevin(), num_steps=1, **fixed)
    yield "MSD", 1, lambda: MSD(curve(), step_size=0.2)
    adjusted = {"metropolis": True, "num_steps": 4, "adapt_step_size": False}
    yield "MSD, metropolis=True", 4, lambda: MSD(curve(), step_size=0.2, **adjusted)
    for steps in (1, 10):
        yield "OSGHMC", steps, lambda steps=steps: OSGHMC(components(), step_size=1e-4, num_steps=steps)
        yield "SGHMC", steps, lambda steps=steps: SGHMC(effects(), step_size=5e-3, num_steps=steps)
        yield "SGLD", steps, lambda steps=steps: SGLD(effects(), step_size=1e-3, num_steps=steps)
        yield "PSGLD", steps, lambda steps=steps: PSGLD(effects(), step_size=1e-3, num_steps=steps)


def microseconds(
    make, native, draws=DRAWS, iterations=ITERATIONS, seconds=SECONDS, *, chains=CHAINS, start=None, data=()
):
    """Processor time of an iteration of all chains, the fastest of blocks of iterations, after so many draws.

    Args:
        make: makes the kernel.
        native: whether it may have native code, which is compiled while the first draws are made.
        draws: of each chain before the clock starts.
        iterations: of a block.
        seconds: of all blocks.
        chains: their number.
        start: initial values of all chains.
        data: arguments of the model.
    """
    pyro.set_rng_seed(0)
    mcmc = MCMC(make(), draws, 50, num_chains=chains, initial_params=start, disable_progbar=True)
    times = []
    with mock.patch.dict(os.environ, PYRO_MANIFOLD_NATIVE=str(int(native))):
        mcmc.run(*data)
        started = time.process_time()
        while not times or time.process_time() - started < seconds:
            begun = time.process_time()
            mcmc.continue_run(iterations)
            times.append((time.process_time() - begun) / iterations)
    return 1e6 * min(times)


def rows(short):
    sizes = (20, 5, 0.0) if short else (DRAWS, ITERATIONS, SECONDS)
    for kernel, steps, make in itertools.islice(cases(), 2 if short else None):
        without, here = (microseconds(make, native, *sizes) for native in (False, True))
        yield kernel, steps, *formatted(".0f .0f .1f", without, here, without / here)


def main(argv=None):
    short = read(__doc__, argv, short=switch("two kernels, few iterations, to see that it runs")).short
    warnings.filterwarnings("ignore")
    confine(1)
    print(f"## An iteration of every kernel\n\n{PREFACE}", flush=True)
    show(("kernel", "steps", "without µs", "native µs", "ratio"), rows(short))


if __name__ == "__main__":
    main()
