"""Pyro's NUTS, and `OHMC` in its place: seconds of the processor for the same script.

    python -m benchmarks.speed.pyro_scripts --only schools
    python -m benchmarks.speed.pyro_scripts --results scripts.json

Each run is a process of its own on one core, in float64, with empty caches: as many chains, iterations of warm-up and
draws, with the defaults of each kernel, and all compilation in the clock. Effective sizes are the smallest of bulk and
tail, of all numbers and the log density.
"""

from benchmarks.estimates import effective_sizes, summary
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.published.peers import NAMES
from benchmarks.study import Study, option, spread, switch

MATRICES = ("exercises, rank 1", "Florentine marriages")
PROBLEMS = {name: name for name in NAMES if name not in MATRICES}
PEERS = {"Pyro": "Pyro NUTS", "here": "pyro_manifold"}
CHAINS = 4


def run(name, _, seed, arguments):
    """Figures of both packages, ``{"Pyro cpu_seconds": …, "here cpu_seconds": …}``."""
    figures = {}
    for title, peer in PEERS.items():
        compiled = {"jit_compile": True, "ignore_jit_warnings": True} if arguments.jit and title == "Pyro" else {}
        row = Setting("", peer, CHAINS, *arguments.sizes, {"seed": seed, **compiled})
        values, found = measure_apart("benchmarks.problems.published.peers:PROBLEMS", name, row, 1, arguments.limit)
        if values is None:
            return {"failed": f"{title}, {found['failed']}"}
        estimates = summary(values)
        least = min(estimates["ess_min"], *effective_sizes(values, "tail"))
        found = {"cpu_seconds": found["cpu_seconds"], "ess": least, "rhat": estimates["rhat"]}
        figures |= {f"{title} {figure}": value for figure, value in found.items()}
    return figures


def rate(figures, title):
    return figures[f"{title} ess"] / figures[f"{title} cpu_seconds"]


STUDY = Study(
    text=__doc__,
    heads=("model",),
    columns={
        "CPU s, Pyro": spread("Pyro cpu_seconds", ".1f"),
        "CPU s, here": spread("here cpu_seconds", ".1f"),
        "CPU s, Pyro / here": spread(lambda run: run["Pyro cpu_seconds"] / run["here cpu_seconds"], ".0f"),
        "ESS, Pyro": spread("Pyro ess", ".0f"),
        "ESS, here": spread("here ess", ".0f"),
        "R-hat, Pyro": spread("Pyro rhat", ".3f"),
        "R-hat, here": spread("here rhat", ".3f"),
        "ESS a CPU second, here / Pyro": spread(lambda run: rate(run, "here") / rate(run, "Pyro"), ".0f"),
    },
    problems=PROBLEMS,
    run=run,
    options={
        "sizes": option((500, 500), "warm-up and draws of each chain"),
        "jit": switch("compile the density in Pyro, by jit_compile=True"),
        "limit": option(1800, "seconds after which a run counts as failed"),
    },
)

main = STUDY.main

if __name__ == "__main__":
    main()
