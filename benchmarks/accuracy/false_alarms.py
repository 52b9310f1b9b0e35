"""Rates at which a model is wrongly said to defeat the tracer, and at which a branch on values goes unseen.

    python -m benchmarks.accuracy.false_alarms --seeds 0 1 2

None of `problems.models` branches on values of sites. Each is made ready for each seed as it is, and with another slope
in every second band of a coordinate, behind a conversion that no tracer sees; the change of slope is a hundredth of the
steepest at the initial values.
"""

import warnings

import pyro
import torch

from benchmarks.study import Study
from problems.models import MODELS
from pyro_manifold.density import BatchedPotential
from pyro_manifold.infer import OHMC


def made_ready(model, seed, chains):
    """The problem as a kernel has it, and what a user reads if it cannot be traced."""
    pyro.set_rng_seed(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problem = OHMC(model).prepare(chains, 10, None).problem
    said = [str(warning.message) for warning in caught if "cannot be" in str(warning.message)]
    return problem, said[0] if said else ""


def with_hidden_branch(potential_fn, slope):
    """The potential with a bend between the bands of the first coordinate."""

    def branching(sites):
        first = next(iter(sites.values())).flatten()[0]
        odd = int(4 * first.detach().tolist()) % 2
        return potential_fn(sites) + (slope * first if odd else 0.0)

    return branching


def takes_hidden_branch(problem):
    """True if a trace is trusted that has frozen the branch."""
    _, gradient = problem.batched(problem.initial_values)
    steepest = float(next(iter(gradient.values())).abs().max())
    branching = with_hidden_branch(problem.target.potential_fn, 0.01 * steepest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = BatchedPotential(branching, problem.initial_values, problem.target.manifolds)
    return potential.graph.is_graph


def run(with_data, _, seed, arguments):
    """Whether the model of a seed has a false alarm, what is said, and whether its hidden branch is missed."""
    problem, said = made_ready(with_data(seed), seed, arguments.chains)
    alarm = problem.batched.graph.backend != "traced"
    return {"alarm": alarm, "said": said, "missed": bool(takes_hidden_branch(problem))}


STUDY = Study(
    __doc__, ("model",), {
        "seeds": len, "false alarms": lambda runs: sum(run["alarm"] for run in runs),
        "missed branches": lambda runs: sum(run["missed"] for run in runs),
        "the first false alarm": lambda runs: next((run["said"] for run in runs if run["alarm"]), ""),
    },
    problems=MODELS, run=run, seeds=tuple(range(16)), options={"chains": 4}, dtype=torch.float32,
)  # fmt: skip
main = STUDY.main


if __name__ == "__main__":
    main()
