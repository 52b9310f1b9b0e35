"""Low-rank masses of unconstrained sites, as warm-up takes them by default, beside a diagonal.

    python -m benchmarks.speed.tuning.low_rank --only "AR|item"
    python -m benchmarks.speed.tuning.low_rank --seeds 0 1 2

Effective sizes are the smallest bulk or tail size of the functionals of a posterior and its log density, of all chains.
Each figure is the median over seeds, R-hat the largest. Three of the posteriors had no part in choosing the conditions
under which warm-up takes low-rank masses; the others are `benchmarks.problems.published`.
"""

import math
import time
import warnings

import numpy as np
import pyro

from benchmarks.estimates import effective_sizes, summary
from benchmarks.problems.correlated import correlated
from benchmarks.problems.published import published
from benchmarks.study import named, option, read
from benchmarks.tables import formatted, show
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
    (size, _, steps, seconds, _), (found, _, fewer, longer, _) = np.median(diagonal, 0), np.median(default, 0)
    ratio, rhats = found / size, [runs[:, 1].max() for runs in (diagonal, default)]
    figures = size, found, ratio, *rhats, steps, fewer, ratio * steps / fewer, seconds, longer
    cells = formatted(".0f .0f .2f .3f .3f .1f .1f .2f .1f .1f", *figures)
    return ratio, [name, f"{int(default[:, 4].sum())} of {len(seeds)}", *cells]


def main(argv=None):
    only = option("", "parts of the names of posteriors, with | between them")
    sizes = option((4, 500, 500), "chains, warm-up, draws")
    arguments = read(__doc__, argv, only=only, sizes=sizes, seeds=[0, 1, 2])
    warnings.filterwarnings("ignore")
    chosen, ratios = named(correlated() | published(), arguments.only), []

    def rows():
        for name, posterior in chosen.items():
            ratio, cells = row(name, posterior, arguments.sizes, arguments.seeds)
            ratios.append(ratio)
            yield cells

    show(COLUMNS, rows())
    what = f"Ratio of effective sizes, geometric mean of {len(ratios)} posteriors"
    print(f"\n{what}: {math.exp(np.mean(np.log(ratios))):.2f}, least {min(ratios):.2f}.")


if __name__ == "__main__":
    main()
