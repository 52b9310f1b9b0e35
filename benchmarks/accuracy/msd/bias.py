"""The bias of MSD without the Metropolis decision, over step sizes.

    python -m benchmarks.accuracy.msd.bias
    python -m benchmarks.accuracy.msd.bias --picture docs/images/msd_bias.png

With the defaults of MSD (one step an iteration, persistence 0.95), on the models of
`benchmarks.accuracy.msd.agreement`, and for both targets on `problems.curved_regression`. Chains start at draws with
the moments of the truth, so what is left of the start is not taken for bias. Standard errors are from the spread of
chains, which are independent.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro
import torch

from benchmarks.pictures import pyplot
from benchmarks.problems.coefficient_moments import truth_of
from benchmarks.problems.coefficients import small_posteriors
from benchmarks.study import option, read
from benchmarks.tables import table
from problems import curved_regression
from pyro_manifold.infer import MSD
from pyro_manifold.infer.mcmc.riemannian import LagrangianSettings

STEP_SIZES = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
TARGETS = ("posterior", "jeffreys")
CURVED = "curved, q₁²"
WARMUP = 200


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float

    def __str__(self):
        return f"{self.value:.3f} ± {self.error:.3f}"


class Row(NamedTuple):
    """One step size: what is measured, by name, divergences, and the adjusted version's mean acceptance."""

    step_size: float
    estimates: dict[str, Estimate]
    divergences: int
    acceptance: float


class Size(NamedTuple):
    """Chains and draws of each; of the adjusted version, which only tells its acceptance, a tenth."""

    chains: int = 1024
    draws: int = 400


def estimate(values):
    """The mean of ``(chains, draws)`` by the means of chains."""
    means = np.asarray(values).mean(1)
    return Estimate(float(means.mean()), float(means.std(ddof=1) / len(means) ** 0.5))


def prepared(start, **options):
    """A run of an MSD kernel, whose step is traced once for all step sizes."""
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    return MSD(**options).prepare(*{len(value) for value in start.values()}, 0, start)


def follow(run, step_size, adjusted, warmup, draws):
    """Positions ``(chains, draws, dimension)`` after the warm-up, number of divergences, share of accepted ends."""
    state, (trajectory,) = run.state, run.transitions
    settings = LagrangianSettings(torch.full_like(state.energy, step_size), run.tuning.settings(1).num_steps, adjusted)
    positions, found = [], []
    for iteration in range(warmup + draws):
        state, statistics = trajectory(state, settings, run.random)
        if iteration >= warmup:
            positions.append(state.point.position)
            found.append(statistics)
    divergences = sum(int(statistics["diverging"].sum()) for statistics in found)
    acceptance = np.mean([float(statistics["accepted"].double().mean()) for statistics in found])
    return torch.stack(positions, 1).numpy(), divergences, acceptance


def rows_of(start_of, judge, step_sizes, size, compiled=True, **options):
    """A row for each step size; ``judge`` makes estimates of draws, ``start_of`` draws that many starts."""
    unadjusted = prepared(start_of(size.chains), jit_compile=compiled, **options)
    adjusted = prepared(start_of(max(size.chains // 10, 2)), metropolis=True, **options)
    rows = []
    for step_size in step_sizes:
        found, divergences, _ = follow(unadjusted, step_size, False, WARMUP, size.draws)
        _, _, acceptance = follow(adjusted, step_size, True, WARMUP // 10, max(size.draws // 10, 1))
        rows.append(Row(step_size, judge(found), divergences, acceptance))
    return rows


def rows_of_posterior(posterior, step_sizes, size, truth=None):
    """Biases of means in posterior standard deviations (the largest) and of variances, relative (their mean)."""
    truth = truth or truth_of(posterior)
    factor = np.linalg.cholesky(truth.covariance)

    def start_of(chains):
        normal = np.random.default_rng(1).standard_normal((chains, posterior.dimension))
        return {"w": torch.as_tensor(truth.mean + normal @ factor.T)}

    def judge(w):
        scaled = (w - truth.mean) / truth.deviation
        means = [estimate(scaled[..., i]) for i in range(posterior.dimension)]
        furthest = max(means, key=lambda mean: abs(mean.value))
        variance = estimate((scaled**2).mean(-1))
        # The truth has errors of its own; taken as common to all coordinates, which is the worst case.
        mean_error = np.max(truth.mean_error / truth.deviation)
        variance_error = np.max(truth.covariance_error.diagonal() / truth.deviation**2)
        return {
            "mean": Estimate(furthest.value, float(np.hypot(furthest.error, mean_error))),
            "variance": Estimate(variance.value - 1, float(np.hypot(variance.error, variance_error))),
        }

    return rows_of(start_of, judge, step_sizes, size, model=posterior.pyro_model)


def rows_of_curved_problem(target, step_sizes, size, compiled=True):
    """Second moment of q₁ and its relative bias, beside quadrature."""
    truth, _ = curved_regression.expectations(target)

    def start_of(chains):
        normal = np.random.default_rng(1).standard_normal((chains, 2))
        return {"q": torch.as_tensor(truth**0.5 * normal)}

    def judge(q):
        found = estimate(q[..., 0] ** 2)
        return {"q₁²": found, "variance": Estimate(found.value / truth - 1, found.error / truth)}

    functions = {
        "potential_fn": lambda sites: curved_regression.energy(sites["q"]),
        "metric": lambda sites: curved_regression.embedding(sites["q"]),
    }
    return rows_of(start_of, judge, step_sizes, size, compiled, target=target, **functions)


def table_of(rows):
    columns = ["ε", *rows[0].estimates, "divergences", "adjusted accepts"]
    return table(
        columns, [[row.step_size, *row.estimates.values(), row.divergences, f"{row.acceptance:.2f}"] for row in rows]
    )


def picture(found, path):
    """Biases of variances against ε, on logarithmic axes, beside the slope of ε²."""
    plt = pyplot()

    fig, axes = plt.subplots(figsize=(6.5, 4.2))
    markers = zip(found.items(), "os^Dv", ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00"), strict=True)
    for (name, rows), marker, colour in markers:
        sizes = np.array([row.step_size for row in rows])
        biases = np.array([abs(row.estimates["variance"].value) for row in rows])
        errors = np.array([row.estimates["variance"].error for row in rows])
        clear = biases > 2 * errors
        # Bars that reach down to zero have no place on a logarithmic axis: one standard error up, where it is clear.
        axes.errorbar(sizes[clear], biases[clear], errors[clear], fmt=marker + "-", color=colour, capsize=2, label=name)
        axes.plot(sizes[~clear], 2 * errors[~clear], marker, color=colour, mfc="none")
    line = np.array([0.05, 0.5])
    axes.plot(line, line**2, "k--", lw=1, label="slope of ε²")
    axes.set(xscale="log", yscale="log", xlabel="step size ε", ylabel="relative bias of variances")
    axes.set_xticks(STEP_SIZES, [f"{size:g}" for size in STEP_SIZES])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("open: no bias seen, two standard errors shown", fontsize=9)
    fig.tight_layout()
    fig.savefig(path, dpi=110)
    plt.close(fig)


def main(argv=None):
    size = option(tuple(Size()), "chains and draws of each")
    arguments = read(__doc__, argv, size=size, step_sizes=list(STEP_SIZES), picture=option(type=Path))
    size, step_sizes, found = Size(*arguments.size), arguments.step_sizes, {}
    for posterior in small_posteriors():
        found[posterior.name] = rows_of_posterior(posterior, step_sizes, size)
        print(f"\n### {posterior.name}\n\n{table_of(found[posterior.name])}", flush=True)
    for target in TARGETS:
        name = f'{CURVED}, target="{target}"'
        found[name] = rows_of_curved_problem(target, step_sizes, size)
        truth = curved_regression.expectations(target)[0]
        print(f"\n### {name}: {truth:.3f} by quadrature\n\n{table_of(found[name])}", flush=True)
    if arguments.picture:
        picture(found, arguments.picture)


if __name__ == "__main__":
    main()
