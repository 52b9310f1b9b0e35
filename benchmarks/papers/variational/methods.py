"""The guides and optimisers that are compared, each with three step sizes to choose from, and one fit of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyro
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal

from pyro_manifold import optim
from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)

MEAN_FIELD, VAFC = "mean field", "VAFC (Pyro's low-rank guide)"
LARGEST_SCORE = 1e12  # a loss beyond this has diverged


@dataclass(frozen=True)
class Method:
    """``guide(model, rank)``, ``optimiser(step size)`` and the step sizes to try."""

    guide: Callable
    optimiser: Callable
    step_sizes: tuple[float, ...]


def vafc(model, rank):
    return AutoLowRankMultivariateNormal(model, rank=rank)


def mean_field(model, rank):
    return AutoStiefelLowRankMultivariateNormal(model, rank=0)


def learning_rate(build):
    return lambda size: build({"lr": size})


def adadelta(size):
    """AdaDelta has no learning rate; δ sets the size of its first steps."""
    return optim.RiemannianAdaDelta({"eps": size})


def transported(build, size):
    """The paper's second moment."""
    return build({"lr": size, "second_moment": "transported"})


FAMILIES = {
    "Stiefel W": AutoStiefelLowRankMultivariateNormal,  # steps in W = B diag(c): matrices of fixed rank
    "Stiefel": AutoProductStiefelLowRankMultivariateNormal,  # B and c apart, as in the paper
    "Grassmann": AutoGrassmannLowRankMultivariateNormal,
}
CLOSED_FORM = {f"{family} Adam, entropy in closed form": guide for family, guide in FAMILIES.items()}
UNIT_SCALE = partial(AutoGrassmannLowRankMultivariateNormal, factor_scale=1.0)  # the paper's Grassmann family
ADAPTIVE = (0.01, 0.03, 0.1)
STEPS = {
    "basic": (learning_rate(optim.RiemannianSGD), (1e-5, 3e-4, 3e-3)),
    "momentum": (learning_rate(optim.RiemannianMomentum), (1e-6, 3e-5, 3e-4)),
    "RMSProp": (learning_rate(optim.RiemannianRMSProp), ADAPTIVE),
    "AdaDelta": (adadelta, (1e-6, 1e-5, 1e-4)),
    "Adam": (learning_rate(optim.RiemannianAdam), ADAPTIVE),
}
METHODS = {
    MEAN_FIELD: Method(mean_field, learning_rate(pyro.optim.Adam), ADAPTIVE),
    VAFC: Method(vafc, learning_rate(pyro.optim.Adam), ADAPTIVE),
    **{
        f"{family} {steps}": Method(guide, optimiser, sizes)
        for family, guide in FAMILIES.items()
        for steps, (optimiser, sizes) in STEPS.items()
    },
    **{
        f"{family} {name}, V transported": Method(guide, partial(transported, build), sizes)
        for family, guide in FAMILIES.items()
        if family != "Stiefel W"  # without a manifold both readings are one
        for name, build, sizes in (
            ("RMSProp", optim.RiemannianRMSProp, ADAPTIVE),
            ("Adam", optim.RiemannianAdam, ADAPTIVE),
        )
    },
    **{name: Method(partial(guide, path_derivative=False), *STEPS["Adam"]) for name, guide in CLOSED_FORM.items()},
    "Grassmann s=1 RMSProp": Method(UNIT_SCALE, *STEPS["RMSProp"]),
    "Grassmann s=1 Adam": Method(UNIT_SCALE, *STEPS["Adam"]),
}


@dataclass
class Fit:
    """A trained guide, its ELBO and how it came there: ``curve`` has pairs of seconds and mean ELBO since the last."""

    guide: object
    elbo: float
    curve: list[tuple[float, float]]
    steps: int
    seconds: float

    @property
    def diverged(self):
        return self.elbo == -float("inf")


@dataclass(frozen=True)
class Budget:
    """Seconds of one core, first call of the model included, evaluations not; or a number of steps."""

    seconds: float
    steps: int | None = None

    def share(self, elapsed, steps):
        """How much of it is spent."""
        return elapsed / self.seconds if self.steps is None else steps / self.steps

    def part(self, share):
        return Budget(self.seconds * share, None if self.steps is None else round(self.steps * share))


def fit(method, model, data, rank, step_size, budget, seed=0):
    """Train until the budget is spent."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide, optimiser = method.guide(model, rank), method.optimiser(step_size)
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    curve, losses, steps, start = [], [], 0, time.process_time()
    while (share := budget.share(elapsed := time.process_time() - start, steps)) < 1:
        cool(optimiser, share)
        losses.append(svi.step(*data))
        steps += 1
        if not abs(losses[-1]) < LARGEST_SCORE:
            return Fit(guide, -float("inf"), curve, steps, elapsed)
        if share > (len(curve) + 1) / 60:
            curve.append((elapsed, -sum(losses) / len(losses)))
            losses = []
    return Fit(guide, elbo(model, guide, data), curve, steps, elapsed)


def cool(optimiser, share):
    """Learning rates fall to a hundredth over the time there is, so that all methods end below their noise."""
    for each in optimiser.optim_objs.values():
        for group in each.param_groups:
            start = group.setdefault("initial_lr", group["lr"])
            group["lr"] = start * 0.01**share


def elbo(model, guide, data, draws=500):
    """Mean over single draws; its standard error is a few tenths on these problems."""
    losses = torch.tensor([Trace_ELBO().loss(model, guide, *data) for _ in range(draws)])
    return -float(losses.mean())


def best_step_size(method, model, data, rank, budget):
    """The step size with the highest ELBO for the same budget."""
    fits = {size: fit(method, model, data, rank, size, budget).elbo for size in method.step_sizes}
    return max(fits, key=fits.get)


def draws(guide, data, count=1000):
    """``{site: (count, ...)}`` from the guide."""
    with torch.no_grad():
        samples = [guide(*data) for _ in range(count)]
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
