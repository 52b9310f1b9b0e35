"""Riemannian optimisers beside geoopt's: the time of a step, and steps to a tolerance.

python -m benchmarks.speed.optimisers
python -m benchmarks.speed.optimisers Procrustes      problems whose name contains this
"""

import sys
from collections.abc import Callable
from functools import partial
from math import inf, isnan
from typing import NamedTuple

import torch

from benchmarks.estimates import ratios
from benchmarks.tables import formatted, show
from benchmarks.timing import best_time
from pyro_manifold.manifolds import Stiefel
from pyro_manifold.optim import TorchRiemannianAdam, TorchRiemannianSGD

SHAPE = (100, 5)
TOLERANCE, MOST_STEPS = 1e-6, 1000
RATES = tuple(4.0**k for k in (0, 1, -1, -2, -3))  # the likeliest first: later ones stop when they need more steps
OURS = "pyro_manifold"
PREFACE = f"""\
A step is value, gradient and update of one matrix on V{SHAPE}. Each method has the learning rate, of 4^-3 to 4,
with which it needs the fewest steps until the value is above its minimum by less than {TOLERANCE:.0e} of what it
was above at the common start; momentum is 0.9 for SGD. The ratio is of milliseconds to the tolerance, those of the
faster of geoopt's two geometries to each row's.
"""


class Objective(NamedTuple):
    """A function of an orthonormal matrix, and its least value."""

    name: str
    value: Callable
    least: float


def objectives():
    """Brockett's function, least at the leading eigenvectors in order; their span; an unbalanced Procrustes problem."""
    random = torch.Generator().manual_seed(0)
    n, p = SHAPE
    spectrum = torch.cat([torch.linspace(1.0, 0.6, p), torch.linspace(0.3, 0.01, n - p)])
    basis = torch.linalg.qr(torch.randn(n, n, generator=random)).Q
    A = (basis * spectrum) @ basis.T
    order = torch.arange(p, 0, -1) / p
    root = (basis * spectrum.sqrt()) @ basis.T
    goal = root @ torch.linalg.qr(torch.randn(n, p, generator=random)).Q
    return [
        Objective("eigenvectors", lambda X: -((A @ X) * X * order).sum() / 2, float(-(spectrum[:p] * order).sum() / 2)),
        Objective("subspace", lambda X: -((A @ X) * X).sum() / 2, float(-spectrum[:p].sum() / 2)),
        Objective("Procrustes", lambda X: (root @ X - goal).square().sum() / 2, 0.0),
    ]


def ours(method):
    """A point and its optimiser from a start and a learning rate."""

    def build(start, rate):
        X = start.clone().requires_grad_()
        make = {"Adam": TorchRiemannianAdam, "SGD": partial(TorchRiemannianSGD, momentum=0.9)}[method]
        return X, make([{"params": [X], "manifold": Stiefel()}], lr=rate)

    return build


def geoopt(method, canonical):
    def build(start, rate):
        import geoopt

        X = geoopt.ManifoldParameter(start.clone(), manifold=geoopt.Stiefel(canonical=canonical))
        make = {"Adam": geoopt.optim.RiemannianAdam, "SGD": partial(geoopt.optim.RiemannianSGD, momentum=0.9)}[method]
        return X, make([X], lr=rate)

    return build


def methods(method):
    return {
        OURS: ours(method),
        "geoopt, canonical": geoopt(method, canonical=True),
        "geoopt, Euclidean": geoopt(method, canonical=False),
    }


def advance(objective, X, optimiser):
    """One step; the value before it."""
    optimiser.zero_grad()
    value = objective.value(X)
    value.backward()
    optimiser.step()
    return float(value.detach())


def steps_to_tolerance(objective, build, start, rate, most):
    """Steps until the tolerance; infinity if there are more than ``most``."""
    X, optimiser = build(start, rate)
    wanted = objective.least + TOLERANCE * (float(objective.value(start)) - objective.least)
    for step in range(most):
        value = advance(objective, X, optimiser)
        if value <= wanted:
            return step
        if isnan(value):
            break
    return inf


def measured(objective, peer, build, start, most):
    """The row of one method: its best learning rate, and what that takes."""
    fewest, best = inf, None
    for rate in RATES:
        # No more steps than the best so far: a rate that needs them is not the best.
        steps = steps_to_tolerance(objective, build, start, rate, int(min(fewest, most)))
        if steps < fewest:
            fewest, best = steps, rate
    if best is None:
        return {"peer": peer, "failed": f"over {most} steps"}
    X, optimiser = build(start, best)
    seconds = best_time(lambda: advance(objective, X, optimiser))
    return {"peer": peer, "rate": best, "seconds": seconds, "steps": fewest}


def rows(problems, most=MOST_STEPS):
    torch.manual_seed(0)
    start = Stiefel().random_point(*SHAPE)
    for objective in problems:
        for method in ("SGD", "Adam"):
            found = [measured(objective, peer, build, start, most) for peer, build in methods(method).items()]
            shares = ratios(found, lambda row: 1 / (row["seconds"] * row["steps"]), OURS)
            for row, share in zip(found, shares, strict=True):
                yield [objective.name, f"{row['peer']}, {method}", *cells(row, share)]


def cells(row, share):
    if "failed" in row:
        return [row["failed"]]
    rate, seconds, steps = row["rate"], row["seconds"], row["steps"]
    return formatted(".3g .0f d .1f .2f", rate, 1e6 * seconds, steps, 1e3 * seconds * steps, share)


def main(only=""):
    torch.set_default_dtype(torch.float64)
    print(f"## Optimisers beside geoopt\n\n{PREFACE}")
    chosen = [objective for objective in objectives() if only in objective.name]
    show(("problem", "method", "learning rate", "µs/step", "steps", "ms to tolerance", "ratio"), rows(chosen))


if __name__ == "__main__":
    main(*sys.argv[1:])
