"""The two readings of a running mean square on a manifold, on a Gaussian whose covariance the guides contain.

    python -m benchmarks.variational.second_moment

Divergence KL(guide ‖ target) after the same number of steps, for the best of three step sizes; mean over seeds, and its
standard deviation. The target has 60 dimensions, two long directions of standard deviation 3, and 0.3 to 0.8 elsewhere.
"""

from __future__ import annotations

import statistics

import pyro
import pyro.distributions as dist
import torch

from benchmarks.variational.methods import ADAPTIVE, FAMILIES, Budget, Method, fit
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


def divergences(family, build, option, size, kind):
    law = target()

    def model():
        pyro.sample("x", law)

    method = Method(FAMILIES[family], lambda size: build({option: size, "second_moment": kind}), (size,))
    fits = [fit(method, model, (), RANK, size, Budget(0.0, STEPS), seed) for seed in range(SEEDS)]
    return [torch.distributions.kl_divergence(each.guide.get_posterior(), law).item() for each in fits]


def main():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    print("| family | method | ambient | transported |\n|---|---|---|---|")
    for family in FAMILIES:
        for name, (build, option, sizes) in METHODS.items():
            cells = []
            for kind in ("ambient", "transported"):
                found = min((divergences(family, build, option, size, kind) for size in sizes), key=statistics.fmean)
                cells.append(f"{statistics.fmean(found):.2f} ({statistics.stdev(found):.2f})")
            print(f"| {family} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
