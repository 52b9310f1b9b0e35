r"""Masses of sites, learned in warm-up from curvatures and the noise of gradients, and from temperatures of momenta.

With a step size ε common to all sites, site i of mass m takes steps of $\varepsilon/\sqrt m$. In the coordinates
$\sqrt m\,\theta_i$ of unit mass, two numbers limit ε. The curvature there is $\lambda/m$, λ the mean curvature of
the site. Minibatch noise of variance σ² in each coordinate of the gradient increases the temperature by
$\varepsilon^2 h\sigma^2/(m\tau)$, with h about $1/(2\alpha)$ for a friction α; see `SGHMC`. The masses

$$ m = \lambda + h\sigma^2/\tau $$

bound both: the relative excess temperature by ε², and a step by ε posterior standard deviations (for a site of
independent coordinates of equal variance). The step size thus has no unit, and the same value suits all sites. If noise
dominates, all sites have the same excess temperature. Without noise, all have the same period.

For gradients g, g' of two minibatches at the same position, σ² is the mean of (g - g')²/2. The noise of shuffled
minibatches cancels over an epoch, and h is smaller accordingly (`cancellation`). The curvature λ is the mean second
derivative along random velocities, by differences of gradients of one minibatch. In equilibrium second moments of
gradients determine it too, $\mathbb E(\partial_i U)^2 = \tau\,\mathbb E\,\partial_i^2 U$, but far from the typical set
they are too large by orders of magnitude. The square of a covector of a manifold site is twice its kinetic energy at
unit mass per degree of freedom d, and the curvature of the manifold itself, $d/\|X\|^2$, is added to λ, as in
`CurvatureEstimator`. A last term, ε⁴ times the squared mean gradient, is negligible in equilibrium. Far from it, it
prevents kicks by more than one scale.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics, Metric, Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.sgmcmc.steps import StochasticState
from pyro_manifold.infer.mcmc.sgmcmc.transition import IterationSettings, StepSchedules
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Observer, Problem
from pyro_manifold.store import Serialisable

_ACCEPTED_EXCESS = 0.1
"""Excess temperature of a site, relative to τ, that is accepted where ε² is smaller. Above it the mass is increased:
stiff directions within a site and batches that are correlated in time heat it more than the formula predicts."""
_MOST_NOISE_BEFORE = 4.0
"""Largest contribution of noise to a mass before the last window, as a multiple of the others: far from the typical set
noise can be so large that chains would not get there. Until then they may be hot."""
_LONG_EPOCH = 50.0
"""Length of an epoch, in units of the steps in which a momentum is forgotten, beyond which batches are independent."""
_LEAST_CURVATURE = 0.1
"""Smallest mean curvature of a site, as a fraction of the root mean square norm of its rows of the Hessian: the mean
may be negative far from the typical set, and is imprecise for few coordinates and chains."""
_PROBES = 4
"""Number of probes for the initial masses."""
_WEIGHT_OF_PREVIOUS = 5
"""Weight of the previous mass, in numbers of samples of one coordinate, as in the adaptation of HMC's masses."""
_LARGEST_FACTOR = 4.0
"""Largest factor of a mass by a measured temperature."""

Stage = Literal["initial", "early", "final"]


def windows(warmup_steps: int) -> list[range]:
    """Return the windows of warm-up, counted from 0: each as long as all before it, the last one half of warm-up.

    Examples:
        >>> windows(40)
        [range(0, 2), range(2, 5), range(5, 10), range(10, 20), range(20, 40)]
    """
    ends = sorted({0, *(warmup_steps >> k for k in range(5))})
    return [range(start, stop) for start, stop in pairwise(ends)]


def cancellation(friction: float, steps_of_an_epoch: int | None) -> float:
    r"""Return the variance of momenta by the noise of shuffled minibatches, relative to independent ones.

    Friction weights the noise of j steps ago by $k^j$, $k = e^{-\alpha}$. Over an epoch of K batches noise sums to
    zero; within one, the covariance of two batches is $-\sigma^2/(K-1)$. The variance is averaged over the steps of an
    epoch.

    Args:
        friction: α; without momenta (0) the noise of a single step counts.
        steps_of_an_epoch: K; None for independent batches.

    Examples:
        >>> cancellation(0.1, None)
        1.0
        >>> round(cancellation(0.1, 5), 2)
        0.18
    """
    if not friction or steps_of_an_epoch is None or not 1 < steps_of_an_epoch < _LONG_EPOCH / friction:
        return 1.0
    k, steps = math.exp(-friction), steps_of_an_epoch
    weights = k ** torch.arange(steps, dtype=torch.float64)
    squares = steps / (steps - 1) * (weights - weights.mean()).square().sum()
    found = 0.0
    for used in range(1, steps + 1):
        now = torch.zeros(steps, dtype=torch.float64)
        now[:used] = weights[:used]
        present = steps / (steps - 1) * (now - now.mean()).square().sum()
        found += float(present + k ** (2 * used) * squares / (1 - k ** (2 * steps))) / steps
    return found * (1 - k**2)


class SiteMasses(Adapter[IterationSettings], Observer):
    """Masses of sites, each a scalar, adapted in windows of warm-up and constant afterwards.

    A window estimates each mass from the states at the ends of its iterations alone, with one additional gradient for
    each, on the next batch. The initial masses follow from gradients and curvatures at the initial position.

    Args:
        problem: target, initial values and minibatches.
        mechanics: mechanics of all blocks.
        plan: schedules of temperatures, and the effect of gradient noise on the kernel.
        warmup_steps: iterations of warm-up.

    Attributes:
        mass: mass of each site, scalars by name.
        noise_share: share of gradient noise in each mass.
        temperature: temperature of the momenta of each site in the last window, relative to τ.
        metrics: masses of all blocks.
    """

    changing = ("mass", "noise_share", "temperature", "_sums", "_count", "_heated")

    def __init__(self, problem: Problem, mechanics: ProductMechanics, plan: StepSchedules, warmup_steps: int) -> None:
        self._problem, self._mechanics, self._plan = problem, mechanics, plan
        self._heating = plan.heating
        if problem.is_subsampled:
            self._heating *= cancellation(plan.friction, problem.batched.batches.steps_of_an_epoch)
        self._windows = windows(warmup_steps)
        self._ends = [window.stop for window in self._windows]
        self._sizes = {name: value[0].numel() for name, value in problem.initial_values.items()}
        self._degrees: dict[str, int] = {}
        self._own_curvature: dict[str, float] = {}
        for block, move in mechanics.items():
            self._describe(block, problem.position[block], isinstance(move, EuclideanMechanics))
        value = next(iter(problem.initial_values.values()))
        ones = {name: value.new_ones(()) for name in self._sizes}
        self.mass = dict(ones)
        self.noise_share, self.temperature = {name: 0 * x for name, x in ones.items()}, dict(ones)
        self._begin_window()
        self._use(self.mass)
        self._start(problem)

    def _describe(self, block: Block, position: Tensor, euclidean: bool) -> None:
        if euclidean:
            self._degrees |= {name: self._sizes[name] for name in block}
            self._own_curvature |= dict.fromkeys(block, 0.0)
            return
        degrees = self._mechanics[block].degrees_of_freedom(position)
        self._degrees[block[0]] = degrees
        self._own_curvature[block[0]] = degrees / max(float(position[0].square().sum()), 1e-30)

    def _begin_window(self) -> None:
        kinds = ("squares", "curvature", "rows", "noise", "temperature")
        self._sums = {kind: {name: torch.zeros_like(x) for name, x in self.mass.items()} for kind in kinds}
        self._count = self._heated = 0

    @property
    def scales(self) -> dict[str, float]:
        """Scale of each site, one over the root of its mass, as in the argument ``scales`` of kernels."""
        return {name: float(mass.rsqrt()) for name, mass in self.mass.items()}

    def contribute(self, settings: IterationSettings, iteration: int) -> IterationSettings:
        """Add the masses; momenta are redrawn where these changed at the end of the previous iteration."""
        return settings._replace(metrics=self.metrics, fresh_momenta=iteration - 1 in self._ends)

    # ---- estimation ---------------------------------------------------------------------------------------------

    def learn(self, seen: WarmUpIteration) -> None:
        self._add(seen.after, seen.random, self._temperatures(seen.number, seen.before, seen.after))

    def end_window(self, seen: WarmUpIteration) -> None:
        stage: Stage = "final" if seen.number == self._ends[-1] else "early"
        step_size = self._plan.at(max(0, seen.after.steps - 1)).step_size
        self._end_window(len(seen.after.energy), stage, self._plan.squared_time(step_size))

    def _temperatures(self, iteration: int, before: StochasticState, after: StochasticState) -> dict[str, Tensor]:
        """Return the temperature of each site in an iteration, relative to τ; none where their sums begin again."""
        temperature = self._plan.at(max(0, after.steps - 1)).temperature
        if iteration & (iteration - 1) == 0 or not temperature:
            return {}
        steps = {block: (x - before.heat[block]) / self._plan.num_steps for block, x in after.heat.items()}
        unit = temperature * self._plan.momentum_variance
        found = {name: x / unit for name, x in self._of_sites(steps, by_degree=False).items()}
        euclidean = {name for block in self._problem.layout.groups for name in block}
        return {name: x / self.mass[name] if name in euclidean else x for name, x in found.items()}

    def _start(self, problem: Problem) -> None:
        """Set masses by a few probes at the initial position, each with the scales that the previous ones found."""
        position = problem.position
        for number in range(_PROBES):
            energy, gradient = problem.at_step(number)(position)
            self._add(StochasticState(position, {}, energy, gradient, number, {}, {}, 0), problem.random, {})
            if self._count:
                self._use({name: self._curvatures(name, "initial")[0] for name in self.mass})
            self._begin_window()

    def _add(self, state: StochasticState, random: torch.Generator, heat: dict[str, Tensor]) -> None:
        plan, position = self._plan.at(max(0, state.steps - 1)), state.position
        τ = plan.temperature or 1.0  # a descent has no temperature
        gradient = self._mechanics.restore_momentum(position, state.gradient)
        curvature, rows = self._curvature(state, gradient, random)
        found = {"squares": self._squared(position, gradient), "curvature": curvature, "rows": rows}
        if self._problem.is_subsampled:
            another = self._problem.at_step(state.steps + 1)(position)[1]
            another = self._mechanics.restore_momentum(position, another)
            difference = {block: (x - another[block]) / 2**0.5 for block, x in gradient.items()}
            found["noise"] = self._squared(position, difference)
            found["squares"] = {name: (x - found["noise"][name]).clamp(min=0) for name, x in found["squares"].items()}
        if not all(bool(x.isfinite()) for values in found.values() for x in values.values()):
            return
        self._count += 1
        found["temperature"] = heat
        self._heated += bool(heat)
        shares = {"noise": 1 / τ, "squares": self._plan.squared_time(plan.step_size) ** 2}
        for kind, values in found.items():
            share = shares.get(kind, 1.0)
            self._sums[kind] |= {name: self._sums[kind][name] + share * x for name, x in values.items()}

    def _curvature(
        self, state: StochasticState, gradient: Blocks, random: torch.Generator
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return mean curvature and squared norm of the Hessian's rows of each site, by one random velocity v.

        v is drawn at the present masses, so that no site dominates it. Along the path of v, the second derivative of U
        has the mean tr(H)/m.
        """
        position, move, metrics = state.position, self._mechanics, self.metrics
        momentum = move.momentum_from(move.noise(position, random), position, metrics)
        time = self._time_of_probe(state)
        near, carried = move.drift(position, momentum, metrics, time)
        there = move.restore_momentum(near, self._problem.at_step(state.steps)(near)[1])
        before, after = self._slopes(position, momentum, gradient), self._slopes(near, carried, there)
        curvature = {name: (after[name] - x) / time * self.mass[name] for name, x in before.items()}
        back = move.restore_momentum(position, there)
        rows = self._squared(position, {block: (back[block] - x) / time for block, x in gradient.items()})
        return curvature, {name: x * self.mass[name] for name, x in rows.items()}

    def _time_of_probe(self, state: StochasticState) -> float:
        """Return a short time, in which sites move by more than rounding errors and at most by a tenth of a scale."""
        sites = self._problem.layout.unpack(state.position)
        far = [float(x.abs().max() * self.mass[name].sqrt()) for name, x in sites.items() if x.numel()]
        smallest = torch.finfo(state.energy.dtype).eps ** 0.5
        return min(smallest * max([1.0, *far]), 0.1)

    def _slopes(self, position: Blocks, momentum: Blocks, gradient: Blocks) -> dict[str, Tensor]:
        """Return the mean over chains of the slope of U along the velocity of each site, per degree of freedom."""
        products = {
            block: gradient[block] * move.velocity(position[block], momentum[block], self.metrics[block])
            for block, move in self._mechanics.items()
        }
        return self._of_sites(products)

    def _of_sites(self, values: Blocks, *, by_degree: bool = True) -> dict[str, Tensor]:
        """Return sums over the coordinates of each site, per degree of freedom if asked, as means over chains."""
        found: dict[str, Tensor] = {}
        for block, x in values.items():
            if isinstance(self._mechanics[block], EuclideanMechanics):
                each = x.mean(0).split([self._sizes[name] for name in block])
                found |= {name: part.sum() / max(1, self._sizes[name]) for name, part in zip(block, each, strict=True)}
            else:
                total = x.flatten(1).sum(1).mean()
                found[block[0]] = total / max(1, self._degrees[block[0]]) if by_degree else total
        return found

    def _squared(self, position: Blocks, covector: Blocks) -> dict[str, Tensor]:
        """Return the mean over chains of twice the kinetic energy of each site at unit mass, per degree of freedom."""
        one = Metric(*[next(iter(position.values())).new_ones(1)] * 2)
        return self._of_sites(
            {
                block: covector[block].square()
                if isinstance(move, EuclideanMechanics)
                else 2 * move.kinetic_energy(position[block], covector[block], one).unsqueeze(1)
                for block, move in self._mechanics.items()
            }
        )

    def _curvatures(self, name: str, stage: Stage) -> tuple[Tensor, Tensor]:
        """Return the mass of a site by the formula, and the part of it that is due to noise."""
        sums = {kind: values[name] / self._count for kind, values in self._sums.items()}
        noise, rows = self._heating * sums["noise"], sums["rows"].sqrt()
        own = self._own_curvature[name]
        mean = torch.maximum(sums["curvature"] + own, _LEAST_CURVATURE * rows)
        curvature = rows + own if stage == "initial" else mean
        smooth = curvature + sums["squares"]
        noise = noise.clamp(max=_MOST_NOISE_BEFORE * smooth) if stage != "final" else noise
        return smooth + noise, noise

    def _end_window(self, chains: int, stage: Stage, squared_time: float) -> None:
        if self._count:
            found = {name: self._curvatures(name, stage) for name in self.mass}
            self.noise_share = {name: noise / mass.clamp(min=1e-30) for name, (mass, noise) in found.items()}
            if self._heated:
                self.temperature = {name: x / self._heated for name, x in self._sums["temperature"].items()}
            masses = {name: self._estimate(name, mass, self._count * chains) for name, (mass, _) in found.items()}
            if stage == "final" and self._heated:
                samples, accepted = self._count * chains, max(_ACCEPTED_EXCESS, squared_time)
                masses = {name: self._cooled(name, mass, samples, accepted) for name, mass in masses.items()}
            self._use(masses)
        self._begin_window()

    def _estimate(self, name: str, found: Tensor, samples: int) -> Tensor:
        """Return the mass of a site, shrunk in logarithms to the previous one, which may be far too large."""
        previous = self.mass[name]
        found = torch.where(found > 0, found, previous)
        samples *= max(1, self._degrees[name])
        weight = samples / (samples + _WEIGHT_OF_PREVIOUS)
        return found**weight * previous ** (1 - weight)

    def _cooled(self, name: str, mass: Tensor, samples: int, accepted: float) -> Tensor:
        """Return at least the mass that reduces the measured excess temperature to the accepted one.

        The measured one is less two standard errors. Only after the last window, for chains that approach the typical
        set are hot at any mass.
        """
        samples *= max(1, self._degrees[name])
        forgotten = math.tanh(self._plan.friction) if self._plan.friction else 1.0
        independent = samples * self._heated / self._count * max(1.0, self._plan.num_steps * forgotten)
        excess = self.temperature[name] - 1 - 2 * (2 / independent) ** 0.5
        needed = self.mass[name] * excess / accepted
        return torch.where(excess > accepted, torch.clamp(needed, mass, _LARGEST_FACTOR * mass), mass)

    # ---- use ----------------------------------------------------------------------------------------------------

    def _use(self, mass: dict[str, Tensor]) -> None:
        usable = {name: bool(x.isfinite()) and bool(x > 0) for name, x in mass.items()}
        self.mass = {name: x if usable[name] else self.mass[name] for name, x in mass.items()}
        self.metrics = site_metrics(self._problem, {name: 1 / x for name, x in self.mass.items()})

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        self._use(self.mass)

    def diagnostics_entries(self) -> dict[str, Any]:
        """Return the entry ``"site_scales"`` of `MCMC.diagnostics`, by site."""
        return {
            "site_scales": {
                name: {"scale": scale, "mass": float(self.mass[name]), "noise_share": float(self.noise_share[name])}
                for name, scale in self.scales.items()
            }
        }

    def summary_lines(self) -> list[str]:
        """Return a line for `MCMC.summary`."""
        each = [f"{name} {scale:.3g}" for name, scale in self.scales.items()]
        rest = f" and {len(each) - 8} more" if len(each) > 8 else ""
        return [f"Scales of sites from warm-up: {', '.join(each[:8])}{rest}"]


def site_metrics(problem: Problem, inverse_mass: dict[str, Tensor]) -> Metrics:
    """Return the metrics of blocks, from one inverse mass for each site."""
    values = problem.initial_values
    each = {name: x.to(values[name]).expand_as(values[name][:1]) for name, x in inverse_mass.items()}
    return {
        block: Metric.from_inverse_mass(x.flatten()[:1] if block in problem.manifolds else x.contiguous())
        for block, x in problem.layout.pack(each).items()
    }
