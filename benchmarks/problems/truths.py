"""Truths that take minutes: long runs of NumPyro's NUTS, kept in results/truths/.

    python -m benchmarks.problems.truths "network 270×3"

makes the run of a problem anew and prints its means; a table that needs one that is not there makes it first.
"""

import json
import sys
from pathlib import Path

from benchmarks.measure import Setting, measure_apart
from benchmarks.tables import show

FOLDER = Path("results") / "truths"
RUN = Setting("truth", "NumPyro", 4, 1500, 1500, {"chain_method": "sequential"})
WORST_RHAT = 1.02


def long_run(name, run=RUN, problems="benchmarks.problems.page:PROBLEMS"):
    """``{functional: (mean, standard error)}`` of a problem, from the file if it is of the same run."""
    path = FOLDER / f"{name}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["run"] == list(run):
            return {functional: tuple(figures) for functional, figures in kept["means"].items()}
    return made(name, run, problems)


def made(name, run=RUN, problems="benchmarks.problems.page:PROBLEMS"):
    """Make the run and keep what it says.

    Raises:
        RuntimeError: if the run failed, or its chains disagree: one may have stayed in a metastable state.
    """
    from benchmarks.estimates import summary

    values, figures = measure_apart(problems, name, run, threads=1, limit=3600)
    if values is None:
        raise RuntimeError(f"The long run for '{name}' failed: {figures['failed']}.")
    found = summary(values)
    if found["rhat"] > WORST_RHAT:
        raise RuntimeError(f"The chains of the long run for '{name}' disagree, R-hat {found['rhat']:.3f}: no truth.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = {"run": list(run), "rhat": found["rhat"], "seconds": figures["seconds"], "means": found["means"]}
    (FOLDER / f"{name}.json").write_text(json.dumps(kept, ensure_ascii=False, indent=1))
    return {functional: tuple(figures) for functional, figures in found["means"].items()}


def main(name):
    truths = made(name)
    show(("functional", "mean", "standard error"), ([f, f"{m:.4f}", f"{e:.4f}"] for f, (m, e) in truths.items()))


if __name__ == "__main__":
    main(*sys.argv[1:])
