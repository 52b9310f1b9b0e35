"""Warm start from the step size, masses and trajectory length of an earlier run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.adaptation import CovarianceEstimator, DiagonalEstimator, Estimators, InverseMassEstimator
from pyro_manifold.infer.mcmc.checks import check_positive
from pyro_manifold.infer.mcmc.transitions import Block, Blocks


@dataclass(frozen=True)
class Tuning:
    """Step size, masses and trajectory length of a run, as returned by ``mcmc.kernel.tuning``.

    Attributes:
        step_size: ε.
        inverse_mass_matrix: inverse mass of each block, as in ``mcmc.kernel.inverse_mass_matrix``: a vector or matrix
            for a group of sites, or the rows of a low-rank one; for a manifold site a number, or
            ``(chains, matrices * (p + 1))``. The key of a block of one site may be the site's name. Blocks that are
            missing have the default initial masses.
        trajectory_length: mean integration time; None to adapt it.
        centredness: c of each element of sites that warm-up centred otherwise than written; see `CentredTarget`.

    Raises:
        ValueError: for values that are not positive.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> model = lambda: pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 5.0])).to_event(1))
        >>> tuning = Tuning(0.8, {"x": torch.tensor([1.0, 25.0])}, trajectory_length=2.0)
        >>> mcmc = MCMC(OHMC(model, tuning=tuning), 10, 0, num_chains=4, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.kernel.step_size
        0.8
    """

    step_size: float
    inverse_mass_matrix: Mapping[Any, Tensor | float]
    trajectory_length: float | None = None
    centredness: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_positive(step_size=self.step_size)
        if self.trajectory_length is not None:
            check_positive(trajectory_length=self.trajectory_length)
        if not isinstance(self.inverse_mass_matrix, Mapping):
            raise ValueError(
                f"inverse_mass_matrix={self.inverse_mass_matrix!r}, expected {{block: tensor}}, as in "
                "kernel.inverse_mass_matrix after a run."
            )

    def numbers(self) -> dict[Block, Any]:
        """Return the inverse masses as given, converted such that equal values compare equal."""
        of_sites: dict[Block, Any] = {("centredness", name): c for name, c in self.centredness.items()}
        given: dict[Block, Any] = {**self._by_block(), **of_sites}
        return {
            block: torch.as_tensor(x).detach().cpu().double() if isinstance(x, Tensor | Real) else x
            for block, x in given.items()
        }

    def _by_block(self) -> dict[Block, Any]:
        return {(name,) if isinstance(name, str) else tuple(name): x for name, x in self.inverse_mass_matrix.items()}

    def inverse_masses(self, make: Estimators) -> Blocks:
        """Return the inverse masses ``(1 or chains, ...)`` of the blocks of a run.

        If the number of chains differs, masses of columns are averaged over chains, since the order of columns in a
        chain is arbitrary.

        Raises:
            ValueError: if they do not match the blocks; the message names the block.
        """
        given = self._by_block()
        unknown = sorted(set(given) - set(make))
        if unknown:
            raise ValueError(f"inverse_mass_matrix names {unknown}, but the blocks that move together are {[*make]}.")
        return {block: _fitted(block, value, make[block]()) for block, value in given.items()}


def as_tuning(step_size: float, inverse_mass_matrix: object, tuning: object) -> Tuning | None:
    """Return the `Tuning` given by the user's arguments, or None if there is none."""
    if tuning is None:
        return None if inverse_mass_matrix is None else Tuning(step_size, inverse_mass_matrix)  # type: ignore[arg-type]
    if not isinstance(tuning, Tuning):
        raise ValueError(f"tuning={tuning!r}, expected mcmc.kernel.tuning of an earlier run.")
    if inverse_mass_matrix is not None or step_size != 1:
        raise ValueError(
            "tuning already contains step_size and inverse_mass_matrix: pass either tuning or these arguments."
        )
    return tuning


def _fitted(block: Block, given: object, estimator: InverseMassEstimator) -> Tensor:
    try:
        value = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"inverse_mass_matrix[{block}] is {given!r:.60}, expected a tensor.") from None
    size = estimator.initial().shape[-1]
    if (
        isinstance(estimator, DiagonalEstimator | CovarianceEstimator)
        and value.dim() == 2
        and len(value[0]) == 1 + size
    ):
        warnings.warn(
            f"The directions across {list(block)} of the earlier run are not used, since this kernel has none across "
            "the same sites: trajectories may take more steps.",
            stacklevel=2,
        )
        value = value[0, 1:]
    try:
        return estimator.fitted(value)
    except ValueError as error:
        raise ValueError(f"inverse_mass_matrix[{block}] has {error}.") from None
