"""Tables 1 and 2 of the OHMC paper: effective sizes and seconds of its matrix mixture by HMC, GHMC and OHMC.

    python -m benchmarks.papers.ohmc.paper_tables [--chains 10] [--widths 3 --step-sizes 0.1] [--small]

The problem is in `benchmarks.papers.ohmc.mixture`, with σ = 0.3. As in the paper chains begin at M₁, have 20,000
iterations, the first 10,000 of which are burn-in, and effective sizes are those of the other 10,000, least and median
over the entries of Q and R. A row has the mean and the standard deviation over separate chains.

HMC moves Q = X(XᵀX)^(-1/2) by X, GHMC and OHMC move Q on the manifold; all three move R by the same coordinates, and
are this package's code, so that they differ by the mechanics of Q alone. The paper leaves open the step size, the
number of steps of an iteration, masses, and the estimator of effective sizes (here ArviZ's bulk ESS of a single chain).
Rows with a step size have it and 10 steps (from 7 to 13, evenly) for all three, and masses that are not adapted;
"adapted" lets the burn-in of each kernel choose its step size, trajectory length and masses. Seconds are process time
of 20,000 iterations of a single chain, by the median rate of five times 400 of them after native code is compiled; a
chain that short is not compiled while it adapts, so that there are none for the others.
"""

import time
import warnings

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

SIGMA, BURN_IN, DRAWS, STEPS, JITTER = 0.3, 10_000, 10_000, 10, 0.3
WIDTHS, STEP_SIZES = (2, 3), (0.05, 0.1)
PARTS = 5  # of the iterations that are timed
CHART = {"transforms": {"Q": biject_to(constraints.stiefel).inv}}
KERNELS = {"HMC": (OHMC, CHART), "GHMC": (GHMC, {}), "OHMC": (OHMC, {})}
PAPER = {"HMC": "20.3 / 63.8, 13.9 s", "GHMC": "50.2 / 80.4, 21.2 s", "OHMC": "103.8 / 139.7, 14.7 s"}
COLUMNS = (
    "matrices", "kernel", "ε", "steps", "acceptance", "least ESS", "median ESS", "seconds", "least ESS/s",
    "paper: ESS, seconds", "worst z",
)  # fmt: skip


def run(n, name, step_size, *, chains, burn_in, draws, seed=0):
    """Draws, ``{site: (chains, draws, ...)}``, and figures of the run; the step size is adapted if None."""
    pyro.set_rng_seed(seed)
    form, options = KERNELS[name]
    if step_size is not None:
        options = options | {
            "step_size": step_size, "trajectory_length": STEPS * step_size, "trajectory_jitter": JITTER,
            "adapt_step_size": False, "adapt_mass_matrix": False,
        }  # fmt: skip
    matrices, steps, clock = Matrices(n, SIGMA), [], []

    def record(kernel, *_):
        steps.append(int(kernel.run.statistics["n_steps"][0]))
        clock.append(time.process_time())

    kernel = form(matrices.model, init_strategy=matrices.start, reflection_probability=0.0, **options)
    mcmc = MCMC(kernel, draws, burn_in, num_chains=chains, disable_progbar=True, hook_fn=record)
    mcmc.run()
    samples = {site: value.numpy() for site, value in mcmc.get_samples(group_by_chain=True).items()}
    acceptance = mcmc.diagnostics()["acceptance_rate"].values()
    end = len(clock) - 1
    edges = np.unique(np.linspace(end - draws // 2, end, PARTS + 1).astype(int))  # after native code is compiled
    return samples, {
        "seconds": float(np.median(np.diff(np.array(clock)[edges]) / np.diff(edges))) * (BURN_IN + DRAWS),
        "steps": np.mean(steps[burn_in:]),
        "acceptance": float(np.mean([float(rate) for rate in acceptance])),
        "step size": float(torch.as_tensor(kernel.step_size).mean()),
    }


def _or_dash(value, digits):
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


def row(n, name, step_size, *, sizes, timing):
    """Figures of all chains, and the seconds of 20,000 iterations of one chain."""
    matrices = Matrices(n, SIGMA)
    draws, figures = run(n, name, step_size, **sizes)
    least, median = sizes_of_each_chain(matrices.coordinates(draws))
    seconds = run(n, name, step_size, seed=1, **timing)[1]["seconds"] if step_size is not None else np.nan
    deviation, _ = worst_deviation(matrices, draws)
    of_the_paper = PAPER[name] if n == 2 else "–"  # which has this matrix alone
    size = f"{step_size:g}" if step_size is not None else f"adapted, {figures['step size']:.2f}"
    run_of = formatted(".0f .2f", figures["steps"], figures["acceptance"])
    rates = _or_dash(seconds, 1), _or_dash(np.mean(least) / seconds, 0)
    sizes = with_deviation(least), with_deviation(median)
    return [f"V({n},2)", name, size, *run_of, *sizes, *rates, of_the_paper, f"{deviation:.1f}"]


def main(argv=None):
    arguments = read(
        __doc__, argv, chains=option(10, "separate runs", type=count),
        widths=option(list(WIDTHS), "n of V(n,2)", choices=WIDTHS), step_sizes=option(list(STEP_SIZES), type=positive),
        small=switch("V(2,2), one step size and few draws"),
    )  # fmt: skip
    warnings.filterwarnings("ignore")
    sizes = {"chains": arguments.chains, "burn_in": BURN_IN, "draws": DRAWS}
    timing = {"chains": 1, "burn_in": 1000, "draws": 4000}
    widths, step_sizes = arguments.widths, [*arguments.step_sizes, None]
    if arguments.small:
        widths, step_sizes, sizes = (2,), arguments.step_sizes[:1], {"chains": 2, "burn_in": 10, "draws": 40}
        timing = sizes | {"chains": 1}
    settings = [(n, name, step) for n in widths for step in step_sizes for name in KERNELS]
    show(COLUMNS, (row(*setting, sizes=sizes, timing=timing) for setting in settings))


if __name__ == "__main__":
    main()
