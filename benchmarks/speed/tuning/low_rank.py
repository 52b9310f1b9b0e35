"""Low-rank masses of unconstrained sites, as warm-up takes them by default, beside a diagonal.

    python -m benchmarks.speed.tuning.low_rank --only "AR|item"
    python -m benchmarks.speed.tuning.low_rank --seeds 0 1 2

Effective sizes are the smallest bulk or tail size of the functionals of a posterior and its log density, of all chains.
Each figure is the median over seeds, R-hat the largest. Three of the posteriors had no part in choosing the conditions
under which warm-up takes low-rank masses; the others are `benchmarks.problems.published`.
"""

import argparse
import math
import time
import warnings

import numpy as np
import pyro
import torch

from benchmarks.estimates import effective_sizes, summary
from benchmarks.problems.correlated import correlated
from benchmarks.problems.published import published
from benchmarks.tables import show
from pyro_manifold.infer import MCMC, OHMC

COLUMNS = (
    "posterior", "taken", "ESS, diagonal", "ESS", "ratio", "R-hat, diagonal", "R-hat", "steps, diagonal", "steps",
    "ratio of ESS a gradient", "CPU s, diagonal", "CPU s",
)  # fmt: skip


def measured(posterior, full_mass, sizes, seed):
    """Smallest effective size, R-hat, steps of a draw, CPU seconds of the run, and whether directions were taken."""
    chains, warmup, draws = sizes
    pyro.set_rng_seed(seed)
    begun = time.process_time()
    kernel = OHMC(posterior.model, full_mass=full_mass)
    mcmc = MCMC(kernel, draws, warmup, num_chains=chains, disable_progbar=True)
    mcmc.run()
    seconds = time.process_time() - begun
    extra = mcmc.get_extra_fields(group_by_chain=True)
    values = posterior.functionals(mcmc.get_samples(group_by_chain=True)) | {"log density": extra["lp"]}
    values = {name: value.numpy() for name, value in values.items()}
    smallest = min(*effective_sizes(values), *effective_sizes(values, method="tail"))
    manifolds = kernel.run.problem.manifolds
    taken = any(x.dim() == 2 for block, x in kernel.inverse_mass_matrix.items() if block not in manifolds)
    return smallest, summary(values)["rhat"], float(extra["n_steps"].double().mean()), seconds, taken


def row(name, posterior, sizes, seeds):
    """Cells of a posterior, and the ratio of effective sizes."""
    diagonal, default = (
        np.array([measured(posterior, full_mass, sizes, seed) for seed in seeds]) for full_mass in (False, None)
    )
    size, _, steps, seconds, _ = np.median(diagonal, 0)
    found, _, fewer, longer, _ = np.median(default, 0)
    ratio = found / size
    return ratio, [
        name,
        f"{int(default[:, 4].sum())} of {len(seeds)}",
        f"{size:.0f}",
        f"{found:.0f}",
        f"{ratio:.2f}",
        f"{diagonal[:, 1].max():.3f}",
        f"{default[:, 1].max():.3f}",
        f"{steps:.1f}",
        f"{fewer:.1f}",
        f"{ratio * steps / fewer:.2f}",
        f"{seconds:.1f}",
        f"{longer:.1f}",
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of the names of posteriors, with | between them")
    parser.add_argument("--sizes", type=int, nargs=3, default=[4, 500, 500], help="chains, warm-up, draws")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    chosen = {
        name: posterior
        for name, posterior in (correlated() | published()).items()
        if any(part in name for part in arguments.only.split("|"))
    }
    ratios = []

    def rows():
        for name, posterior in chosen.items():
            ratio, cells = row(name, posterior, arguments.sizes, arguments.seeds)
            ratios.append(ratio)
            yield cells

    show(COLUMNS, rows())
    mean = math.exp(np.mean(np.log(ratios)))
    print(
        f"\nRatio of effective sizes, geometric mean of {len(ratios)} posteriors: {mean:.2f}, least {min(ratios):.2f}."
    )


if __name__ == "__main__":
    main()
