"""Warm start from the step size, masses and trajectory length of an earlier run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.checks import check_positive
from pyro_manifold.infer.mcmc.hmc.masses import Estimators, InverseMassEstimator
from pyro_manifold.infer.mcmc.hmc.ridge_masses import DIRECTIONS_ACROSS, RidgeEstimator
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks


@dataclass(frozen=True)
class Tuning:
    """Step size, masses and trajectory length of a run, as returned by ``mcmc.kernel.tuning``.

    Attributes:
        step_size: ε.
        inverse_mass_matrix: inverse mass of each block, as in ``mcmc.kernel.inverse_mass_matrix``: a vector or matrix
            for a group of sites; for a manifold site a number, or ``(chains, matrices * (p + 1))``. The key of a block
            of one site may be the site's name. Blocks that are missing have the default initial masses.
        trajectory_length: mean integration time; None to adapt it.

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
        return {
            block: torch.as_tensor(x).detach().cpu().double() if isinstance(x, Tensor | Real) else x
            for block, x in self._by_block().items()
        }

    def _by_block(self) -> dict[Block, Any]:
        return {(name,) if isinstance(name, str) else tuple(name): x for name, x in self.inverse_mass_matrix.items()}

    def inverse_masses(
        self, make: Estimators, across: Mapping[Block, Callable[[], RidgeEstimator]] | None = None
    ) -> Blocks:
        """Return the inverse masses ``(1 or chains, ...)`` of the blocks of a run.

        If the number of chains differs, masses of columns are averaged over chains, since the order of columns in a
        chain is arbitrary, and directions across blocks are left out, since their signs in a chain are.

        Raises:
            ValueError: if they do not match the blocks; the message names the block.
        """
        given = self._by_block()
        across = across or {}
        lost = [key for key in given if key[:1] == (DIRECTIONS_ACROSS,) and key not in across]
        if lost:
            warnings.warn(
                f"The directions across {list(lost[0][1:])} of the earlier run are not used, since this kernel has "
                "none across the same sites: trajectories may take more steps.",
                stacklevel=2,
            )
            given = {block: value for block, value in given.items() if block not in lost}
        unknown = sorted(set(given) - set(make) - set(across))
        if unknown:
            raise ValueError(f"inverse_mass_matrix names {unknown}, but the blocks that move together are {[*make]}.")
        return {
            block: _directions(block, value, across[block]())
            if block in across
            else _fitted(block, value, make[block]())
            for block, value in given.items()
        }


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


def _directions(key: Block, value: object, estimator: RidgeEstimator) -> Tensor:
    try:
        return estimator.fitted(_numbers(key, value))
    except ValueError as error:
        raise ValueError(f"inverse_mass_matrix[{key}] has {error}.") from None


def _numbers(block: Block, value: object) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"inverse_mass_matrix[{block}] is {value!r:.60}, expected a tensor.") from None


def _fitted(block: Block, given: object, estimator: InverseMassEstimator) -> Tensor:
    like = estimator.initial()
    value = _numbers(block, given).detach().to(like)
    shape = like.shape[1:]
    if value.dim() == 1 and len(shape) == 2:
        value = value.diag()
    if value.shape == shape:
        value = value.unsqueeze(0)
    if value.shape[1:] != shape or not len(value) or (len(like) == 1 and len(value) > 1 and shape):
        raise ValueError(
            f"inverse_mass_matrix[{block}] has the shape {tuple(value.shape)}, expected "
            f"{tuple(shape)}{', for each chain or for all chains' if len(like) > 1 else ''}."
        )
    if len(value) != len(like):
        value = (1 / (1 / value).mean(0, keepdim=True)).expand_as(like).contiguous()
    positive = torch.linalg.cholesky_ex(value)[1] == 0 if len(shape) == 2 else value > 0
    if not bool(positive.all() & value.isfinite().all()):
        raise ValueError(
            f"inverse_mass_matrix[{block}] has values that are not positive and finite, expected variances."
        )
    return value
