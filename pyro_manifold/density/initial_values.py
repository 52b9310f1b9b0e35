"""Initial values of the chains of a target: drawn or given, on their manifolds, with finite energy and gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_manifold.compiled import reason
from pyro_manifold.density.batched import Sites
from pyro_manifold.density.causes import is_about_dtypes
from pyro_manifold.density.target import Target

_MAXIMUM_DRAWS = 100


class NoFiniteStartError(ValueError):
    """Error if no draw has a finite density and gradient."""


def initial_values(target: Target, chains: int, initial_params: Sites | None) -> Sites:
    """Return initial positions ``{site: (chains, ...)}``, each manifold site on its manifold.

    Raises:
        ValueError: if given values name other sites than the target, or are off their manifold.
    """
    if initial_params is None:
        draws = [target.draw() for _ in range(chains)]
        positions = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    else:
        target.check(initial_params)
        initial_params = target.started(initial_params)
        positions = {name: initial_params[name].detach() for name in sorted(initial_params)}
    _check_membership(target, positions)
    return _widened(target, positions)


def finite_values(
    target: Target, positions: Sites, redraw: bool, potential: Callable[[Sites], tuple[Tensor, Sites]]
) -> Sites:
    """Redraw positions whose energy or gradient is not finite.

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
                positions[name][chain] = _cast(target, name, value, positions[name].dtype)
        _check_membership(target, positions)
    culprits = target.not_finite()
    where = f"; the log density of {sorted(culprits)} is not finite there" if culprits else ""
    where += "".join(f", and {parameter}" for parameter in culprits.values() if parameter)
    raise NoFiniteStartError(
        f"{_describe(energy, gradient, failed[0])} at each of {_MAXIMUM_DRAWS} initial draws{where}: "
        "check the data and the supports, or pass init_strategy or initial_params that start where the density "
        "is positive."
    )


def _widened(target: Target, positions: Sites) -> Sites:
    """Cast the positions to the dtype of the density: sites in float32 and data in float64 make that float64."""
    try:
        with torch.no_grad():
            energy = target.potential_fn({name: value[0] for name, value in positions.items()})
    except Exception as error:  # any other error of the density is raised where all chains are evaluated
        if is_about_dtypes(error):
            found = ", ".join(f"'{name}' is {value.dtype}" for name, value in positions.items())
            raise ValueError(
                f"The density mixes dtypes at the initial values ({reason(error)}), where {found}: convert "
                "initial_params and the other tensors of the density to one dtype."
            ) from error
        return positions
    if not torch.is_tensor(energy) or not energy.is_floating_point():
        return positions
    wide = {name: torch.promote_types(value.dtype, energy.dtype) for name, value in positions.items()}
    return {name: _cast(target, name, value, wide[name]) for name, value in positions.items()}


def _cast(target: Target, name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    if value.dtype == dtype:
        return value
    manifold = target.manifolds.get(name)
    return value.to(dtype) if manifold is None else manifold.projection(value.to(dtype))


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
