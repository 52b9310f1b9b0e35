"""A sampler trained on ten independent Gaussian coordinates, on twenty correlated ones, beside SGHMC.

    python -m benchmarks.stochastic.meta_gaussian --train FILE [--rounds 50]
    python -m benchmarks.stochastic.meta_gaussian [--sampler gaussian] [--seeds 5] [--steps 12000] [--tune]

The experiment of section 5.1 of Gong, Li & Hernández-Lobato (ICLR 2019). ``--train`` trains: variances are uniform in
[0, 1] (none below 0.02), chains begin uniformly within 3 of the mean. The comparison: for each seed, another covariance
0.36 L Lᵀ + 0.02 I with L standard normal, so that no direction is narrower than in training; 50 chains of 12,000 steps
of the same size from within 3 of the mean, nothing left out. The noise of the gradient is Gaussian with variance 1 in
all of this. ESS is the paper's: of one chain, by the autocorrelation of all coordinates together, the mean over chains;
KL is that of a Gaussian with mean and covariance of all draws of all chains, from the target. The paper has the ESS 59
for its learned sampler and 22 for SGHMC.

SGHMC has the paper's step size 0.025 and friction; ``--tune`` has others beside it, for a sampler that has learned to
move faster can only be told from one with longer steps by these.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_uniform

from benchmarks.tables import show
from problems.noisy_gradients import gradient_noise
from pyro_manifold.infer import MCMC, NNSGHMC, SGHMC, MetaSampler, MetaTask, train_meta_sampler

STEP_SIZE, FRICTION, LEAST_VARIANCE = 0.025, 0.025, 0.02
OPTIONS = {"init_strategy": init_to_uniform(radius=3.0), "minibatches": "independent", "own_minibatches": True}


def gaussian(covariance):
    law = dist.MultivariateNormal(torch.zeros(len(covariance)), covariance)

    def model():
        gradient_noise("x", pyro.sample("x", law), 1.0)

    return model


def training_task(seed):
    variances = torch.rand(10, generator=torch.Generator().manual_seed(seed)).clamp(min=LEAST_VARIANCE)
    return MetaTask(gaussian(variances.diag()), init_strategy=OPTIONS["init_strategy"], data_size=1)


def test_covariance(seed):
    factor = 0.6 * torch.randn(20, 20, generator=torch.Generator().manual_seed(1000 + seed))
    return factor @ factor.T + LEAST_VARIANCE * torch.eye(20)


def effective_sizes(draws):
    """The paper's ESS of each chain of ``(chains, draws, d)``: positive pairs of autocovariances, summed over d."""
    chains, n, _ = draws.shape
    centred = draws - draws.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, 2 * n, dim=1).abs().square().sum(2)
    lags = min(n // 3, 1000)
    covariances = torch.fft.irfft(spectrum, 2 * n, dim=1)[:, :lags] / (n - torch.arange(lags))
    pairs = covariances[:, 1 : lags - (lags + 1) % 2].reshape(chains, -1, 2).sum(2)
    positive = (pairs > 0).long().cumprod(1)
    return n * covariances[:, 0] / (covariances[:, 0] + 2 * (pairs * positive).sum(1))


def divergence(draws, covariance):
    """KL of the Gaussian with the mean and covariance of all draws from the target."""
    flat = draws.flatten(0, 1)
    found = dist.MultivariateNormal(flat.mean(0), torch.cov(flat.T))
    return float(
        torch.distributions.kl_divergence(found, dist.MultivariateNormal(torch.zeros(len(covariance)), covariance))
    )


def measured(kernel, covariance, seed, steps, chains):
    """``(ESS, KL)``, or NaN for chains that left the finite numbers."""
    pyro.set_rng_seed(seed)
    mcmc = MCMC(kernel(gaussian(covariance)), steps, 0, num_chains=chains, disable_progbar=True)
    try:
        mcmc.run()
    except ArithmeticError:
        return float("nan"), float("nan")
    draws = mcmc.get_samples(group_by_chain=True)["x"]
    if draws.shape[1] < steps or float(draws.abs().max()) > 1e6:
        return float("nan"), float("nan")
    return float(effective_sizes(draws).mean()), divergence(draws, covariance)


def sghmc(step_size, friction):
    return lambda model: SGHMC(model, step_size=step_size, friction=friction, integrator="euler", **OPTIONS)


def learned(sampler, step_size):
    return lambda model: NNSGHMC(model, sampler=sampler, step_size=step_size, data_size=1, **OPTIONS)


def train(path, rounds):
    command = f"python -m benchmarks.stochastic.meta_gaussian --train FILE --rounds {rounds}"
    tasks = [training_task(seed) for seed in range(5)]
    sampler = train_meta_sampler(tasks, step_size=STEP_SIZE, rounds=rounds, chains=30, command=command)
    sampler.save(path)


def compare(sampler, seeds, steps, chains, tuned):
    kernels = {"learned": learned(sampler, STEP_SIZE), "SGHMC, the same ε": sghmc(STEP_SIZE, FRICTION)}
    for step_size, friction in tuned:
        kernels[f"SGHMC, ε={step_size:g}, α={friction:g}"] = sghmc(step_size, friction)
    rows = []
    for name, kernel in kernels.items():
        found = [measured(kernel, test_covariance(seed), seed, steps, chains) for seed in range(seeds)]
        sizes, divergences = torch.tensor(found, dtype=torch.double).T
        each = ", ".join(f"{size:.0f} ({kl:.3g})" for size, kl in found)
        rows.append([name, f"{sizes.mean():.1f}", f"{divergences.mean():.3g}", each])
        print(rows[-1], flush=True)
    show(["sampler", "ESS", "KL", "ESS (KL) of each seed"], rows)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", help="train a sampler and write it here")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sampler", default="gaussian", help="a name or a file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--tune", action="store_true", help="a grid of step sizes and frictions for SGHMC")
    parser.add_argument("--short", action="store_true", help="few steps, to see that it runs")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(torch.float64)
    if arguments.train:
        return train(arguments.train, arguments.rounds)
    steps, chains = (60, 8) if arguments.short else (arguments.steps, 50)
    grid = [(ε, α) for ε in (0.05, 0.1) for α in (0.025, 0.1)] if arguments.tune else []
    return compare(MetaSampler.load(arguments.sampler), arguments.seeds, steps, chains, grid)


if __name__ == "__main__":
    main()
