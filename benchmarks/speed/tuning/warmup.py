"""Gradients of a run, by warm-up and draws.

    python -m benchmarks.speed.tuning.warmup --only "Langevin|noisy" --sizes 4 500 500
    python -m benchmarks.speed.tuning.warmup --one-mass          with one mass for each orthonormal matrix

A gradient is one of every chain. Effective sizes are of the worst and the median functional of a posterior, which
`benchmarks.speed.tuning.posteriors` names; for a thousand gradients those of the draws alone count.
"""

from benchmarks.speed.tuning.one_run import measured
from benchmarks.speed.tuning.posteriors import posteriors
from benchmarks.study import Study, option, switch


def run(posterior, _, seed, arguments):
    """Figures of `measured`, and those by draw and by gradient."""
    (chains, _, draws), options = arguments.sizes, {"column_masses": False} if arguments.one_mass else {}
    found = measured(posterior, *arguments.sizes, seed, **options)
    gradients = found["sampling"]
    return found | {
        "share": found["warmup"] / (found["warmup"] + gradients),
        "steps": gradients / draws,
        "worth": 1000 * found["ess_min"] / (gradients * chains),
    }


STUDY = Study(
    __doc__, ("posterior", "seed"), {
        "gradients of warm-up": ("warmup", ".0f"), "of sampling": ("sampling", ".0f"),
        "warm-up's share": ("share", ".2f"), "steps a draw": ("steps", ".1f"), "length": ("length", ".2f"),
        "ε": ("step_size", ".2g"), "R-hat": ("rhat", ".3f"), "ESS, worst": ("ess_min", ".0f"),
        "median": ("ess_median", ".0f"), "worst for 1,000 gradients": ("worth", ".1f"),
        "CPU seconds": ("cpu_seconds", ".1f"),
    },
    problems=lambda _: posteriors(), run=run, by_seed=True,
    options={"sizes": option((4, 500, 500), "chains, warm-up, draws"), "one_mass": switch("instead of one a column")},
)  # fmt: skip
main = STUDY.main


if __name__ == "__main__":
    main()
