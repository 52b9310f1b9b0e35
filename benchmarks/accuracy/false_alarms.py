"""Rates at which a model is wrongly said to defeat the tracer, and at which a branch on values goes unseen.

    python -m benchmarks.accuracy.false_alarms --seeds 16 --dtype float32

None of `problems.models` branches on values of sites. Each is made ready for each seed as it is, and with another slope
in every second band of a coordinate, behind a conversion that no tracer sees; the change of slope is a hundredth of the
steepest at the initial values.
"""

import argparse
import warnings

import pyro
import torch

from benchmarks.tables import show
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


def row(name, with_data, seeds, chains):
    ready = [made_ready(with_data(seed), seed, chains) for seed in range(seeds)]
    alarms = [said for problem, said in ready if problem.batched.graph.backend != "traced"]
    missed = sum(takes_hidden_branch(problem) for problem, _ in ready)
    return [name, seeds, len(alarms), missed, *alarms[:1]]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="part of the names of models")
    arguments = parser.parse_args(argv)
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    torch.set_num_threads(1)
    rows = (
        row(name, with_data, arguments.seeds, arguments.chains)
        for name, with_data in MODELS.items()
        if arguments.only in name
    )
    show(["model", "seeds", "false alarms", "missed branches", "the first false alarm"], rows)


if __name__ == "__main__":
    main()
