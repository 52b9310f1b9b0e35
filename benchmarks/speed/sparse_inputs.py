"""BoTorch's Gaussian process of sparse inputs in this package, NumPyro and Pyro: effective draws a second.

    python -m benchmarks.speed.sparse_inputs
    python -m benchmarks.speed.sparse_inputs --only Branin --seeds 0 1 2 --results sparse.json

Each run is a process of its own on one core, in float64, with empty caches; the clock has compilation in it. BoTorch
samples one chain by NUTS with a dense mass matrix and trees of at most 2⁶ steps: by Pyro until its release 0.17, since
then by NumPyro. These rows have its settings; NumPyro has others as well, and its best counts. Effective sizes are the
smallest bulk size of the mean and of the logarithms of all other numbers, of all chains.
"""

import math

from benchmarks.estimates import summary
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.sparse_inputs import PROBLEMS
from benchmarks.study import Study, largest, named, option, spread

BOTORCH = {"max_tree_depth": 6}
METHODS = {
    "OHMC, four chains": ("pyro_manifold", 4, {}),
    "OHMC, one chain": ("pyro_manifold", 1, {}),
    "NumPyro, four chains, vectorised": ("NumPyro", 4, {}),
    "NumPyro, four chains, sequential": ("NumPyro", 4, {"chain_method": "sequential"}),
    "NumPyro, four chains, sequential, dense": ("NumPyro", 4, {"chain_method": "sequential", "dense_mass": True}),
    "NumPyro, one chain as in BoTorch": ("NumPyro", 1, {"dense_mass": True, **BOTORCH}),
    "Pyro, one chain as in BoTorch": ("Pyro NUTS", 1, {"full_mass": True, **BOTORCH}),
}


def methods(arguments, problem):
    return named(METHODS, arguments.samplers)


def run(problem, method, seed, arguments):
    peer, chains, options = method
    row = Setting("", peer, chains, *arguments.sizes, {**options, "seed": seed})
    problems = "benchmarks.problems.sparse_inputs:PROBLEMS"
    values, figures = measure_apart(problems, problem.name, row, 1, arguments.limit)
    if values is None:
        return figures
    found = summary(values)
    return figures | {"ess": found["ess_min"], "rhat": found["rhat"]}


STUDY = Study(
    text=__doc__,
    heads=("function", "sampler"),
    columns={
        "ESS": spread("ess", ".0f"),
        "R-hat": lambda runs: "–" if math.isnan(runs[0]["rhat"]) else largest("rhat", ".3f")(runs),  # of one chain
        "s": ("seconds", ".1f"),
        "CPU s": ("cpu_seconds", ".1f"),
        "compiling": ("compiling", ".1f"),
        "ESS/s": spread(lambda run: run["ess"] / run["seconds"], ".1f"),
    },
    problems=PROBLEMS,
    methods=methods,
    run=run,
    seeds=(0, 1, 2),
    options={
        "sizes": option((500, 1000), "warm-up and draws"),
        "samplers": option("", "parts of their names, with | between them"),
        "limit": option(3600, "seconds of a run"),
    },
)

main = STUDY.main

if __name__ == "__main__":
    main()
