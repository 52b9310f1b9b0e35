"""The two readings of a running mean square on a manifold, on a Gaussian whose covariance the guides contain.

    python -m benchmarks.accuracy.guides.second_moment [--steps 2000] [--methods Adam] [--families Grassmann]

Divergence KL(guide ‖ target) after the same number of steps of 8 draws, for the best of three step sizes; mean over
seeds, and its standard deviation. The entropy is taken in closed form. The target has 60 dimensions, two long
directions of standard deviation 3, and 0.3 to 0.8 elsewhere.
"""

import statistics
from functools import partial
from itertools import product

import pyro
import pyro.distributions as dist
import torch

from benchmarks.papers.variational.methods import ADAPTIVE, FAMILIES, FIXED_RANK, Budget, Method, fit
from benchmarks.study import option, read
from benchmarks.tables import show
from pyro_manifold import optim
from pyro_manifold.manifolds import Stiefel

DIMENSIONS, RANK, STEPS, SEEDS = 60, 2, 2000, 3
METHODS = {
    "RMSProp": (optim.RiemannianRMSProp, "lr", ADAPTIVE),
    "AdaDelta": (optim.RiemannianAdaDelta, "eps", (1e-4, 1e-3, 1e-2)),
    "Adam": (optim.RiemannianAdam, "lr", ADAPTIVE),
}


def target():
    generator = torch.Generator().manual_seed(0)
    factor = Stiefel().random_point(DIMENSIONS, RANK, dtype=torch.float64, generator=generator)
    scale = 0.3 + 0.5 * torch.rand(DIMENSIONS, dtype=torch.float64, generator=generator)
    return dist.LowRankMultivariateNormal(torch.zeros(DIMENSIONS), 3 * factor, scale.square())


def divergences(family, build, option, size, kind, steps=STEPS, seeds=SEEDS):
    distribution = target()

    def model():
        pyro.sample("x", distribution)

    guide = partial(FAMILIES[family], path_derivative=False)
    method = Method(guide, lambda size: build({option: size, "second_moment": kind}), (size,))
    fits = [fit(method, model, (), RANK, size, Budget(0.0, steps), seed) for seed in range(seeds)]
    return [torch.distributions.kl_divergence(each.guide.get_posterior(), distribution).item() for each in fits]


def cell(family, name, kind, steps):
    """The best of the step sizes, its mean and standard deviation."""
    build, option, sizes = METHODS[name]
    found = min((divergences(family, build, option, size, kind, steps) for size in sizes), key=statistics.fmean)
    return f"{statistics.fmean(found):.2f} ({statistics.stdev(found):.2f})"


def main(argv=None):
    # Without a manifold, as the steps of the fixed-rank geometry are, both kinds are one.
    families = [family for family in FAMILIES if family != FIXED_RANK]
    methods, families = option(list(METHODS), choices=METHODS), option(families, choices=families)
    arguments = read(__doc__, argv, steps=STEPS, methods=methods, families=families)
    kinds = ("ambient", "transported")
    rows = (
        [*row, *(cell(*row, kind, arguments.steps) for kind in kinds)]
        for row in product(arguments.families, arguments.methods)
    )
    show(("family", "method", *kinds), rows)


if __name__ == "__main__":
    main()
