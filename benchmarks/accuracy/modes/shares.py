"""Do particles find all modes, and give them their weights?

    python -m benchmarks.accuracy.modes.shares [--seeds 10] [--particles 512] [problem ...]

Sequential Monte Carlo from the prior and from modes that descents have found, each seed for itself: the shares of
particles in groups of modes whose true shares are known, and the processor time.

- "paper": the mixture of the OHMC paper on V(2,2) × R³, whose product M = QR has 16 modes of equal mass: the entries of
  M are independent, each near 1 or near 2. Particles begin from coordinates N(0, 2²), which is divided out.
- "orientations": two matrix Langevin distributions over 200 simulated 3×2 orientations, 100 of each, with the component
  of each summed out: two modes of equal mass, which are the same but for the order of components.
"""

import time

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from benchmarks.problems.mixtures import product, product_mixture
from benchmarks.problems.orientations import MODES, data, mixture
from benchmarks.study import parser_of, set_up
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import OHMC, SMC

PAPER = product_mixture(2, draws=100_000)


def paper():
    """The density of the problem, which is with respect to Lebesgue measure: the prior is divided out."""
    X = pyro.sample("X", StiefelUniform(2, 2))
    prior = dist.Normal(0.0, 2.0).expand([3]).to_event(1)
    v = pyro.sample("v", prior)
    pyro.factor("density", PAPER.log_density(X, v, torch) - prior.log_prob(v))


def shares_of_products(draws):
    """The share of each of the 16 modes, ``(16,)``: 1/16 each."""
    M = product(draws["X"].numpy(), draws["v"].numpy(), np)
    which = ((M > 1.5).reshape(len(M), 4) * [1, 2, 4, 8]).sum(1)
    return np.bincount(which, minlength=16) / len(M)


def shares_of_orders(draws):
    """The share of the particles whose first component is that of the first group, ``(2,)``: ½ each."""
    distance = (draws["F"] - MODES[0].to(draws["F"])).square().sum((-2, -1))
    first = float((distance[:, 0] < distance[:, 1]).double().mean())
    return np.array([first, 1 - first])


def simulated_orientations():
    pyro.set_rng_seed(0)
    return data(200, 2)[:1]


PROBLEMS = {
    "paper": (paper, tuple, shares_of_products),
    "orientations": (mixture, simulated_orientations, shares_of_orders),
}


def rows(name, inits, seeds, particles, starts):
    """``(init, shares, log evidence, processor time)`` of each."""
    model, arguments, shares = PROBLEMS[name]
    args = arguments()
    for init in inits:
        for seed in range(seeds):
            pyro.set_rng_seed(seed)
            began = time.process_time()
            smc = SMC(OHMC(model), particles, 1, chain_length=8, init=init, num_starts=starts, disable_progbar=True)
            smc.run(*args)
            yield init, shares(smc.get_samples()), smc.log_evidence, time.process_time() - began


def main(argv=None):
    parser = parser_of(__doc__, init=["prior", "modes"], seeds=10, particles=512, starts=64)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="problem")
    arguments = parser.parse_args(argv)
    set_up()
    for name in arguments.problems:
        found = list(rows(name, arguments.init, arguments.seeds, arguments.particles, arguments.starts))
        for init in arguments.init:
            shares, evidence, seconds = (
                np.array(x) for x in zip(*[row[1:] for row in found if row[0] == init], strict=True)
            )
            seeds, modes = shares.shape
            empty = int((shares == 0).any(1).sum())
            print(f"{name}, from {init}: {seeds} seeds, {modes} modes, {seconds.mean():.1f} s each")
            print(f"  shares {shares.min():.4f} to {shares.max():.4f}, {empty} seeds with an empty mode")
            print(f"  means over seeds {shares.mean(0).min():.4f} to {shares.mean(0).max():.4f}")
            print(f"  log evidence {evidence.mean():.2f}, each {np.round(evidence, 2).tolist()}")


if __name__ == "__main__":
    main()
