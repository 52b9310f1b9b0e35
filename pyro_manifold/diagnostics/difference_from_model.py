"""Comparison of draws of any origin with the model that they are from: sites, shapes, dtypes and manifolds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyro_manifold.density import Sites, Target


def difference_from_model(target: Target, draws: Mapping[str, Tensor]) -> str | None:
    """Describe how draws ``{site: (chains, draws, ...)}`` differ from values of the sites of a model; None if they fit.

    Examples:
        >>> from pyro_manifold.manifolds import Stiefel
        >>> target = Target(lambda sites: sites["U"].sum(), {"U": Stiefel()}, {})
        >>> difference_from_model(target, {"U": 2 * torch.eye(3, 1).expand(4, 10, 3, 1)})
        "draws of 'U' are off the Stiefel manifold by 3.0e+00"
    """
    missing = sorted({*target.manifolds, *target.transforms} - set(draws))
    if missing:
        return f"there are no draws of {missing}, which the model samples (save_params may have left them out)"
    for name, like in _values(target).items():
        found, expected = tuple(draws[name].shape[2:]), tuple(like.shape)
        if found != expected:
            return f"draws of '{name}' have shape {found}, and values of the model {expected}"
    for name, manifold in target.manifolds.items():
        value = draws[name]
        value = value[value.isfinite().flatten(2).all(2)]
        error = float(manifold.membership_error(value).max()) if len(value) else 0.0
        if not error <= manifold.membership_tolerance(value.dtype):
            return f"draws of '{name}' are off the {type(manifold).__name__} manifold by {error:.1e}"
    return None


def in_dtypes_of(target: Target, draws: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the draws in the dtypes of the model, as those of programs that compute in float32 may have others."""
    dtypes = {name: like.dtype for name, like in _values(target).items()}
    if all(draws[name].dtype == dtype for name, dtype in dtypes.items() if name in draws):
        return draws
    return {name: value.to(dtypes.get(name, value.dtype)) for name, value in draws.items()}


def _values(target: Target) -> Sites:
    """Return a value of each site; none for a density without initial values."""
    try:
        with torch.random.fork_rng(devices=[]):
            return target.values(target.draw())
    except Exception:  # a model can fail in any way, and this is to explain another failure
        return {}
