"""The guides and optimisers that are compared, one fit of them, and the search for a step size.

The eight methods of Zhou et al. are Σ = B diag(c²) Bᵀ + diag(d²) with B on the Stiefel manifold, and Σ = B Bᵀ +
diag(d²) with B a point of the Grassmann manifold, each with basic steps, momentum, RMSProp and AdaDelta for B, the mean
squares of the last two transported, and plain stochastic gradients for μ, c and d: those that end in `PLAIN`. The
fixed-rank geometry, which the paper discards, takes steps in W = B diag(c), here in units of d unless so named.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoLowRankMultivariateNormal
from pyro.optim import PyroOptim
from torch.distributions import AbsTransform, biject_to, constraints, transform_to

from pyro_manifold import optim
from pyro_manifold.infer import SVI
from pyro_manifold.infer.autoguide import (
    AutoGrassmannLowRankMultivariateNormal,
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.manifolds import Grassmann, Stiefel

MEAN_FIELD, VAFC, FIXED_RANK = "mean field", "VAFC", "fixed rank"
LARGEST_SCORE = 1e12  # a loss beyond this has diverged
POINTS = 60  # of a curve
MOST_SIZES = 9  # step sizes that a search tries


@dataclass(frozen=True)
class Method:
    """``guide(model, rank)``, ``optimiser(step size)`` and the step sizes from which the search starts.

    Those of a ``family`` have a pair of step sizes, the second one for μ, c and d, see `rate_of`.
    """

    guide: Callable
    optimiser: Callable
    step_sizes: tuple[float, ...]
    family: str | None = None


# ---- guides --------------------------------------------------------------------------------------------------


def vafc(model, rank):
    return AutoLowRankMultivariateNormal(model, rank=rank)


def mean_field(model, rank):
    return AutoStiefelLowRankMultivariateNormal(model, rank=0)


FAMILIES = {
    FIXED_RANK: AutoStiefelLowRankMultivariateNormal,
    "Stiefel": AutoProductStiefelLowRankMultivariateNormal,  # B and c apart, as in the paper
    "Grassmann": AutoGrassmannLowRankMultivariateNormal,
}
UNIT_SCALE = partial(AutoGrassmannLowRankMultivariateNormal, factor_scale=1.0)  # the paper's Grassmann family
OF_THE_PAPER = {**FAMILIES, "Grassmann": UNIT_SCALE}


class EitherSign(constraints.Constraint):
    """Positive numbers as absolute values of parameters: steps in c and d themselves, whose signs have no effect."""


transform_to.register(EitherSign, lambda _: AbsTransform())


def in_entries(**more):
    """Guides of the paper whose B is a parameter without a constraint, so that its gradient is not projected."""
    own = {"factor_constraint": constraints.real, **more}
    product, one_scale = (type(each.__name__, (each,), own) for each in list(FAMILIES.values())[1:])
    unit = partial(one_scale, factor_scale=1.0)
    return {FIXED_RANK: unit, "Stiefel": product, "Grassmann": unit}


IN_ENTRIES, AS_IN_THE_PAPER = in_entries(), in_entries(scale_constraint=EitherSign())
MANIFOLDS = {FIXED_RANK: None, "Stiefel": Stiefel(), "Grassmann": Grassmann()}


# ---- optimisers ----------------------------------------------------------------------------------------------


def learning_rate(build, **options):
    return lambda size: build({"lr": size, **options})


def adadelta(size, **options):
    """AdaDelta has no learning rate; δ sets the size of its first steps."""
    return optim.RiemannianAdaDelta({"eps": size, **options})


TRANSPORTED = {"second_moment": "transported"}  # the paper's
RULES = {
    "basic": optim.TorchRiemannianSGD,
    "momentum": optim.TorchRiemannianMomentum,
    "RMSProp": partial(optim.TorchRiemannianRMSProp, **TRANSPORTED),
    "AdaDelta": partial(optim.TorchRiemannianAdaDelta, **TRANSPORTED),
}
ADAM_RATE = 0.03
RATES = (1e-6, 1e-5, 1e-4)  # of plain steps


def factor_alone(family, rule, size):
    """One rule for B; for μ, c and d plain steps if ``size`` is a pair, else Adam at its recommended rate."""
    size, rate = size if isinstance(size, tuple) else (size, None)

    def build(parameters, of_factor):
        if not of_factor:
            adam = optim.TorchRiemannianAdam
            return adam(parameters, ADAM_RATE) if rate is None else optim.TorchRiemannianSGD(parameters, rate)
        manifold, unit = MANIFOLDS[family], 1.0 if family == FIXED_RANK else len(parameters[0]) ** 0.5
        # AdaDelta's steps are in units of 1, as in the paper; the other rates are tuned in any unit.
        options = {"eps": size, "lr": unit} if rule == "AdaDelta" else {"lr": size}
        return RULES[rule]([{"params": parameters, "manifold": manifold}], **options)

    return PyroOptim(build, lambda name: {"of_factor": name.endswith("cov_factor")})


ADAPTIVE = (0.01, 0.03, 0.1)
STEPS = {
    "basic": (learning_rate(optim.RiemannianSGD), (1e-4, 1e-3, 1e-2)),
    "momentum": (learning_rate(optim.RiemannianMomentum), (1e-5, 1e-4, 1e-3)),
    "RMSProp": (learning_rate(optim.RiemannianRMSProp, **TRANSPORTED), ADAPTIVE),
    "AdaDelta": (partial(adadelta, **TRANSPORTED), (1e-4, 1e-3, 1e-2)),
}
ADAM = learning_rate(optim.RiemannianAdam), ADAPTIVE
MIXED, PLAIN = ", Adam for μ, c, d", ", SGD for μ, c, d"
METHODS = {
    MEAN_FIELD: Method(mean_field, learning_rate(pyro.optim.Adam), ADAPTIVE),
    VAFC: Method(vafc, learning_rate(pyro.optim.Adam), ADAPTIVE),
    **{
        f"{family} {steps}": Method(guide, *chosen)
        for family, guide in OF_THE_PAPER.items()
        for steps, chosen in STEPS.items()
    },
    **{
        f"{family} {rule}{MIXED}": Method(IN_ENTRIES[family], partial(factor_alone, family, rule), STEPS[rule][1])
        for family in ("Stiefel", "Grassmann")
        for rule in RULES
    },
    **{
        f"{family} {rule}{PLAIN}": Method(guide, partial(factor_alone, family, rule), STEPS[rule][1], family)
        for family, guide in AS_IN_THE_PAPER.items()
        for rule in RULES
    },
    "Grassmann AdaDelta, V ambient": Method(UNIT_SCALE, adadelta, STEPS["AdaDelta"][1]),
    **{f"{family} Adam": Method(guide, *ADAM) for family, guide in FAMILIES.items()},
    "Grassmann RMSProp, s learned": Method(FAMILIES["Grassmann"], learning_rate(optim.RiemannianRMSProp), ADAPTIVE),
}


def mean_field_by(steps):
    """Rank 0 with an optimiser of the paper, where all families are one."""
    return Method(mean_field, *STEPS[steps])


# ---- fits ----------------------------------------------------------------------------------------------------


@dataclass
class Fit:
    """A trained guide and its ELBO; ``curve`` has the mean ELBO of each of its parts, by the last of their steps."""

    guide: object
    elbo: float
    curve: list[tuple[int, float]]
    steps: int
    seconds: float

    @property
    def diverged(self):
        return self.elbo == -math.inf


@dataclass(frozen=True)
class Budget:
    """Seconds of one core, first call of the model and compiling included, evaluations not; or a number of steps."""

    seconds: float
    steps: int | None = None
    particles: int = 8

    def share(self, elapsed, steps):
        """Share of it that is spent."""
        return elapsed / self.seconds if self.steps is None else steps / self.steps

    def part(self, share):
        steps = None if self.steps is None else int(self.steps * share)
        return replace(self, seconds=self.seconds * share, steps=steps)


def fit(method, model, data, rank, step_size, budget, seed=0):
    """Train until the budget is spent; a loss that is not finite, or an error after the first step, is a divergence."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide, optimiser = method.guide(model, rank), method.optimiser(step_size)
    svi = SVI(model, guide, optimiser, Trace_ELBO(num_particles=budget.particles))
    curve, losses, steps, start = [], [], 0, time.process_time()
    while (share := budget.share(elapsed := time.process_time() - start, steps)) < 1:
        cool(optimiser, share)
        losses.append(step(svi, data, steps > 0))
        steps += 1
        if not abs(losses[-1]) < LARGEST_SCORE:
            return Fit(guide, -math.inf, curve, steps, elapsed)
        if share > (len(curve) + 1) / POINTS:
            curve.append((steps, -sum(losses) / len(losses)))
            losses = []
    return Fit(guide, elbo(svi, data), curve, steps, elapsed)


def step(svi, data, begun):
    """The loss of a step; infinite where a guide that has left the finite numbers makes the model raise an error."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Encountered NaN")
            return svi.step(*data)
    except (ValueError, torch.linalg.LinAlgError):
        if not begun:
            raise
        return math.inf


def cool(optimiser, share):
    """Learning rates fall to a hundredth over the time there is, so that all methods end below their noise."""
    for each in optimiser.optim_objs.values():
        for group in each.param_groups:
            start = group.setdefault("initial_lr", group["lr"])
            group["lr"] = start * 0.01**share


def elbo(svi, data, count=500):
    """Mean over ``count`` losses; its standard error is about a tenth with 8 draws each, more on leukemia."""
    found = -sum(svi.evaluate_loss(*data) for _ in range(count)) / count
    return found if math.isfinite(found) else -math.inf


@cache
def rate_of(family, model, data, rank, budget):
    """The best rate of plain steps of μ, c and d beside short basic steps of B, for all rules of a family."""

    def optimiser(rate):
        return factor_alone(family, "basic", (STEPS["basic"][1][0], rate))

    return best_step_size(Method(AS_IN_THE_PAPER[family], optimiser, RATES), model, data, rank, budget)


def best_step_size(method, model, data, rank, budget):
    """The step size with the highest ELBO for the same budget, searched beyond the first ones until it is no edge."""
    rate = method.family and rate_of(method.family, model, data, rank, budget)
    ratio = method.step_sizes[1] / method.step_sizes[0]
    found = {}

    def attempt(size):
        size = float(f"{size:.2g}")
        found[size] = fit(method, model, data, rank, (size, rate) if rate else size, budget).elbo

    for size in method.step_sizes:
        attempt(size)
    while len(found) < MOST_SIZES:
        best = max(found, key=found.get)
        diverged = found[best] == -math.inf
        # If all diverge, larger sizes are tried too: δ of AdaDelta also keeps quotients finite.
        if (diverged and len(found) % 2) or best == max(found):
            attempt(max(found) * ratio)
        elif diverged or best == min(found):
            attempt(min(found) / ratio)
        else:
            break
    best = max(found, key=found.get)
    return (best, rate) if rate else best


def draws(guide, count=1000):
    """``{site: (count, ...)}`` from the guide."""
    with torch.no_grad():
        latent = guide.get_posterior().sample((count,))
        return {site["name"]: biject_to(site["fn"].support)(value) for site, value in guide._unpack_latent(latent)}
