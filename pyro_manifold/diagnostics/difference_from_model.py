"""Comparison of draws of any origin with the model that they are from: sites, shapes, dtypes and manifolds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.density import Sites, Target


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
    missing = sorted({*target.manifolds, *target.transforms} - set(draws))
    if missing:
        raise ValueError(
            f"there are no draws of {missing}, which the model samples (save_params may have left them out)"
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
    return {name: value.to(values[name].dtype) if name in values else value for name, value in draws.items()}


def _values(target: Target) -> Sites:
    """Return a value of each site; none for a density without initial values."""
    try:
        with torch.random.fork_rng(devices=[]):
            return target.values(target.draw())
    except Exception:  # a model can fail in any way, and this is to explain another failure
        return {}
