"""Time of one leapfrog step: operator by operator, by torch.compile, and in native code.

python -m benchmarks.speed.native                    a few minutes
python -m benchmarks.speed.native mixture 1,4        problems whose name contains this, at these numbers of chains
"""

import sys
import warnings

import pyro

from benchmarks.machine import machine
from benchmarks.problems.page import PROBLEMS
from benchmarks.study import set_up
from benchmarks.tables import show
from benchmarks.timing import best_time, stopwatch
from pyro_manifold.infer import OHMC

STEPS = 50
NAMES = ("mixture of the OHMC paper, V(3,2)", "Langevin V(10,3)", "Langevin V(50,5)")
PREFACE = f"""\
Microseconds a step of OHMC, all chains together, in trajectories of {STEPS} steps of a fixed size; momentum draw,
Metropolis decision and statistics are in. The last two columns are processor seconds to trace and compile, with
caches on disk as they were found.
"""


def transition(problem, chains, **options):

    pyro.set_rng_seed(0)
    fixed = {"step_size": 1e-2, "num_steps": STEPS, "adapt_step_size": False, "adapt_mass_matrix": False}
    run = OHMC(problem.pyro_model, **fixed, **options).prepare(chains, 0, None)
    return run, run.transitions[-1], run.tuning.settings(1)


def microseconds_of_a_step(run, move, settings):
    return f"{1e6 * best_time(lambda: move(run.state, settings, run.random), 0.5) / STEPS:.2f}"


def rows(problems, counts):
    for problem in problems:
        for chains in counts:
            run, move, settings = transition(problem, chains)
            eager = microseconds_of_a_step(run, move, settings)
            with stopwatch() as native:
                run.policy.make(run.state)
            here = microseconds_of_a_step(run, move, settings) if move.graph.backend == "native" else "–"
            with stopwatch() as theirs:
                compiled = transition(problem, chains, jit_compile=True)
                compiled[1](compiled[0].state, compiled[2], compiled[0].random)
            by_torch = microseconds_of_a_step(*compiled)
            seconds = [f"{times['cpu_seconds']:.1f}" for times in (theirs, native)]
            yield [problem.name, str(chains), eager, by_torch, here, *seconds]


def main(only="", counts="1,4,64,512"):
    warnings.filterwarnings("ignore")
    set_up()
    problems = [PROBLEMS[name] for name in NAMES if only in name]
    print(f"## One leapfrog step, compiled\n\n{machine(1)}\n\n{PREFACE}", flush=True)
    columns = ("chains", "eager µs", "torch.compile µs", "native µs", "torch.compile s", "native s")
    show(("problem", *columns), rows(problems, [int(count) for count in counts.split(",")]))


if __name__ == "__main__":
    main(*sys.argv[1:])
