"""How the cost of one leapfrog step grows, beside copying its bytes and multiplying its matrices.

python -m benchmarks.speed.scaling
python -m benchmarks.speed.scaling chains      cases whose title contains this
"""

from __future__ import annotations

import sys

import torch

from benchmarks.tables import show
from benchmarks.timing import best_time
from pyro_manifold.infer.mcmc.hmc.leapfrog import leapfrog_step, refresh
from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics, Metric
from pyro_manifold.infer.mcmc.hmc.product import ProductMechanics
from pyro_manifold.infer.mcmc.hmc.trajectory import HamiltonianSettings, Trajectory, at_rest
from pyro_manifold.infer.mcmc.transitions.executable import Executable
from pyro_manifold.manifolds import Stiefel

BLOCK = ("X",)
PREFACE = """\
A leapfrog step of OHMC on one Stiefel site, two kicks and a drift, with a linear potential, whose gradient costs
nothing. "products" are the matrix products that the step must do, with torch.matmul on tensors that are there
already: [X r]ᵀ[X r] and an n×2p by 2p×2p product for the drift, XᵀG and X times a p×p matrix for each kick. "copy"
moves the bytes of X, r and G once.
"""


def step_times(chains, n, p, compiled):
    gradient = torch.randn(chains, n, p)
    energy = torch.zeros(chains)
    metrics = {BLOCK: Metric.from_inverse_mass(torch.tensor([1.0 / n]))}
    mechanics = ProductMechanics({BLOCK: CayleyMechanics()})

    def potential(position):
        return energy, {BLOCK: gradient}

    state = at_rest({BLOCK: Stiefel().random_point(chains, n, p)}, potential)
    state, X = refresh(state, mechanics=mechanics, metrics=metrics), state.position[BLOCK]
    step_size = torch.tensor(0.1)

    def step():
        leapfrog_step(state, step_size, potential=potential, mechanics=mechanics, metrics=metrics)

    if compiled:
        trajectory, settings = (
            Executable(Trajectory(mechanics), lambda batch: potential),
            HamiltonianSettings(0.1, 1, metrics),
        )
        trajectory.step.replace(state, [settings], {"compiled": "{reason}"})
        inputs = trajectory.step.inputs(state, trajectory.transition.prepared(settings, state))

        def step():
            trajectory.step.graph(*inputs)

    r = state.momentum[BLOCK]

    both, small = torch.cat([X, r], -1), torch.ones(2 * p, 2 * p)

    def products():
        both.mT @ both
        both @ small
        for _ in range(2):
            X @ (X.mT @ gradient)

    return (
        best_time(step),
        best_time(products),
        best_time(lambda: (X.clone(), r.clone(), gradient.clone())),
    )


CASES = {
    "n at p = 5, one chain": [(1, n, 5) for n in (100, 1_000, 10_000, 100_000)],
    "p at n = 1000, one chain": [(1, 1000, p) for p in (2, 10, 50, 200)],
    "chains on V(10, 3)": [(chains, 10, 3) for chains in (1, 16, 256, 4096)],
}


COLUMNS = (
    "chains", "n", "p", "step µs", "compiled µs", "products µs", "copy µs", "step / products", "compiled / products",
)  # fmt: skip


def rows(cases):
    for case in cases:
        eager, products, copy = step_times(*case, compiled=False)
        fast, _, _ = step_times(*case, compiled=True)
        figures = [f"{1e6 * t:.0f}" for t in (eager, fast, products, copy)]
        yield [*case, *figures, f"{eager / products:.1f}", f"{fast / products:.1f}"]


def main(only="", most=None):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    print(f"## The cost of a step\n\n{PREFACE}", flush=True)
    for title, cases in CASES.items():
        if only in title:
            print(f"\n### {title}\n")
            show(COLUMNS, rows(cases[: most and int(most)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
