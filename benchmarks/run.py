"""The figures of the pages, part by part: `make bench`, or `make bench PART=rates_larger` for one.

python -m benchmarks.run                                what all parts print
python -m benchmarks.run --only gradients optimisers    some of them
python -m benchmarks.run --only gradients --write docs  and into its page
python -m benchmarks.run --list                         names, pages and commands

A part is one command, of at most 17 minutes on one core. What it prints stands in its page between two
lines, `<!-- make bench PART=name -->` and `<!-- end of name -->`, and nothing else of the page is changed. So parts
are run again one by one, and a part that fails leaves its page as it was.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import confine, machine
from benchmarks.measure import environment
from benchmarks.timing import processor_seconds


class Part(NamedTuple):
    """A page below `docs`, and the module of `benchmarks` that prints its figures, with arguments."""

    page: str
    command: str


FOLDER = "benchmarks/"
"""Its pages are about the benchmarks alone."""
RATES, KERNELS, OPTIMISERS, LENGTHS, MSD, GRADIENTS, NETWORKS = (
    f"{FOLDER}{name}.md"
    for name in ("rates", "kernels", "optimisers", "lengths", "msd", "stochastic_gradients", "networks")
)
ARM, PAPERS = "understand/robot_arm.md", "reproduction.md"
HIERARCHIES = "schools|rats|pumps|seeds|baseball|epilepsy|radon|dugongs|regression|horseshoe|leukaemia"
SERIES = "Gaussian process|AR(|volatility|GARCH|Nile|hidden|item|mixture|correlations|funnel|Rosenbrock"
MATRICES = "exercises|reduced|cointegration|components|alignment|directions|Florentine"
READINGS = "papers.msd.paper_table --runs 30 --starts"
PERSISTENT = "'HMC30, persistent' 'HMC100, persistent' 'MSD, Jeffreys'"
PARTS = {
    "rates_v22": Part(RATES, "speed.rates --only 'paper, V(2,2)' --chains 4"),
    "rates_v32": Part(RATES, "speed.rates --only 'paper, V(3,2)' --chains 4"),
    "rates_langevin": Part(RATES, "speed.rates --only Langevin --chains 4"),
    "rates_many_chains": Part(RATES, "speed.rates --chains 64"),
    "rates_larger_matrices": Part(RATES, "speed.rates --only matrices"),
    "rates_larger_components": Part(RATES, "speed.rates --only PCA"),
    "paper_tables": Part(PAPERS, "papers.ohmc.paper_tables"),
    "paper_tables_3_steps": Part(PAPERS, "papers.ohmc.paper_tables --steps 3 --widths 2 --step-sizes 0.04 0.05 0.06"),
    "exponentials": Part(PAPERS, "papers.ohmc.exponentials"),
    "robot_arm_readings": Part(PAPERS, f"{READINGS} descended zero prior"),
    "robot_arm_readings_small": Part(PAPERS, f"{READINGS} small --samplers {PERSISTENT}"),
    **{name: Part(KERNELS, f"speed.{name}") for name in ("native_kernels", "gradients", "expansions")},
    "optimisers": Part(OPTIMISERS, "speed.optimisers"),
    "msd_agreement": Part(MSD, "accuracy.msd.agreement"),
    "msd_bias": Part(MSD, "accuracy.msd.bias"),
    "msd_logistic": Part(MSD, "speed.msd.collinear --posteriors 'collinear logistic'"),
    "msd_linear": Part(MSD, "speed.msd.collinear --posteriors 'collinear linear'"),
    "msd_step_cost": Part(MSD, "speed.msd.step_cost"),
    "robot_arm_steps": Part(ARM, "papers.msd.robot_arm_steps"),
    "robot_arm": Part(ARM, "papers.msd.robot_arm"),
    "robot_arm_small": Part(ARM, "papers.msd.robot_arm --start small --samplers MSD 'MSD, Jeffreys' HMC30 HMC100"),
    "robot_arm_cost": Part(ARM, "papers.msd.robot_arm_cost"),
    "networks": Part(NETWORKS, "accuracy.networks.quality --only plain"),
    "networks_orthogonal": Part(NETWORKS, "accuracy.networks.quality --only orthogonal --seeds 2"),
    "noisy_matrix": Part(PAPERS, "papers.ohmc.noisy_matrix"),
    "noisy_matrix_resampled": Part(PAPERS, "papers.ohmc.noisy_matrix --steps 3 --step-sizes 0.1"),
    "stochastic_bias": Part(GRADIENTS, "accuracy.stochastic_gradients"),
    "lengths": Part(LENGTHS, f"speed.tuning.lengths --published --only '{HIERARCHIES}'"),
    "lengths_series": Part(LENGTHS, f"speed.tuning.lengths --published --only '{SERIES}'"),
    "lengths_matrices": Part(LENGTHS, f"speed.tuning.lengths --published --only '{MATRICES}'"),
    "low_rank": Part("understand/ohmc.md", "speed.tuning.low_rank"),
    "one_chain": Part("understand/ohmc.md", "speed.tuning.one_chain"),
    "square_matrices": Part("understand/ohmc.md", "speed.square_matrices"),
    "drift": Part("understand/ohmc.md", "speed.drift"),
    "geodesics": Part("understand/ghmc.md", "speed.drift --geodesics"),
    "sparse_inputs": Part("gallery/sparse_inputs.md", "speed.sparse_inputs --only Branin --seeds 0"),
    "pyro_scripts": Part("how_to/pyro_scripts.md", "speed.pyro_scripts --only 'schools|seeds'"),
    "stochastic_steps": Part("understand/stochastic_gradients.md", "speed.stochastic_gradients"),
    "learned_steps": Part("understand/learned_sampler.md", "speed.stochastic_gradients --learned"),
}


def marks(name):
    """The lines before and behind the figures of a part."""
    return f"<!-- make bench PART={name} -->\n", f"<!-- end of {name} -->\n"


def inserted(page, name, figures):
    """The text of a page with the figures of a part in place of those that it had.

    Raises:
        ValueError: if the page lacks the marks of the part.
    """
    first, last = marks(name)
    before, begun, rest = page.partition(first)
    _, ended, after = rest.partition(last)
    if not (begun and ended):
        raise ValueError(f"The page lacks the lines {first.strip()} and {last.strip()}: put them where figures belong.")
    return f"{before}{first}\n{figures.strip()}\n\n{last}{after}"


def below_a_section(text):
    """Figures with each heading one level down, since pages of benchmarks have them in sections."""
    return re.sub(r"^#+ ", r"#\g<0>", text, flags=re.MULTILINE)


def printed(arguments, threads):
    """Output of a command, shown as it comes, and whether it ended well."""
    lines = []
    with tempfile.TemporaryDirectory() as caches:
        command, variables = [sys.executable, "-m", *arguments], environment(threads, caches)
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
    return "".join(lines), not process.returncode


def section(command, text, seconds, of_processor, threads):
    """Figures with the command that printed them, what it took, and where."""
    took = f"{seconds:.0f} s, {of_processor:.0f} s of the processor"
    return f"```\npython -m {command}\n```\n\n{took}; {machine(threads)}\n\n{text.strip()}\n"


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", type=Path, help="the folder of the pages")
    parser.add_argument("--list", action="store_true", help="names, pages and commands, without running them")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(f"{name}: {page}, python -m benchmarks.{command}" for name, (page, command) in PARTS.items()))
        return 0
    confine(arguments.threads)
    whole = True
    for name in arguments.only:
        page, command = PARTS[name][0], f"benchmarks.{PARTS[name].command}"
        started, of_processor = time.perf_counter(), processor_seconds()
        text, ended = printed(shlex.split(command), arguments.threads)
        text = below_a_section(text) if page.startswith(FOLDER) else text
        times = time.perf_counter() - started, processor_seconds() - of_processor
        figures = section(command, text, *times, arguments.threads)
        print(figures.partition(text.strip())[0] if ended else f"\n`{command}` failed.", flush=True)
        if ended and arguments.write:
            path = arguments.write / page
            path.write_text(inserted(path.read_text(), name, figures))
        whole &= ended
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
