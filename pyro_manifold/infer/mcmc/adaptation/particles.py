"""Adaptation of step sizes and masses of moves to the particles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.mass_estimators import CurvatureEstimator, diagonal_inverse_mass
from pyro_manifold.infer.mcmc.adaptation.warmup import AdaptationSettings
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, Metric, Metrics, ProductMechanics, State
from pyro_manifold.infer.mcmc.transitions import Block, Statistics, weyl_sequence
from pyro_manifold.manifolds import Manifold
from pyro_manifold.store import Saved, Serialisable

LENGTH = math.pi / 2
"""Mean trajectory length: a quarter of a period if masses fit, which gives independent draws from a Gaussian."""

MOST_STEPS = 64
_GAIN = 0.5


class ParticleTuning(Saved):
    r"""Adaptation of step size and masses, separately for each run of particles.

    Masses for the moves of a level are estimated from the particles of the previous level. For unconstrained blocks
    they are those of `DiagonalEstimator`, but from all particles together (in contrast to the variance of x alone, this
    is robust to several modes). For a block on a manifold, the mass is the mean curvature (see `CurvatureEstimator`).
    The step size is adapted to the acceptance probability by stochastic approximation, after every move of all
    particles.

    Args:
        state: initial state of the chains, ``(runs · chains, ...)``.
        runs: number of runs.
        mechanics: mechanics of each block.
        curvature: for each block on a manifold, a function from positions and gradients to mean curvatures,
            ``(runs · chains,)``.
        step_size: initial ε.
        length: mean trajectory length.
        jitter: lengths vary by at most this fraction of their mean.
        target: target acceptance probability of the adaptation of ε.
    """

    changing: ClassVar[tuple[str, ...]] = ("_log_step_size", "_inverse_masses", "_count", "_moments", "_origin")

    def __init__(
        self,
        state: State,
        runs: int,
        mechanics: ProductMechanics,
        curvature: dict[Block, Callable[[Tensor, Tensor], Tensor]],
        *,
        step_size: float,
        length: float | None,
        jitter: float,
        target: float,
    ) -> None:
        self._runs, self._mechanics, self._curvature = runs, mechanics, curvature
        self._length, self._jitter, self._target = length or LENGTH, jitter, target
        self._chains = len(state.energy) // runs
        self._log_step_size = state.energy.new_full((runs,), math.log(step_size))
        self._inverse_masses = {
            block: x.new_ones(runs, *([] if block in curvature else x.shape[1:])) for block, x in state.position.items()
        }
        self._origin = {block: x[:1] for block, x in state.position.items()}
        self._forget()
        self._take_in(state)
        self.end_level()

    @property
    def step_size(self) -> Tensor:
        """Step size ε of each run, ``(runs,)``."""
        return self._log_step_size.exp()

    @property
    def metrics(self) -> Metrics:
        """Current masses, with a row for each chain."""
        return self._metrics

    @property
    def example(self) -> HamiltonianSettings:
        """Settings of a typical iteration."""
        return self.settings(1)

    def learn_cost(self, fixed_cost: float) -> None:
        """Do nothing, since trajectory lengths do not depend on the cost."""

    def settings(self, iteration: int) -> HamiltonianSettings:
        """Return the settings of the moves of this iteration, counted from 1."""
        length = self._length * (1 + self._jitter * (2 * weyl_sequence(iteration) - 1))
        step_size = float(self._log_step_size.mean().exp())
        if not step_size > length * torch.finfo(torch.float64).tiny:
            raise RuntimeError(
                f"SMC: the step size of the particles fell to {step_size:.1e}, because no step is accepted: the "
                "scales of prior and likelihood are too different for floating point, so choose a narrower prior "
                "or rescale the data."
            )
        steps = round(length / step_size)
        return HamiltonianSettings(
            self.step_size.repeat_interleave(self._chains), min(max(steps, 1), MOST_STEPS), self._metrics
        )

    def learn(
        self, iteration: int, before: State, after: State, statistics: Statistics, random: torch.Generator
    ) -> None:
        """Adapt to one move of all particles."""
        acceptance = statistics["acceptance_rate"].reshape(self._runs, -1).mean(1)
        self._log_step_size = self._log_step_size + self._gain * (acceptance - self._target)
        self._take_in(after)

    @property
    def _gain(self) -> float:
        """Gain of stochastic approximation: change of log ε per deviation of the acceptance probability."""
        return _GAIN

    def _take_in(self, state: State) -> None:
        if not self._count:
            self._origin = {block: x[:1] for block, x in state.position.items()}
        self._count += 1
        for block, moments in self._moments.items():
            x, gradient = state.position[block], state.gradient[block]
            if block in self._curvature:
                found = [self._curvature[block](x, gradient)]
            else:
                # Relative to one particle: far from zero, the variance would be lost to rounding of squares.
                x = x - self._origin[block]
                found = [x, x.square(), gradient, gradient.square()]
            means = [value.reshape(self._runs, self._chains, *value.shape[1:]).mean(1) for value in found]
            self._moments[block] = tuple(a + b for a, b in zip(moments, means, strict=True))

    def end_level(self) -> None:
        """Set masses to the estimates of this level, and reset the estimators."""
        for block, moments in self._moments.items():
            if block in self._curvature:
                curvature = moments[0] / self._count
                self._inverse_masses[block] = 1 / curvature
                continue
            x, squares, gradient, gradient_squares = (value / self._count for value in moments)
            variance, force = squares - x.square(), gradient_squares - gradient.square()
            self._inverse_masses[block] = diagonal_inverse_mass(
                variance.clamp(min=0), force.clamp(min=0), self._count * self._chains
            )
        self._use_masses()
        self._forget()

    def _use_masses(self) -> None:
        self._metrics = {
            block: Metric.from_inverse_mass(mass.repeat_interleave(self._chains, 0))
            for block, mass in self._inverse_masses.items()
        }

    def _forget(self) -> None:
        self._count = 0
        self._moments: dict[Block, tuple[Tensor, ...]] = {
            block: tuple(torch.zeros_like(mass) for _ in range(1 if block in self._curvature else 4))
            for block, mass in self._inverse_masses.items()
        }

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        self._use_masses()


def particle_tuning(
    plan: AdaptationSettings,
    runs: int,
    manifolds: Mapping[Block, Manifold],
    state: State,
    mechanics: ProductMechanics,
    _: object,
    kind: Callable[..., ParticleTuning] = ParticleTuning,
) -> ParticleTuning:
    """Return the adaptation for a kernel's plan and initial state, an instance of ``kind``."""
    estimators = {
        block: CurvatureEstimator(state.position[block], mechanics[block], m) for block, m in manifolds.items()
    }
    length = plan.trajectory_length or (plan.step_size * plan.num_steps if plan.num_steps else None)
    return kind(
        state,
        runs,
        mechanics,
        {block: estimator.curvature for block, estimator in estimators.items()},
        step_size=min(plan.step_size, LENGTH / 8),
        length=length,
        jitter=plan.trajectory_jitter,
        target=plan.target_accept_prob,
    )
