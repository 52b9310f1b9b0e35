"""Warm-up: masses of every block, inside Pyro's schedule of windows and its dual averaging."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from pyro.infer.mcmc.adaptation import WarmupAdapter, adapt_window
from torch import Tensor

from pyro_manifold.infer.mcmc.leapfrog import Block, Blocks
from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metric
from pyro_manifold.manifolds import Manifold


class InverseMassEstimator(ABC):
    """Gathers the states of one warm-up window and turns them into an inverse mass."""

    @abstractmethod
    def initial(self) -> Tensor:
        """The inverse mass to begin with."""

    @abstractmethod
    def update(self, position: Tensor, gradient: Tensor) -> None:
        """Take in the states ``(chains, ...)`` of one iteration."""

    @abstractmethod
    def estimate(self) -> Tensor:
        """The inverse mass for the next window."""


class VarianceEstimator(InverseMassEstimator):
    """Posterior (co)variance within chains, shrunk a little towards a small constant as in Stan.

    Within chains: modes that different chains sit in must not pass for variance.

    Args:
        start: positions ``(chains, size)``.
        dense: estimate a full covariance instead of variances.
    """

    def __init__(self, start: Tensor, dense: bool) -> None:
        self._dense = dense
        ones = torch.ones_like(start[0])
        self._identity = ones.diag() if dense else ones
        self._count = 0
        self._mean = torch.zeros_like(start)
        self._squares = torch.zeros_like(self._identity)

    def initial(self) -> Tensor:
        return self._identity

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        before = position - self._mean
        self._mean = self._mean + before / self._count
        after = position - self._mean
        products = before.mT @ after if self._dense else (before * after).sum(0)
        self._squares = self._squares + products / len(position)

    def estimate(self) -> Tensor:
        weight = self._count / (self._count + 5.0)
        variance = self._squares / max(self._count - 1, 1)
        return weight * variance + 1e-3 * (1 - weight) * self._identity


class CurvatureEstimator(InverseMassEstimator):
    r"""One mass for a manifold block: mean curvature of the potential plus that of the manifold.

    In equilibrium :math:`E[\nabla U\,\nabla U^\top] = E[\nabla^2 U]`, so the squared tangent gradient per degree
    of freedom d estimates the mean curvature:

    .. math:: m = \frac{E\,2K_1(X, P_X \nabla U)}{d} + \frac{d}{\mathrm{tr}\,X^\top X},

    :math:`K_1` the kinetic energy at unit mass. The last term is the inverse variance of the uniform law, which
    keeps m positive for a flat potential. The variance of X would not do instead: for a site that jumps
    between symmetric modes it is that of the uniform law, however narrow each mode is.

    Args:
        start: positions ``(chains, ..., *event)``.
        mechanics: of the block, for its kinetic energy.
        manifold: of the block, for its dimension.
    """

    def __init__(self, start: Tensor, mechanics: Mechanics, manifold: Manifold) -> None:
        event = start.shape[start.dim() - manifold.event_dim :]
        self._mechanics = mechanics
        self._degrees_of_freedom = max(1, manifold.dimension(*event) * (start[0].numel() // event.numel()))
        self._own_curvature = self._degrees_of_freedom / start[0].square().sum()
        self._count = 0
        self._curvature = torch.zeros_like(self._own_curvature)

    def initial(self) -> Tensor:
        return 1 / self._own_curvature

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        unit = torch.ones_like(self._own_curvature)
        force = self._mechanics.kick(position, torch.zeros_like(position), gradient, 1.0)
        squares = 2 * self._mechanics.kinetic_energy(position, force, Metric(unit, unit))
        curvature = squares.mean() / self._degrees_of_freedom
        self._curvature = self._curvature + (curvature - self._curvature) / self._count

    def estimate(self) -> Tensor:
        return 1 / (self._curvature + self._own_curvature)


class StepSizeAdaptation(WarmupAdapter):
    """Pyro's windows and dual averaging, with more windows, and not led astray by a short last one.

    Stan's windows double, and the last takes in what does not fit: of 350 iterations, half belong to one window.
    While chains still travel to where they belong, old masses are wrong masses, so windows grow here by a half, and
    the first masses come after 50 iterations instead of 100. Runs too short for Stan's schedule follow Pyro's.

    Dual averaging tries steps far from its start at first, and its average needs some steps to forget them. After a
    window of a few steps half the step size at which the search crossed its threshold is the better one.
    """

    step_size: float
    _fewest_steps = 10
    _growth = 1.5

    def _build_adaptation_schedule(self) -> list[Any]:
        if self._warmup_steps < self._adapt_start_buffer + self._adapt_initial_window + self._adapt_end_buffer:
            return super()._build_adaptation_schedule()
        first = start = self._adapt_initial_window
        end = self._warmup_steps - self._adapt_end_buffer
        # As many windows as fit, then stretched to fill: sizes first · (1, g, g², …).
        count = int(math.log(1 + (end - start) * (self._growth - 1) / first) / math.log(self._growth))
        ends = [start + (end - start) * (self._growth**k - 1) / (self._growth**count - 1) for k in range(count + 1)]
        edges = [0, *(round(edge) for edge in ends), self._warmup_steps]
        return [adapt_window(left, right - 1) for left, right in pairwise(edges)]

    def reset_step_size_adaptation(self, z: Any) -> None:
        super().reset_step_size_adaptation(z)
        self._found_step_size: float = self.step_size
        self._steps_since_reset = 0

    def _update_step_size(self, accept_prob: Tensor) -> None:
        super()._update_step_size(accept_prob)
        self._steps_since_reset += 1

    def _end_adaptation(self) -> None:
        super()._end_adaptation()
        if self.adapt_step_size and self._steps_since_reset < self._fewest_steps:
            self.step_size = self._found_step_size / 2


class MassAdaptation:
    """Metrics of all blocks and their re-estimation.

    Stands where `pyro.infer.mcmc.adaptation.WarmupAdapter` expects its mass matrix adapter, so that Pyro's
    windows and step size adaptation drive it.

    Args:
        estimators: makes an empty estimator for each block.
    """

    def __init__(self, estimators: dict[Block, Callable[[], InverseMassEstimator]]) -> None:
        self._make = estimators
        self._estimators = {block: make() for block, make in estimators.items()}
        self.metrics = {
            block: Metric.from_inverse_mass(estimator.initial()) for block, estimator in self._estimators.items()
        }
        self.windows_completed = 0

    @property
    def inverse_mass_matrix(self) -> Blocks:
        return {block: metric.inverse_mass for block, metric in self.metrics.items()}

    def configure(self, mass_matrix_shape: Any, adapt_mass_matrix: bool = True, options: Any = None) -> None:
        """Part of Pyro's interface; shapes are known from the estimators."""

    def update(self, position: Blocks, gradient: Blocks) -> None:
        for block, estimator in self._estimators.items():
            estimator.update(position[block], gradient[block])

    def end_adaptation(self) -> None:
        for block, estimator in self._estimators.items():
            self.metrics[block] = Metric.from_inverse_mass(estimator.estimate())
            self._estimators[block] = self._make[block]()
        self.windows_completed += 1
