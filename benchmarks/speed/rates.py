"""Effective draws a second beside NumPyro and nutpie, chains like against like: whole runs, and long ones.

    python -m benchmarks.speed.rates --only "paper, V(3,2)"
    python -m benchmarks.speed.rates --chains 64 --seeds 0 1 2
    python -m benchmarks.speed.rates --only Langevin --chains 4 --runs long

Each run is a process of its own on one core, in float64, with empty caches. Rows of one table have the same problem,
chains, warm-up and draws. nutpie has rows where PyTensor has the expansion of the matrix, which it has for two columns.
"""

import math
from typing import NamedTuple

import numpy as np

from benchmarks.estimates import summary, worst_deviation
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems import page
from benchmarks.speed import larger
from benchmarks.study import option, read
from benchmarks.tables import show

OURS = "pyro_manifold OHMC"
NUMPYRO, IN_TURN, NUMPYRO_HMC = "NumPyro NUTS, vectorised", "NumPyro NUTS, sequential", "NumPyro HMC, vectorised"
NUTPIE = "nutpie"
CONFIGURATIONS = {
    OURS: ("pyro_manifold", {}), NUMPYRO: ("NumPyro", {}), IN_TURN: ("NumPyro", {"chain_method": "sequential"}),
    NUMPYRO_HMC: ("NumPyro", {"algorithm": "HMC"}), NUTPIE: ("nutpie", {}),
}  # fmt: skip
MIXTURES = ("mixture of the OHMC paper, V(2,2)", "mixture of the OHMC paper, V(3,2)")
SMALL = (*MIXTURES, "Langevin V(10,3)", "Langevin V(50,5)")
LARGER = (larger.MATRICES, larger.COMPONENTS)
# Where two columns of the unconstrained matrix become dependent the polar factor is singular, and trajectories that
# pass there need tiny steps: with trees of 2¹⁰ steps, which never turn back, NUTS has a twentieth of the ESS a second.
DEPTH = 6
# Warm-up and draws of each chain, by the number of chains.
SIZES = {4: {"whole": (500, 500), "long": (500, 10_000)}, 64: {"whole": (300, 500)}}
SIZES_OF_LARGER = {4: {"whole": (1000, 1000)}}
LIMIT = 300  # seconds of a run
COLUMNS = (
    "sampler", "min ESS", "seconds", "compiling", "CPU seconds", "ESS/s", "ratio", "ESS/s, once compiled", "ratio",
    "R-hat", "worst z",
)  # fmt: skip


class Figures(NamedTuple):
    """One run: smallest effective size, seconds with and without compiling, and how good the draws are."""

    size: float
    seconds: float
    compiling: float
    cpu_seconds: float
    rhat: float
    deviation: float

    @property
    def rate(self):
        return self.size / self.seconds

    @property
    def compiled_rate(self):
        return self.size / (self.seconds - self.compiling)


def peers(name, chains):
    """The samplers of a table, ours first."""
    yield from (OURS, NUMPYRO)
    if chains <= 4:  # the sequential ones have the rate of 4 chains with any number
        yield IN_TURN
        if name in SMALL and name != SMALL[-1]:
            yield NUMPYRO_HMC
    if name in MIXTURES:
        yield NUTPIE


def setting(peer, name, chains, sizes, seed):
    module, options = CONFIGURATIONS[peer]
    limited = peer in (NUMPYRO, IN_TURN, NUTPIE) and name in MIXTURES
    depth = {"max_tree_depth": DEPTH} if limited else {}
    return Setting(peer, module, chains, *sizes, options | depth | {"seed": seed})


def measured(name, setting, truths, threads):
    """`Figures` of a run, or why there are none."""
    problems = f"benchmarks.{'speed.larger' if name in LARGER else 'problems.page'}:PROBLEMS"
    values, figures = measure_apart(problems, name, setting, threads, LIMIT)
    if values is None:
        return figures["failed"]
    found = summary(values)
    times = (figures[key] for key in ("seconds", "compiling", "cpu_seconds"))
    return Figures(found["ess_min"], *times, found["rhat"], worst_deviation(found["means"], truths))


def truths_of(problem):
    """Means that are known without sampling here; of the larger problems none."""
    return problem.truths() if hasattr(problem, "truths") else {}


def middle(values):
    """The median, and the range in brackets."""
    ordered = [np.median(values), min(values), max(values)]
    median, least, largest = (f"{value:.3g}" if value < 1000 else f"{value:.0f}" for value in ordered)
    return f"{median} [{least}, {largest}]"


def cells(peer, runs, ours):
    """A row: raw figures in the order of seeds, then median and range of rates and of ratios, ours by theirs."""
    failed = next((run for run in runs if isinstance(run, str)), None)
    if failed is not None:
        return [peer, failed]
    raw = [[f"{run.size:.0f}" for run in runs]]
    raw += [[f"{getattr(run, key):.1f}" for run in runs] for key in ("seconds", "compiling", "cpu_seconds")]
    deviation = max(run.deviation for run in runs)  # nan without a truth
    quality = f"{max(run.rhat for run in runs):.3f}", "–" if math.isnan(deviation) else f"{deviation:.1f}"
    compared = [cell for key in ("rate", "compiled_rate") for cell in comparison(runs, ours, key)]
    return [peer, *(", ".join(figures) for figures in raw), *compared, *quality]


def comparison(runs, ours, key):
    """Rates of a row, and the ratios of ours to them, seed by seed."""
    theirs = [getattr(run, key) for run in runs]
    if runs is ours:
        return middle(theirs), ""
    if any(isinstance(run, str) for run in ours):
        return middle(theirs), "–"
    return middle(theirs), middle(np.divide([getattr(run, key) for run in ours], theirs))


def rows(name, chains, sizes, seeds, threads, ended):
    """Rows of a table; `ended` has the reasons of peers without figures, which are not run again with more draws."""
    problem = (larger if name in LARGER else page).PROBLEMS[name]
    truths, ours = truths_of(problem), None
    for peer in peers(name, chains):
        runs = [ended[peer]] if peer in ended else []
        for seed in seeds if not runs else ():
            runs.append(measured(name, setting(peer, name, chains, sizes, seed), truths, threads))
            if isinstance(runs[-1], str):
                ended[peer] = runs[-1]
                break
        ours = runs if ours is None else ours
        yield cells(peer, runs, ours)


def main(argv=None):
    arguments = read(
        __doc__, argv, only=option("", "part of the names of problems"), threads=1,
        chains=option(list(SIZES), choices=list(SIZES)), runs=option(["whole", "long"], choices=["whole", "long"]),
        seeds=option([0, 1, 2], "of each sampler"),
    )  # fmt: skip
    for name in (name for name in (*SMALL, *LARGER) if arguments.only in name):
        for chains, lengths in (SIZES_OF_LARGER if name in LARGER else SIZES).items():
            ended = {}
            for run, sizes in lengths.items():
                if chains in arguments.chains and run in arguments.runs:
                    print(f"### {name}: {chains} chains, {sizes[0]:,} + {sizes[1]:,} iterations\n", flush=True)
                    show(COLUMNS, rows(name, chains, sizes, arguments.seeds, arguments.threads, ended))
                    print(flush=True)


if __name__ == "__main__":
    main()
