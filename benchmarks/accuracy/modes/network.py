"""Chains of the network eigenmodel that begin at particles: does any stay in the metastable state?

    python -m benchmarks.accuracy.modes.network [--seeds 10] [--draws 600]

Each seed for itself: one run of sequential Monte Carlo from modes, then four chains of `OHMC` from four of its
particles. A state in which one column is free has a potential energy 140 to 170 higher than the rest; chains from
random starts wait there for hundreds of trajectories. Seconds are of one processor, everything included but imports.
"""

import time
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from benchmarks.estimates import summary
from benchmarks.problems.network import MISSING, NETWORK, links
from benchmarks.problems.page import PROBLEMS
from benchmarks.study import read
from benchmarks.tables import show
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC

COLUMNS = (
    "seed", "particles, s", "log evidence", "chains, s", "200 draws more, s", "min ESS", "R-hat", "log density of each",
)  # fmt: skip


def model(linked, rows, columns, nodes):
    """Hoff's eigenmodel with a logistic link, its priors as in `benchmarks.problems.network`."""
    vectors = pyro.sample("vectors", StiefelUniform(nodes, 3))
    values = pyro.sample("values", dist.Normal(0.0, 16.0).expand([3]).to_event(1))
    intercept = pyro.sample("intercept", dist.Normal(0.0, 10.0))
    logits = intercept + ((vectors * values) @ vectors.T)[rows, columns]
    with pyro.plate("pairs", len(linked)):
        pyro.sample("linked", dist.Bernoulli(logits=logits), obs=linked)


def row(seed, data, particles, warmup, draws):
    pyro.set_rng_seed(seed)
    clock = [time.process_time()]
    smc = SMC(OHMC(model), particles, 1, chain_length=8, init="modes", num_starts=16, disable_progbar=True)
    smc.run(*data)
    clock.append(time.process_time())
    mcmc = MCMC(OHMC(model), draws, warmup, num_chains=4, initial_params=smc.initial_params(4), disable_progbar=True)
    mcmc.run(*data)
    clock.append(time.process_time())
    mcmc.continue_run(200)
    clock.append(time.process_time())
    found = {name: value.numpy() for name, value in mcmc.get_samples(group_by_chain=True).items()}
    v = np.concatenate([found["values"], found["intercept"][..., None]], -1)
    figures = summary({name: f(found["vectors"], v) for name, f in PROBLEMS[NETWORK].functionals.items()})
    levels = mcmc.get_extra_fields(group_by_chain=True)["lp"].mean(1)
    seconds = [f"{value:.0f}" for value in np.diff(clock)]
    told = f"{figures['ess_min']:.0f}", f"{figures['rhat']:.3f}", " ".join(f"{level:.0f}" for level in levels)
    return [seed, seconds[0], f"{smc.log_evidence:.1f}", *seconds[1:], *told]


def main(argv=None):
    arguments = read(__doc__, argv, seeds=10, particles=32, warmup=200, draws=600)
    warnings.filterwarnings("ignore")
    adjacency = links()
    if adjacency is None:
        print(f"{MISSING}.")
        return
    rows, columns = np.triu_indices(len(adjacency), 1)
    data = torch.as_tensor(adjacency[rows, columns]), rows, columns, len(adjacency)
    sizes = arguments.particles, arguments.warmup, arguments.draws
    show(COLUMNS, (row(seed, data, *sizes) for seed in range(arguments.seeds)))


if __name__ == "__main__":
    main()
