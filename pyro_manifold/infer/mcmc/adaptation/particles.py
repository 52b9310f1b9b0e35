"""Adaptation of step sizes and masses of moves to the particles."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation.adapter import Adaptation, Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.mass_estimators import CurvatureEstimator, diagonal_inverse_mass
from pyro_manifold.infer.mcmc.adaptation.warmup import AdaptationSettings
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, Metric, Metrics, ProductMechanics, State
from pyro_manifold.infer.mcmc.transitions import Block, weyl_sequence
from pyro_manifold.manifolds import Manifold
from pyro_manifold.store import Serialisable

LENGTH = math.pi / 2
"""Mean trajectory length: a quarter of a period if masses fit, which gives independent draws from a Gaussian."""

MOST_STEPS = 64


def constant_gain(moves: int) -> float:
    """Gain of stochastic approximation where distributions change as fast as step sizes are adapted."""
    return 0.5


class GroupStepSizes(Adapter[HamiltonianSettings]):
    """Step size ε of each group of chains, adapted to the acceptance probability by stochastic approximation.

    Args:
        step_size: initial ε.
        energy: energies of the chains, ``(groups · chains,)``.
        groups: number of groups.
        target: target acceptance probability.
        gain: function from the number of moves so far to the change of log ε per deviation of the acceptance
            probability.

    Attributes:
        logarithm: log ε, ``(groups,)``.
        chains: number of chains of a group.
    """

    changing = ("logarithm", "_moves")

    def __init__(
        self, step_size: float, energy: Tensor, groups: int, target: float, gain: Callable[[int], float]
    ) -> None:
        self.chains, self._target, self._gain = len(energy) // groups, target, gain
        self.restart(energy.new_full((groups,), math.log(step_size)))

    def restart(self, logarithm: Tensor) -> None:
        """Begin again from these values of log ε."""
        self.logarithm, self._moves = logarithm, 0

    def contribute(self, settings: HamiltonianSettings, iteration: int) -> HamiltonianSettings:
        return settings._replace(step_size=self.logarithm.exp().repeat_interleave(self.chains))

    def learn(self, seen: WarmUpIteration) -> None:
        acceptance = seen.statistics["acceptance_rate"].reshape(-1, self.chains).mean(1)
        self.logarithm = self.logarithm + self._gain(self._moves) * (acceptance - self._target)
        self._moves += 1


class GroupMasses(Adapter[HamiltonianSettings]):
    """Masses of each group of chains, estimated from all of its chains and iterations together.

    For unconstrained blocks they are those of `DiagonalEstimator`, but from all particles together (in contrast to the
    variance of x alone, this is robust to several modes). For a block on a manifold, the mass is the mean curvature
    (see `CurvatureEstimator`).

    Args:
        state: initial state of the chains, ``(groups · chains, ...)``, from which the first masses are estimated.
        groups: number of groups.
        curvature: for each block on a manifold, a function from positions and gradients to mean curvatures,
            ``(groups · chains,)``.

    Attributes:
        inverse_masses: inverse masses of all blocks, ``(groups, ...)``.
        metrics: current masses, with a row for each chain.
    """

    changing = ("inverse_masses", "_count", "_moments", "_origin")

    def __init__(
        self, state: State, groups: int, curvature: Mapping[Block, Callable[[Tensor, Tensor], Tensor]]
    ) -> None:
        self._groups, self._curvature = groups, curvature
        self._chains = len(state.energy) // groups
        self.inverse_masses = {
            block: x.new_ones(groups, *([] if block in curvature else x.shape[1:]))
            for block, x in state.position.items()
        }
        self._origin = {block: x[:1] for block, x in state.position.items()}
        self._begin_window()
        self.update(state)
        self.estimate()

    def contribute(self, settings: HamiltonianSettings, iteration: int) -> HamiltonianSettings:
        return settings._replace(metrics=self.metrics)

    def learn(self, seen: WarmUpIteration) -> None:
        self.update(seen.after)

    def update(self, state: State) -> None:
        """Add the states of one iteration."""
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
            means = [value.reshape(self._groups, self._chains, *value.shape[1:]).mean(1) for value in found]
            self._moments[block] = tuple(a + b for a, b in zip(moments, means, strict=True))

    def estimate(self) -> None:
        """Set the masses to the estimates of all iterations since the last estimate, and begin again."""
        for block, moments in self._moments.items():
            if block in self._curvature:
                self.inverse_masses[block] = 1 / (moments[0] / self._count)
                continue
            x, squares, gradient, gradient_squares = (value / self._count for value in moments)
            variance, force = squares - x.square(), gradient_squares - gradient.square()
            self.inverse_masses[block] = diagonal_inverse_mass(
                variance.clamp(min=0), force.clamp(min=0), self._count * self._chains
            )
        self.use(self.inverse_masses)
        self._begin_window()

    def use(self, inverse_masses: dict[Block, Tensor]) -> None:
        """Use given inverse masses, ``(groups, ...)``."""
        self.inverse_masses = inverse_masses
        self.metrics: Metrics = {
            block: Metric.from_inverse_mass(mass.repeat_interleave(self._chains, 0))
            for block, mass in inverse_masses.items()
        }

    def _begin_window(self) -> None:
        self._count = 0
        self._moments: dict[Block, tuple[Tensor, ...]] = {
            block: tuple(torch.zeros_like(mass) for _ in range(1 if block in self._curvature else 4))
            for block, mass in self.inverse_masses.items()
        }

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        self.use(self.inverse_masses)


class ParticleTuning(Adaptation[HamiltonianSettings]):
    """Adaptation of step size and masses to the particles, separately for each run.

    The step size is adapted after every move of all particles. Masses for the moves of a level are estimated from the
    particles of the previous level.

    Args:
        state: initial state of the chains, ``(runs · chains, ...)``.
        runs: number of runs.
        curvature: for each block on a manifold, a function from positions and gradients to mean curvatures.
        step_size: initial ε.
        length: mean trajectory length.
        jitter: lengths vary by at most this fraction of their mean.
        target: target acceptance probability of the adaptation of ε.
        gain: gain of the adaptation of ε; see `GroupStepSizes`.

    Attributes:
        step_sizes: adapter of step sizes.
        masses: adapter of masses.
    """

    def __init__(
        self,
        state: State,
        runs: int,
        curvature: Mapping[Block, Callable[[Tensor, Tensor], Tensor]],
        *,
        step_size: float,
        length: float | None,
        jitter: float,
        target: float,
        gain: Callable[[int], float] = constant_gain,
    ) -> None:
        self._length, self._jitter = length or LENGTH, jitter
        self.step_sizes = GroupStepSizes(step_size, state.energy, runs, target, gain)
        self.masses = GroupMasses(state, runs, curvature)
        super().__init__([range(sys.maxsize)], {"step_sizes": self.step_sizes, "masses": self.masses})

    @property
    def example(self) -> HamiltonianSettings:
        """Settings of a typical iteration."""
        return self.settings(1)

    def learn_cost(self, fixed_cost: float) -> None:
        """Do nothing, since trajectory lengths do not depend on the cost."""

    def initial_settings(self, iteration: int) -> HamiltonianSettings:
        """Return the number of steps of this iteration.

        Raises:
            RuntimeError: if the step size is too small for floating point.
        """
        length = self._length * (1 + self._jitter * (2 * weyl_sequence(iteration) - 1))
        step_size = float(self.step_sizes.logarithm.mean().exp())
        if not step_size > length * torch.finfo(torch.float64).tiny:
            raise RuntimeError(
                f"SMC: the step size of the particles fell to {step_size:.1e}, because no step is accepted: the "
                "scales of prior and likelihood are too different for floating point, so choose a narrower prior "
                "or rescale the data."
            )
        return HamiltonianSettings(step_size, min(max(round(length / step_size), 1), MOST_STEPS), {})

    def end_level(self) -> None:
        """Set masses to the estimates of this level."""
        self.masses.estimate()


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
        {block: estimator.curvature for block, estimator in estimators.items()},
        step_size=min(plan.step_size, LENGTH / 8),
        length=length,
        jitter=plan.trajectory_jitter,
        target=plan.target_accept_prob,
    )
