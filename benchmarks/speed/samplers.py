"""Every peer on every problem, one process after the other, in tables that compare like with like.

python -m benchmarks.speed.samplers                    all problems
python -m benchmarks.speed.samplers --only Langevin    problems whose name contains this
"""

from __future__ import annotations

import argparse

from benchmarks.estimates import ratios, summary, worst_deviation
from benchmarks.measure import measure_apart
from benchmarks.problems.network import MISSING
from benchmarks.problems.page import PROBLEMS
from benchmarks.speed.plan import NOTES, OURS, SIZES, groups
from benchmarks.tables import table

PREFACE = """\
Rows of one table have the same problem, number of chains, warm-up and draws, and each is a process of its own on
one core, in float64. Ratios are to the best of the other packages in the same table, never across tables. Chains
that a package cannot vectorise run one after the other.

Seconds begin when everything is imported and the processor is found, and end with the draws. Caches on disk are
empty, as on a machine that has run nothing before. "Compiling" is the part of them that goes into building, tracing
and compiling the model: `kernel.prepare` and native code of this package, what JAX reports of its traces and
compilations, nutpie's `compile_pymc_model`, Pyro's `kernel.setup`; Mici compiles nothing. ESS/s is effective draws by
seconds, and "once compiled" by seconds without compiling. CPU seconds are of all threads, and of compilers that were
started.

The smallest or median effective size and the largest R-hat are over the functionals of a problem. "Worst z" is the
largest distance of a functional's mean from the truth, in standard errors of both: exact draws for the mixtures of
the OHMC paper, importance sampling for that of entries, Gibbs sampling over columns for Langevin distributions, a
long run of NumPyro for the network (`python -m benchmarks.problems.truths`). NumPyro and nutpie count gradients of
draws; warm-up is taken to need as many.

NumPyro samples the polar factor in closed form for two columns, and Q of Z = QR by Cholesky's factor for more, each
the fastest of several (see below); nutpie and Pyro sample the polar factor. Mici has densities and gradients in
NumPy.
"""
STATISTICS = {"ess_min": "min ESS", "ess_median": "median ESS"}


def columns(statistic):
    rate = f"{STATISTICS[statistic]}/s"
    return (
        "peer", "seconds", "compiling", "CPU seconds", "min ESS", "median ESS", rate, "ratio", f"{rate}, once compiled",
        "ratio", "R-hat", "worst z", "gradients", "MB",
    )  # fmt: skip


def row(problem_name, setting, threads, limit):
    """Figures of one peer on one problem; ``failed`` says why there are none."""
    values, figures = measure_apart("benchmarks.problems.page:PROBLEMS", problem_name, setting, threads, limit)
    known = {"peer": setting.name}
    return known | figures if values is None else known | figures | summary(values)


def table_of(rows, truths, statistic="ess_min"):
    """Rows of one group, with ratios of rates to the best of the other packages among them."""

    def rate(row):
        return row[statistic] / row["seconds"]

    def compiled_rate(row):
        return row[statistic] / (row["seconds"] - row["compiling"])

    shares = zip(*(ratios(rows, each, OURS) for each in (rate, compiled_rate)), strict=True)
    lines = []
    for figures, (ratio, compiled_ratio) in zip(rows, shares, strict=True):
        if "failed" in figures:
            lines.append([figures["peer"], figures["failed"]])
            continue
        rates = [f"{rate(figures):.1f}", f"{ratio:.2f}", f"{compiled_rate(figures):.1f}", f"{compiled_ratio:.2f}"]
        lines.append([*costs(figures), *rates, *quality(figures, truths)])
    return table(columns(statistic), lines)


def costs(row):
    clocks = (f"{row[key]:.1f}" for key in ("seconds", "compiling", "cpu_seconds"))
    return [row["peer"], *clocks, *(f"{row[key]:.0f}" for key in STATISTICS)]


def quality(row, truths):
    deviation = worst_deviation(row["means"], truths)
    return [f"{row['rhat']:.3f}", f"{deviation:.1f}", f"{row['gradients']:.3g}", f"{row['memory_mb']:.0f}"]


def sections(name, arguments):
    """The tables of one problem, as they come."""
    chosen = {arguments.sizes[0]: tuple(arguments.sizes[1:])} if arguments.sizes else None
    yield f"\n### {name}\n"
    if name not in PROBLEMS:
        yield f"{MISSING}.\n"
        return
    if name in NOTES:
        yield f"{NOTES[name]}\n"
    try:
        truths = PROBLEMS[name].truths()
    except RuntimeError as error:  # tables of seconds and sizes stand without
        truths = {}
        yield f"{error} So there is no worst z.\n"
    for group in groups(name, chosen):
        settings = [setting for setting in group.settings if arguments.peers in setting.name]
        rows = [row(name, setting, arguments.threads, arguments.limit) for setting in settings]
        yield f"**{group.title}**\n\n{table_of(rows, truths, group.statistic)}\n"
        if group.absent:
            yield "Not here: " + "; ".join(f"{peer}, {why}" for peer, why in group.absent.items()) + ".\n"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of problems")
    parser.add_argument("--peers", default="", help="part of the names of peers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=1800, help="seconds after which a peer counts as failed")
    parser.add_argument("--sizes", type=int, nargs=3, help="chains, warm-up and draws of all, in place of each's own")
    arguments = parser.parse_args(argv)
    print(f"## Samplers\n\n{PREFACE}", flush=True)
    for name in SIZES:
        if any(part in name for part in arguments.only):
            for text in sections(name, arguments):
                print(text, flush=True)


if __name__ == "__main__":
    main()
