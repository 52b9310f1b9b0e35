"""Profile of a step of adjusted MSD on the collinear logistic posterior.

    python -m benchmarks.speed.msd.step_profile CHAINS [compiled]

Process time of the set-up, of an iteration and of its graph, shares of operators by torch.profiler.
"""

import sys
import warnings

from torch.profiler import ProfilerActivity, profile

from benchmarks import study
from benchmarks.problems.coefficients import POSTERIORS
from benchmarks.timing import process_time
from pyro_manifold.infer import MSD


def main(chains, compiled=False, name="collinear logistic", shown=12):
    warnings.filterwarnings("ignore")
    study.set_up()
    kernel = MSD(POSTERIORS[name].pyro_model, step_size=0.6, persistence=0.0, metropolis=True, jit_compile=compiled)

    def set_up():
        kernel.run = kernel.prepare(chains, 0, None)

    print(f"set-up {process_time(set_up, 1):.1f} s")
    run = kernel.run
    run.advance()
    (trajectory,), state, repeats = run.transitions, run.state, 5 if chains > 100 else 50
    settings = trajectory.transition.prepared(run.tuning.settings(1), state)
    moving, _ = trajectory.transition.begin(
        state, settings, trajectory.transition.noise(state, run.random), trajectory.density({})
    )
    inputs = trajectory.step.inputs(moving, settings)

    def once():
        trajectory.step.graph(*inputs)

    iteration, graph = (1e6 * process_time(each, repeats) for each in (run.advance, once))
    print(f"iteration {iteration:.0f} µs, its graph ({trajectory.step.graph.backend}) {graph:.0f} µs")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        process_time(once, repeats)
    found = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in found)
    for event in found[:shown]:
        print(f"{100 * event.self_cpu_time_total / total:5.1f} %  {event.count // repeats:4d} calls  {event.key}")


if __name__ == "__main__":
    main(int(sys.argv[1]), "compiled" in sys.argv[2:])
