"""Every peer on every problem, one process after the other, and a table with ratios: `make bench`.

python -m benchmarks.run                         all problems, table to standard output
python -m benchmarks.run --write docs/benchmarks add a dated page
python -m benchmarks.run --only mixture          problems whose name contains this
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks.problems import PROBLEMS

OURS = "pyro_manifold OHMC"
COMPILED = f"{OURS}, compiled"
# (peer, chains, warm-up, draws). Both packages get few and many chains: which is better depends on the package.
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
    if problem_name.startswith("network"):
        return NETWORK
    return [*SMALL, MICI] if problem_name == "mixture V(3,2)" else SMALL


def run_one(problem, peer, chains, warmup, draws, threads, limit):
    found = run_apart("benchmarks.measure", problem, peer, chains, warmup, draws, threads=threads, limit=limit)
    return {"problem": problem, "peer": peer, **found}


def run_apart(module, *arguments, threads, limit):
    """The JSON that a module prints last when it runs in a process of its own; ``{"failed": why}`` if it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    command = [sys.executable, "-m", module, *map(str, arguments)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"over {limit} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


HEADER = (
    "| peer | chains × (warm-up + draws) | seconds | min ESS/s | median ESS/s | ratio | R-hat | worst z | gradients "
    "| µs/gradient | MB |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def worst_deviation(means, truths):
    """Largest distance of an estimate from the truth, in standard errors of both."""
    distances = [
        abs(means[name][0] - truth) / math.hypot(means[name][1], error) for name, (truth, error) in truths.items()
    ]
    return max(distances, default=float("nan"))


def table(rows, truths):
    """Rows of one problem; the ratio is of smallest ESS per second, to the best of the other packages."""
    done = [row for row in rows if "failed" not in row]
    others = [row["ess_min"] / row["seconds"] for row in done if not row["peer"].startswith(OURS)]
    best = max(others, default=float("nan"))
    lines = [HEADER]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['peer']} | {row['failed']} |||||||||")
            continue
        seconds, rate = row["seconds"], row["ess_min"] / row["seconds"]
        figures = [
            row["peer"],
            f"{row['chains']} × ({row['warmup']} + {row['draws']})",
            f"{seconds:.1f}",
            f"{rate:.1f}",
            f"{row['ess_median'] / seconds:.1f}",
            f"{rate / best:.2f}",
            f"{row['rhat']:.3f}",
            f"{worst_deviation(row['means'], truths):.1f}",
            f"{row['gradients']:.3g}",
            f"{1e6 * seconds / row['gradients']:.1f}",
            f"{row['memory_mb']:.0f}",
        ]
        lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def machine(threads):
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    packages = ", ".join(
        f"{package} {importlib.metadata.version(package)}" for package in ("torch", "pyro-ppl", "numpyro", "jax")
    )
    return f"{name}, {os.cpu_count()} cores, {threads} thread(s) for each process, float64; {packages}"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of problems")
    parser.add_argument("--peers", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=int, default=900, help="seconds for each peer on each problem")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args(argv)
    page = [f"# Benchmarks of {datetime.date.today()}\n", machine(arguments.threads), "\n`make bench`\n"]
    print("\n".join(page), flush=True)
    for problem in PROBLEMS:
        if not any(part in problem for part in arguments.only):
            continue
        rows = [
            run_one(problem, peer, *numbers, arguments.threads, arguments.limit)
            for peer, *numbers in plan(problem)
            if arguments.peers in peer
        ]
        page.append(f"\n## {problem}\n\n{table(rows, PROBLEMS[problem].truths())}\n")
        print(page[-1], flush=True)
    if arguments.write:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / f"{datetime.date.today()}.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
