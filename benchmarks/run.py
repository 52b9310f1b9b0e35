"""Every peer on every problem, one process after the other, and a table with ratios: `make bench`.

python -m benchmarks.run                         all problems, table to standard output
python -m benchmarks.run --write docs/benchmarks add a dated page
python -m benchmarks.run --only mixture          problems whose name contains this
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from benchmarks.estimates import ratios, summary, worst_deviation
from benchmarks.machine import machine
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems import PROBLEMS
from benchmarks.tables import table

OURS = "pyro_manifold OHMC"
COMPILED = f"{OURS}, compiled"
CONFIGURATIONS = {
    OURS: ("pyro_manifold", {}),
    COMPILED: ("pyro_manifold", {"jit_compile": True}),
    "NumPyro NUTS, vectorised": ("NumPyro", {}),
    "NumPyro NUTS, sequential": ("NumPyro", {"chain_method": "sequential"}),
    "NumPyro HMC, vectorised": ("NumPyro", {"algorithm": "HMC"}),
    "Pyro NUTS": ("Pyro NUTS", {}),
    "Mici constrained NUTS": ("Mici", {}),
}
# (name, chains, warm-up, draws). Both packages get few and many chains: which is better depends on the package.
SMALL = [
    (OURS, 4, 500, 1000),
    (OURS, 64, 300, 500),
    (OURS, 512, 200, 200),
    (COMPILED, 512, 200, 200),
    ("NumPyro NUTS, vectorised", 64, 300, 500),
    ("NumPyro NUTS, vectorised", 512, 200, 200),
    ("NumPyro NUTS, sequential", 4, 500, 2000),
    ("NumPyro HMC, vectorised", 64, 300, 500),
    ("Pyro NUTS", 1, 300, 500),
]
MICI = ("Mici constrained NUTS", 4, 300, 1000)  # its chains are a Python loop: small problems only
NETWORK = [
    (COMPILED, 8, 350, 400),
    (COMPILED, 8, 600, 600),
    ("NumPyro NUTS, sequential", 4, 400, 400),
]


def plan(problem_name):
    """The rows of a problem's table."""
    rows = NETWORK if problem_name.startswith("network") else SMALL
    if problem_name == "mixture V(3,2)":
        rows = [*rows, MICI]
    settings = []
    for name, *sizes in rows:
        peer, options = CONFIGURATIONS[name]
        settings.append(Setting(name, peer, *sizes, options))
    return settings


def row(problem_name, setting, threads, limit):
    """Figures of one peer on one problem; ``failed`` says why there are none."""
    values, figures = measure_apart("benchmarks.problems:PROBLEMS", problem_name, setting, threads, limit)
    known = {"peer": setting.name, "sizes": setting.sizes}
    return known | figures if values is None else known | figures | summary(values)


COLUMNS = (
    "peer", "chains × (warm-up + draws)", "seconds", "min ESS/s", "median ESS/s", "ratio", "R-hat", "worst z",
    "gradients", "µs/gradient", "MB",
)  # fmt: skip


def table_of(rows, truths):
    """Rows of one problem; the ratio is of smallest ESS per second, to the best of the other packages."""
    shares = ratios(rows, lambda row: row["ess_min"] / row["seconds"], OURS)
    return table(COLUMNS, [cells(row, share, truths) for row, share in zip(rows, shares, strict=True)])


def cells(row, ratio, truths):
    if "failed" in row:
        return [row["peer"], row["sizes"], row["failed"]]
    seconds = row["seconds"]
    return [
        row["peer"],
        row["sizes"],
        f"{seconds:.1f}",
        f"{row['ess_min'] / seconds:.1f}",
        f"{row['ess_median'] / seconds:.1f}",
        f"{ratio:.2f}",
        f"{row['rhat']:.3f}",
        f"{worst_deviation(row['means'], truths):.1f}",
        f"{row['gradients']:.3g}",
        f"{1e6 * seconds / row['gradients']:.1f}",
        f"{row['memory_mb']:.0f}",
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of problems")
    parser.add_argument("--peers", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=900, help="seconds for each peer on each problem")
    parser.add_argument("--sizes", type=int, nargs=3, help="chains, warm-up and draws of all, in place of each's own")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args(argv)
    page = [f"# Benchmarks of {datetime.date.today()}\n", machine(arguments.threads), "\n`make bench`\n"]
    print("\n".join(page), flush=True)
    for name, problem in PROBLEMS.items():
        if not any(part in name for part in arguments.only):
            continue
        settings = [setting for setting in plan(name) if arguments.peers in setting.name]
        if arguments.sizes:
            settings = [Setting(each.name, each.peer, *arguments.sizes, each.options) for each in settings]
        rows = [row(name, setting, arguments.threads, arguments.limit) for setting in settings]
        page.append(f"\n## {name}\n\n{table_of(rows, problem.truths())}\n")
        print(page[-1], flush=True)
    if arguments.write:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / f"{datetime.date.today()}.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
