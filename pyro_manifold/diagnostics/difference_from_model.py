"""Comparison of draws of any origin with the model that they are from: sites, shapes, dtypes and manifolds."""

from __future__ import annotations

from collections.abc import Mapping

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program, Sites, Target, bounds
from pyro_manifold.distributions import of_elements
from pyro_manifold.manifolds import Manifold


def latent_sites(target: Target) -> set[str]:
    """Return the names of the sites with a density, without those that are functions of them."""
    return {*target.manifolds, *target.transforms}


def as_in_model(target: Target, draws: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return draws ``{site: (chains, draws, ...)}`` in the dtypes of a model, which other programs may not have.

    Raises:
        ValueError: if they differ from values of its sites in anything else.

    Examples:
        >>> from pyro_manifold.manifolds import Stiefel
        >>> target = Target(lambda sites: sites["U"].sum(), {"U": Stiefel()}, {})
        >>> as_in_model(target, {"U": 2 * torch.eye(3, 1).expand(4, 10, 3, 1)})
        Traceback (most recent call last):
        ValueError: draws of 'U' are off the Stiefel manifold by 3.0e+00
    """
    missing = sorted(latent_sites(target) - set(draws))
    if missing:
        raise ValueError(
            f"there are no draws of {missing}, which the model samples (save_params may have left them out, or their "
            "data are missing: Program(model, (y,)))"
        )
    values = _values(target)
    for name, like in values.items():
        found, expected = tuple(draws[name].shape[2:]), tuple(like.shape)
        if found != expected:
            raise ValueError(f"draws of '{name}' have shape {found}, and values of the model {expected}")
    for name, manifold in target.manifolds.items():
        value = draws[name]
        value = value[value.isfinite().flatten(2).all(2)]
        error = float(manifold.membership_error(value).max()) if len(value) else 0.0
        if not error <= manifold.membership_tolerance(value.dtype):
            raise ValueError(f"draws of '{name}' are off the {type(manifold).__name__} manifold by {error:.1e}")
    if all(draws[name].dtype == like.dtype for name, like in values.items()):
        return draws
    return {name: _in_dtype_of(values.get(name), value, target.manifolds.get(name)) for name, value in draws.items()}


def _in_dtype_of(like: Tensor | None, value: Tensor, manifold: Manifold | None) -> Tensor:
    if like is None or value.dtype == like.dtype:
        return value
    value = value.to(like.dtype)
    # Points of float32 are off the manifold by more than rounding in float64.
    return value if manifold is None else manifold.restoration(value)


def _values(target: Target) -> Sites:
    """Return a value of each site; none for a density without initial values."""
    try:
        with torch.random.fork_rng(devices=[]):
            return target.values(target.draw())
    except Exception:  # a model can fail in any way, and this is to explain another failure
        return {}


def check_bounds(program: Program, draws: Mapping[str, Tensor]) -> None:
    """Raise ValueError if draws are beyond the bounds of a site's support, as those of unconstrained space are.

    Supports that depend on other sites, or have no bounds, are not checked; those without have other shapes in
    unconstrained space, except for the real numbers.
    """
    if program.loader is not None:  # the model cannot be run without its batches
        return
    target = program.target
    names = sorted(set(target.transforms) - set(target.dependent))
    with pyro.validation_enabled(False):
        nodes = program.trace({name: draws[name][0, 0] for name in latent_sites(target)}).nodes
    for name in names:
        support = of_elements(nodes[name]["fn"].support)
        interval = bounds(support)
        if interval is None:
            continue
        low, high = interval
        value = draws[name]
        outside = int(((value < low) | (value > high)).sum())  # a bound itself may be reached by rounding
        if outside:
            raise ValueError(
                f"{outside} of {value.numel()} values of '{name}' are outside of its support, {support} (are they of "
                "unconstrained space?)"
            )
