"""Directions across the blocks of a problem: groups of blocks that have them, mechanics and estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from pyro_manifold.infer.mcmc.hmc.columns import ColumnMechanics
from pyro_manifold.infer.mcmc.hmc.low_rank_masses import LowRankEstimator
from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics
from pyro_manifold.infer.mcmc.hmc.product import ProductMechanics
from pyro_manifold.infer.mcmc.hmc.ridge_masses import DIRECTIONS_ACROSS, RidgeEstimator
from pyro_manifold.infer.mcmc.hmc.ridges import RidgeMechanics
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.states import Block
from pyro_manifold.manifolds import Stiefel

_MOST_COORDINATES = 100, 4000
"""Limits of the number of coordinates of a group that was not requested, in one chain and in all chains: eigenvalues of
its covariances are computed for each chain."""

_MOST_UNCONSTRAINED = 256, 10_000
"""The same limits for groups without matrices, for which all chains share one covariance."""


def correlated_groups(problem: Problem) -> tuple[tuple[Block, ...], ...]:
    """Return groups of blocks for adapted directions: all blocks with diagonal masses, if they are small enough.

    If there are manifolds, one of the blocks must be a site with orthonormal columns outside of plates.
    """
    layout, position = problem.layout, problem.position
    matrices = [
        block
        for block, manifold in problem.manifolds.items()
        if isinstance(manifold, Stiefel) and position[block].dim() == 3 and position[block][0].numel() > 1
    ]
    group = (*matrices, *(block for block in layout.groups if block not in layout.dense))
    numbers = sum(position[block][0].numel() for block in group)
    most, most_of_chains = _MOST_COORDINATES if problem.manifolds else _MOST_UNCONSTRAINED
    few = 1 < numbers <= most and numbers * problem.chains <= most_of_chains
    return (group,) if few and (matrices or not problem.manifolds) else ()


def with_ridges(problem: Problem, mechanics: ProductMechanics, groups: Iterable[tuple[Block, ...]]) -> RidgeMechanics:
    """Return mechanics with directions across the blocks of each group.

    Raises:
        ValueError: if a site of a group cannot have directions.
    """
    named: dict[Block, tuple[Block, ...]] = {(DIRECTIONS_ACROSS, *sum(group, ())): group for group in groups}
    for block in sum(named.values(), ()):
        if block not in problem.manifolds:
            continue
        if not isinstance(mechanics[block], CayleyMechanics | ColumnMechanics):
            raise ValueError(
                f"full_mass names '{block[0]}', a site on {problem.manifolds[block]!r}: directions across sites are "
                "supported only by OHMC and for sites with orthonormal columns: leave the site out of full_mass, "
                "so that it has its own masses."
            )
        if problem.position[block].dim() != 3:
            raise ValueError(
                f"full_mass names '{block[0]}', of shape {tuple(problem.position[block].shape[1:])}: expected a "
                "single matrix outside of plates: leave the site out of full_mass, so that it has its own masses."
            )
    return RidgeMechanics(mechanics, named)


def ridge_estimators(
    problem: Problem, groups: Mapping[Block, tuple[Block, ...]], optional: bool
) -> dict[Block, Callable[[], RidgeEstimator]]:
    """Return the factory of the estimator of the directions of each group."""
    return {
        key: partial(
            RidgeEstimator if any(block in problem.manifolds for block in group) else LowRankEstimator,
            group,
            problem.position,
            problem.manifolds,
            optional,
        )
        for key, group in groups.items()
    }
