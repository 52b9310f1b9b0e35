"""A sampler trained on ten independent Gaussian coordinates, on twenty correlated ones, beside SGHMC.

    python -m benchmarks.papers.nnsghmc.gaussian --train FILE [--rounds 64]
    python -m benchmarks.papers.nnsghmc.gaussian [--sampler gaussian] [--seeds 5] [--covariances FOLDER] [--tune]
        [--figure PICTURE]

The experiment of section 5.1 of Gong, Li & Hernández-Lobato (ICLR 2019, arXiv 1806.04522), as their code has it
(github.com/WenboGong/MetaSGMCMC, "Toy Example"). Theirs, and here: 20 correlated coordinates with the covariance s² L
Lᵀ, L standard normal, s = 0.6 or 0.5; 50 chains, each coordinate begun uniformly within 3 of its mean; 12,000 steps
of size 0.025 for both samplers, none left out, none thinned; gradient noise of variance 1 and no estimate of it;
SGHMC by Euler's scheme with the friction 1, of which a step loses 0.025. ESS is of one chain, by the formula of BEAST
that the paper names: autocovariances of all coordinates together up to the lag 1000, the mean over chains. The ESS of
ArviZ (bulk, of all chains together, by the number of chains) is printed too, least and median over coordinates. KL is
that of a Gaussian with mean and covariance of all draws of all chains, from the target. The paper has the ESS 59 for
its learned sampler and 22 for SGHMC. ``--covariances`` takes the folder of the four covariances that they drew
(TestResult); else each seed has its own.

Other than theirs: momenta begin as draws of their distribution here, and at 0 there. The covariances of seeds have s
= 0.6 and 0.02 I added, so that no direction is narrower than in training (the least eigenvalues of theirs are 0.014
to 0.07). They train on one set of ten variances, uniform in [0, 1], with steps of 0.01; here ``--train`` takes eight
sets, the eigenvalues of 10-dimensional covariances of the test's kind, with the steps of the test. Ten variances
below 1 teach a friction that is too much for the test's wide directions, of variances up to 25. Their training has 100
rounds, 50 chains, networks of 40 units, back-propagation over 20 steps and Adam with 5e-4; here it has 64 rounds, 30
chains, networks of 10 units, 50 steps and 5e-3.

``--figure`` draws Figure 1 and prints its left panel: KL of the draws up to each step, mean over covariances. The other
panels are paths of one chain of each sampler on a Gaussian of two coordinates, with the same step size, friction and
gradient noise. Neither the paper nor its code states this Gaussian; the contours of the authors' picture
(TestResult/Group_trajectory.pdf) are those of variances 1 and correlation 0.8. Paths begin 2.5 below the mean in each
coordinate, as theirs do, and have 400 steps, a time of 10; theirs is not stated.

``--tune`` has both with other step sizes, and SGHMC with other frictions, for a sampler that has learned to move faster
can only be told from one with longer steps by these; ``--validate`` takes covariances of other seeds, to choose on.
"""

import math
import warnings
from pathlib import Path
from typing import NamedTuple

import arviz
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_uniform

from benchmarks.arguments import count, new_file, without_effect
from benchmarks.papers.nnsghmc import gaussian_figure
from benchmarks.papers.nnsghmc.digits import sampler_of
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show
from problems.noisy_gradients import gradient_noise
from pyro_manifold.infer import MCMC, NNSGHMC, SGHMC, MetaTask, train_meta_sampler

STEP_SIZE, FRICTION, LEAST_VARIANCE = 0.025, 0.025, 0.02
LEARNED_STEPS = (0.035, 0.05)
OTHER_STEPS = ((0.025, 0.5), (0.035, 0.7), (0.05, 0.7), (0.05, 1.0), (0.07, 0.7), (0.07, 1.0))  # and frictions by time
OPTIONS = {"init_strategy": init_to_uniform(radius=3.0), "minibatches": "independent", "per_chain_minibatches": True}


def gaussian(covariance):
    target = dist.MultivariateNormal(torch.zeros(len(covariance)), covariance)

    def model():
        gradient_noise("x", pyro.sample("x", target), 1.0)

    return model


def covariance(size, seed):
    factor = 0.6 * torch.randn(size, size, generator=torch.Generator().manual_seed(seed))
    return factor @ factor.T + LEAST_VARIANCE * torch.eye(size)


def training_task(seed):
    variances = torch.linalg.eigvalsh(covariance(10, seed))
    return MetaTask(gaussian(variances.diag()), init_strategy=OPTIONS["init_strategy"], data_size=1)


def test_covariances(seeds, folder, validate):
    """``[(seed, covariance)]``, of seeds or of the files of a folder."""
    if folder is None:
        return [(seed, covariance(20, (5000 if validate else 1000) + seed)) for seed in range(seeds)]
    files = sorted(Path(folder).glob("Cov_rand_*"))
    if not files:
        raise SystemExit(f"--covariances {folder}: expected a folder with files Cov_rand_*, as in the authors' code.")
    return [
        (seed, torch.tensor([list(map(float, row.split())) for row in file.open()])) for seed, file in enumerate(files)
    ]


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


def effective_sizes_by_arviz(draws):
    """``(least, median)`` over coordinates of ArviZ's bulk ESS of all chains ``(chains, draws, d)``, for a chain."""
    found = torch.tensor([float(arviz.ess(x.numpy())) for x in draws.unbind(2)])
    return float(found.min()) / len(draws), float(found.median()) / len(draws)


def divergence(draws, covariance):
    """KL of the Gaussian with the mean and covariance of all draws from the target."""
    flat = draws.flatten(0, 1)
    found = dist.MultivariateNormal(flat.mean(0), torch.cov(flat.T))
    return float(
        torch.distributions.kl_divergence(found, dist.MultivariateNormal(torch.zeros(len(covariance)), covariance))
    )


class Measured(NamedTuple):
    """Figures of a run: ``curve`` has KL of the draws up to each of `gaussian_figure.times`."""

    size: float = math.nan
    divergence: float = math.nan
    least_by_arviz: float = math.nan
    median_by_arviz: float = math.nan
    curve: tuple[float, ...] = ()


def draws_of(kernel, covariance, seed, steps, **options):
    """Draws ``(chains, steps, d)`` from the Gaussian of a covariance."""
    pyro.set_rng_seed(seed)
    mcmc = MCMC(kernel(gaussian(covariance)), steps, 0, disable_progbar=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of hot momenta: KL says what they do
        mcmc.run()
    return mcmc.get_samples(group_by_chain=True)["x"]


def measured(kernel, covariance, seed, steps, chains):
    """Return figures of a run, NaN for chains that left the finite numbers."""
    times = gaussian_figure.times(steps)
    infinite = Measured(curve=(math.nan,) * len(times))
    try:
        draws = draws_of(kernel, covariance, seed, steps, num_chains=chains)
    except ArithmeticError:
        return infinite
    if draws.shape[1] < steps or float(draws.abs().max()) > 1e6:
        return infinite
    size, by_arviz = float(effective_sizes(draws).mean()), effective_sizes_by_arviz(draws)
    curve = tuple(divergence(draws[:, :n], covariance) for n in times)
    return Measured(size, divergence(draws, covariance), *by_arviz, curve)


def sghmc(step_size, friction):
    return lambda model: SGHMC(model, step_size=step_size, friction=friction, integrator="euler", **OPTIONS)


def learned(sampler, step_size):
    return lambda model: NNSGHMC(model, sampler=sampler, step_size=step_size, data_size=1, **OPTIONS)


def train(path, rounds):
    command = f"python -m benchmarks.papers.nnsghmc.gaussian --train FILE --rounds {rounds}"
    tasks = [training_task(seed) for seed in range(8)]
    training_settings = {"chains": 30, "truncation": 50, "thinning": 5, "learning_rate": 0.005}
    sampler = train_meta_sampler(tasks, step_size=STEP_SIZE, rounds=rounds, command=command, **training_settings)
    sampler.save(path)


def path_of(kernel, steps):
    """Initial values and draws of one chain on two correlated coordinates, ``(1 + steps, 2)``."""
    initial = gaussian_figure.INITIAL
    options = {"num_chains": 1, "initial_params": {"x": initial}}
    return torch.cat([initial.unsqueeze(0), draws_of(kernel, gaussian_figure.COVARIANCE, 0, steps, **options)[0]])


def kernels_of(sampler, tuned):
    """``{name: function from a model to a kernel}``, the two of the paper first."""
    kernels = {"NNSGHMC": learned(sampler, STEP_SIZE), "SGHMC, the same ε": sghmc(STEP_SIZE, FRICTION)}
    if tuned:
        kernels |= {f"NNSGHMC, ε={ε:g}": learned(sampler, ε) for ε in LEARNED_STEPS}
        kernels |= {f"SGHMC, ε={ε:g}, γ={γ:g}": sghmc(ε, γ * ε) for ε, γ in OTHER_STEPS}
    return kernels


def compare(kernels, covariances, steps, chains):
    """Print figures of all kernels; return KL by step of each, ``{name: (covariances, times)}``."""
    rows, curves = [], {}
    for name, kernel in kernels.items():
        found = [measured(kernel, covariance, seed, steps, chains) for seed, covariance in covariances]
        sizes, divergences, least, median = torch.tensor([each[:4] for each in found], dtype=torch.double).T
        each = ", ".join(f"{size:.0f} ({kl:.3g})" for size, kl, *_ in found)
        curves[name] = torch.tensor([run.curve for run in found], dtype=torch.double)
        by_arviz = f"{least.mean():.1f}", f"{median.mean():.1f}"
        rows.append([name, f"{sizes.mean():.1f}", f"{divergences.mean():.3g}", *by_arviz, each])
        print(rows[-1], flush=True)
    show(["sampler", "ESS", "KL", "ArviZ's, least", "median", "ESS (KL) of each seed"], rows)
    return curves


def draw(picture, kernels, curves, steps, folder):
    """Print and draw Figure 1, of the two kernels of the paper."""
    compared = dict(zip(("NNSGHMC", "SGHMC"), kernels, strict=False))
    ours = {name: curves[kernel] for name, kernel in compared.items()}
    paths = {name: path_of(kernels[kernel], min(steps, gaussian_figure.PATH)) for name, kernel in compared.items()}
    theirs = gaussian_figure.curves_of_the_authors(folder) if folder else {}
    gaussian_figure.print_curves(steps, ours, theirs)
    gaussian_figure.print_lengths(paths)
    gaussian_figure.draw(picture, steps, ours, theirs, paths)


def main(argv=None):
    parser = parser_of(
        __doc__, train=option(None, "train a sampler and write it here", type=new_file), rounds=option(64, type=count),
        sampler=option("gaussian", "a name or a file"), seeds=option(5, type=count), steps=option(12_000, type=count),
        tune=switch("other step sizes and frictions too"),
        covariances=option(None, "folder of the paper's four, in place of seeds"),
        validate=switch("covariances of other seeds"),
        figure=option(None, "draw KL by step, and paths on two coordinates", type=new_file),
        short=switch("few steps, to see that it runs"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up()
    if arguments.covariances:
        without_effect(parser, arguments, ("seeds", "validate"), "with --covariances")
    if arguments.train:
        others = ("sampler", "seeds", "steps", "tune", "covariances", "validate", "figure", "short")
        without_effect(parser, arguments, others, "with --train")
        train(arguments.train, arguments.rounds)
        return
    without_effect(parser, arguments, ("rounds",), "without --train")
    if arguments.short:
        without_effect(parser, arguments, ("steps",), "with --short")
    steps, chains = (60, 8) if arguments.short else (arguments.steps, 50)
    covariances = test_covariances(arguments.seeds, arguments.covariances, arguments.validate)
    kernels = kernels_of(sampler_of(arguments.sampler), arguments.tune)
    curves = compare(kernels, covariances, steps, chains)
    if arguments.figure:
        draw(arguments.figure, kernels, curves, steps, arguments.covariances)


if __name__ == "__main__":
    main()
