"""Where the chains of a target begin: drawn or given, on their manifolds, with finite energy and gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Target

_MAXIMUM_DRAWS = 100


class NoFiniteStartError(ValueError):
    """No draw has a finite density and gradient."""


def initial_values(target: Target, chains: int, initial_params: Sites | None) -> Sites:
    """Positions ``{site: (chains, ...)}`` to begin with, each manifold site on its manifold.

    Raises:
        ValueError: if given values name other sites than the target, or are off their manifold.
    """
    if initial_params is None:
        draws = [target.draw() for _ in range(chains)]
        positions = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    else:
        target.check(initial_params)
        positions = {name: initial_params[name].detach() for name in sorted(initial_params)}
    _check_membership(target, positions)
    return positions


def finite_values(
    target: Target, positions: Sites, redraw: bool, potential: Callable[[Sites], tuple[Tensor, Sites]]
) -> Sites:
    """The same positions, drawn again where energy or gradient is not finite.

    Raises:
        ValueError: if no draw is finite, or a given value (``redraw`` False) is not.
    """
    for _ in range(_MAXIMUM_DRAWS):
        energy, gradient = potential(positions)
        finite = torch.isfinite(energy)
        for value in gradient.values():
            finite = finite & torch.isfinite(value).reshape(len(value), -1).all(1)
        failed = (~finite).nonzero().flatten().tolist()
        if not failed:
            return positions
        if not redraw:
            raise ValueError(
                f"{_describe(energy, gradient, failed[0])} at the given initial_params: "
                "check the data for NaN and infinities, and start where the density is positive."
            )
        for chain in failed:
            for name, value in target.draw().items():
                positions[name][chain] = value
        _check_membership(target, positions)
    culprits = target.not_finite()
    where = f"; the log density of {culprits} is not finite there" if culprits else ""
    raise NoFiniteStartError(
        f"{_describe(energy, gradient, failed[0])} at each of {_MAXIMUM_DRAWS} initial draws{where}: "
        "check the data and the supports, or pass init_strategy or initial_params that start where the density "
        "is positive."
    )


def _check_membership(target: Target, positions: Sites) -> None:
    for name, manifold in target.manifolds.items():
        value, kind = positions[name], type(manifold).__name__
        event = value.shape[max(value.dim() - manifold.event_dim, 1) :]
        if not manifold.accepts_shape(*event) or not value.is_floating_point():
            raise ValueError(
                f"Site '{name}': the initial value has shape {tuple(value.shape[1:])} and dtype {value.dtype}, "
                f"expected a floating-point tensor whose last dimensions are the shape of a point of {kind}() "
                f"({manifold.shape_in_words})."
            )
        error = float(manifold.membership_error(value).max())
        tolerance = manifold.membership_tolerance(value.dtype)
        if not error <= tolerance:
            raise ValueError(
                f"Site '{name}': the initial value is off the {kind} manifold by {error:.1e}, more than "
                f"{tolerance:.1e} for {value.dtype}: pass {kind}().projection(value) instead."
            )


def _describe(energy: Tensor, gradient: Sites, chain: int) -> str:
    if not torch.isfinite(energy[chain]):
        return f"The potential energy is {float(energy[chain])}"
    names = sorted(name for name, value in gradient.items() if not torch.isfinite(value[chain]).all())
    return f"The gradient of the potential energy with respect to {names} is not finite"
