"""Masses of all blocks and their adaptation in the windows of warm-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pyro_manifold.density import CENTREDNESS
from pyro_manifold.infer.mcmc.adaptation.adapter import Adapter, WarmUpIteration
from pyro_manifold.infer.mcmc.adaptation.low_rank_masses import LowRankEstimator
from pyro_manifold.infer.mcmc.adaptation.mass_estimators import (
    ColumnEstimator,
    CovarianceEstimator,
    CurvatureEstimator,
    DiagonalEstimator,
    InverseMassEstimator,
)
from pyro_manifold.infer.mcmc.mechanics import (
    ColumnMechanics,
    HamiltonianSettings,
    LowRankMechanics,
    Metrics,
    ProductMechanics,
)
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Problem
from pyro_manifold.store import Serialisable

Estimators = dict[Block, Callable[[], InverseMassEstimator]]
"""Factory of an empty estimator for each block."""


def estimators(problem: Problem, mechanics: ProductMechanics, low_rank_requested: bool = False) -> Estimators:
    """Return the estimators: (co)variances for unconstrained blocks, curvatures for blocks on manifolds."""
    position, layout = problem.position, problem.layout
    found: Estimators = {}
    for group in layout.groups:
        if isinstance(mechanics[group], LowRankMechanics):
            found[group] = partial(LowRankEstimator, position[group], not low_rank_requested)
        else:
            kind = CovarianceEstimator if group in layout.dense else DiagonalEstimator
            found[group] = partial(kind, position[group])
    for block, manifold in problem.manifolds.items():
        if isinstance(mechanics[block], ColumnMechanics):
            found[block] = partial(ColumnEstimator, position[block])
        else:
            found[block] = partial(CurvatureEstimator, position[block], mechanics[block], manifold)
    return found


class Masses(Adapter[HamiltonianSettings]):
    """Masses of all blocks, estimated in each window of warm-up but the first and the last.

    Momenta are fully refreshed whenever masses have changed.

    Args:
        make: factory of an empty estimator for each block.
        inverse_masses: initial inverse masses; those of the estimators for blocks that are not given.
        windows: windows of warm-up; none to keep the initial masses.

    Attributes:
        metrics: current masses.
        adapting: whether masses are estimated.
        change: factor by which the periods of coordinates, the roots of their masses, changed at the end of the last
            window: the exponential of the root mean square change of their logarithms.
        windows_completed: number of windows from which masses have been estimated.
    """

    changing = ("_inverse_masses", "_estimators", "_momenta_fit", "windows_completed")

    def __init__(self, make: Estimators, inverse_masses: Blocks | None = None, windows: Sequence[range] = ()) -> None:
        self._make, self._last, self.adapting = make, len(windows) - 1, bool(windows)
        self.windows_completed, self.change, self._momenta_fit = 0, 1.0, False
        self._begin_window()
        initial = {block: estimator.initial() for block, estimator in self._estimators.items()}
        self._use({**initial, **(inverse_masses or {})})

    def contribute(self, settings: HamiltonianSettings, iteration: int) -> HamiltonianSettings:
        persistence, self._momenta_fit = settings.persistence if self._momenta_fit else 0.0, True
        return settings._replace(metrics=self.metrics, persistence=persistence)

    def learn(self, seen: WarmUpIteration) -> None:
        if 0 < seen.window < self._last:
            self.update(seen.after.position, seen.after.gradient)

    def end_window(self, seen: WarmUpIteration) -> None:
        if 0 < seen.window < self._last:
            self.estimate()

    def _begin_window(self) -> None:
        self._estimators = {block: new() for block, new in self._make.items()}

    def _use(self, inverse_masses: Blocks) -> None:
        self._inverse_masses = inverse_masses
        self.metrics: Metrics = {
            block: self._estimators[block].metric(value) for block, value in inverse_masses.items()
        }

    @property
    def inverse_mass_matrix(self) -> Blocks:
        """Inverse mass of each block, as in `InverseMassEstimator.reported`."""
        masses = {block: x for block, x in self._inverse_masses.items() if block != (CENTREDNESS,)}
        return {block: self._estimators[block].reported(value) for block, value in masses.items()}

    def update(self, position: Blocks, gradient: Blocks) -> None:
        """Add the states of one iteration."""
        for block, estimator in self._estimators.items():
            estimator.update(position[block], gradient[block])

    def estimate(self) -> None:
        """Set the masses to the estimates of the window, and begin a new one."""
        before = self._log_periods()
        self._use_estimates()
        self.windows_completed += 1
        self.change = float((self._log_periods() - before).square().mean().sqrt().exp())

    def estimate_from(self, positions: Sequence[Blocks], gradients: Sequence[Blocks]) -> None:
        """Set the masses to the estimates from other states, after a change of coordinates."""
        self._begin_window()
        for each in zip(positions, gradients, strict=True):
            self.update(*each)
        self._use_estimates()

    def _use_estimates(self) -> None:
        estimates = {block: estimator.estimate() for block, estimator in self._estimators.items()}
        self._begin_window()
        self._use(estimates)
        self._momenta_fit = False

    def _log_periods(self) -> Tensor:
        """Compute the log period of each coordinate, averaged over chains, up to a constant independent of masses."""
        diagonals = [self._estimators[block].diagonal(value) for block, value in self._inverse_masses.items()]
        return torch.cat([-0.5 * each.log().mean(0).flatten() for each in diagonals])

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        super().load_state_dict(saved)
        self._use(self._inverse_masses)
