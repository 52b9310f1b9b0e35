"""Tables 1 and 2 of the OHMC paper: effective sizes and seconds of its matrix mixture by HMC, GHMC and OHMC.

    python -m benchmarks.papers.ohmc.paper_tables [--chains 10] [--steps 3 --widths 2 --step-sizes 0.04 0.06] [--small]

The problem is in `benchmarks.papers.ohmc.mixture`, with σ = 0.3. As in the paper chains begin at M₁, have 20,000
iterations, the first 10,000 of which are burn-in, and effective sizes are those of the other 10,000, least and median
over the entries of Q and R. A row has the mean and the standard deviation over separate chains.

HMC moves Q = X(XᵀX)^(-1/2) by X, GHMC and OHMC move Q on the manifold; all three move R by the same coordinates, and
are this package's code, so that they differ by the mechanics of Q alone. The paper leaves open the step size, the
number of steps of an iteration, masses, and the estimator of effective sizes (here ArviZ's bulk ESS of a single chain).
Rows with a step size have the algorithms as printed: a fixed number of steps, and a mass of Q with which momenta are
the projected normals of the papers, 1, and ½ for OHMC on square matrices, where K = ½‖r‖² with r in the canonical
metric is twice our K. "Adapted" lets the burn-in of each kernel choose its step size, trajectory length and mass of Q.
Seconds are process time of 20,000 iterations of a single chain, by native code and by torch: the least of several runs,
in which the kernels take turns, of the rate of their second half, before which native code is compiled. A chain that
short is not compiled while it adapts, so that there are none for the others.
"""

import os
import time
import warnings
from itertools import product
from unittest import mock

import numpy as np
import pyro
import torch
from torch.distributions import biject_to

from benchmarks.arguments import count, positive
from benchmarks.papers.ohmc.mixture import Matrices, sizes_of_each_chain, worst_deviation
from benchmarks.study import option, read, switch
from benchmarks.tables import formatted, show, with_deviation
from pyro_manifold import constraints
from pyro_manifold.infer import GHMC, MCMC, OHMC

SIGMA, BURN_IN, DRAWS, STEPS = 0.3, 10_000, 10_000, 10
WIDTHS, STEP_SIZES = (2, 3), (0.1, None)
TURNS, TIMED = 3, {True: {"burn_in": 1000, "draws": 4000}, False: {"burn_in": 50, "draws": 150}}  # by native code
CHART = {"transforms": {"Q": biject_to(constraints.stiefel).inv}}
KERNELS = {"HMC": (OHMC, CHART), "GHMC": (GHMC, {}), "OHMC": (OHMC, {"column_masses": False})}
PAPER = {"HMC": "20.3 / 63.8, 13.9 s", "GHMC": "50.2 / 80.4, 21.2 s", "OHMC": "103.8 / 139.7, 14.7 s"}
COLUMNS = (
    "matrices", "kernel", "ε", "steps", "acceptance", "least ESS", "median ESS", "seconds", "least ESS/s",
    "seconds by torch", "paper: ESS, seconds", "worst z",
)  # fmt: skip


def run(n, name, step_size, *, steps=STEPS, chains, burn_in, draws, seed=0, clock=None):
    """Draws, ``{site: (chains, draws, ...)}``, and the run; the step size is adapted if None.

    ``clock`` is a list to which each iteration adds the process time.
    """
    pyro.set_rng_seed(seed)
    form, options = KERNELS[name]
    if step_size is not None:
        options = options | {
            "step_size": step_size, "num_steps": steps, "adapt_step_size": False, "adapt_mass_matrix": False,
            "inverse_mass_matrix": {"Q": 2.0 if (name, n) == ("OHMC", 2) else 1.0} if name != "HMC" else None,
        }  # fmt: skip
    matrices, hook = Matrices(n, SIGMA), clock and (lambda *_: clock.append(time.process_time()))
    kernel = form(matrices.model, init_strategy=matrices.start, reflection_probability=0.0, **options)
    mcmc = MCMC(kernel, draws, burn_in, num_chains=chains, disable_progbar=True, hook_fn=hook)
    mcmc.run()
    return {site: value.numpy() for site, value in mcmc.get_samples(group_by_chain=True).items()}, mcmc


def seconds_of(n, steps, timed):
    """Least seconds of 20,000 iterations of one chain, ``{(kernel, by native code): seconds}``."""
    found = dict.fromkeys(product(KERNELS, timed), np.inf)
    for seed, (name, native) in product(range(TURNS), found):
        clock = [time.process_time()]
        with mock.patch.dict(os.environ, PYRO_MANIFOLD_NATIVE=str(int(native))):
            run(n, name, STEP_SIZES[0], steps=steps, chains=1, seed=seed, clock=clock, **timed[native])
        half = timed[native]["draws"] // 2
        found[name, native] = min(found[name, native], (clock[-1] - clock[-1 - half]) / half * (BURN_IN + DRAWS))
    return found


def row(n, name, step_size, steps, seconds, sizes):
    """Figures of all chains; ``seconds`` are of 20,000 iterations of one chain, by native code and by torch."""
    matrices = Matrices(n, SIGMA)
    draws, mcmc = run(n, name, step_size, steps=steps, **sizes)
    least, median = sizes_of_each_chain(matrices.coordinates(draws))
    deviation, _ = worst_deviation(matrices, draws)
    size, times = f"adapted, {float(torch.as_tensor(mcmc.kernel.step_size).mean()):.2f}", ("–", "–", "–")
    if step_size is not None:
        size, times = f"{step_size:g}", formatted(".1f .0f .0f", seconds[0], np.mean(least) / seconds[0], seconds[1])
    accepted = np.mean([float(rate) for rate in mcmc.diagnostics()["acceptance_rate"].values()])
    of_the_paper = PAPER[name] if n == 2 else "–"  # which has this matrix alone
    effective = with_deviation(least), with_deviation(median)
    run_of = f"V({n},2)", name, size, mcmc.kernel.num_steps, f"{accepted:.2f}"
    return [*run_of, *effective, *times, of_the_paper, f"{deviation:.1f}"]


def rows(widths, step_sizes, steps, sizes, timed):
    for n in widths:
        seconds = seconds_of(n, steps, timed)
        for step_size, name in product(step_sizes, KERNELS):
            yield row(n, name, step_size, steps, [seconds[name, native] for native in timed], sizes)


def main(argv=None):
    arguments = read(
        __doc__, argv, chains=option(10, "separate runs", type=count),
        widths=option(list(WIDTHS), "n of V(n,2)", choices=WIDTHS),
        step_sizes=option(list(STEP_SIZES), "also adapted ones if not given", type=positive),
        steps=option(STEPS, "of an iteration", type=count), small=switch("V(2,2), one step size and few draws"),
    )  # fmt: skip
    warnings.filterwarnings("ignore")
    sizes, timed = {"chains": arguments.chains, "burn_in": BURN_IN, "draws": DRAWS}, TIMED
    widths, step_sizes = arguments.widths, arguments.step_sizes
    if arguments.small:
        widths, step_sizes, sizes = (2,), step_sizes[:1], {"chains": 2, "burn_in": 10, "draws": 40}
        timed = {native: {"burn_in": 10, "draws": 40} for native in TIMED}
    show(COLUMNS, rows(widths, step_sizes, arguments.steps, sizes, timed))


if __name__ == "__main__":
    main()
