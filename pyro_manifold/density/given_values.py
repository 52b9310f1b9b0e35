"""Checks of the values that an initialisation strategy has for sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from pyro_manifold.density.sites import latent_sites


def check_names(init_strategy: Callable[..., Any], nodes: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError for a strategy whose values would be ignored.

    `init_to_value` may have values only for sites that are in a trace; of the draws of `init_to_draws`, which may come
    from a larger model, some have to be of these sites.
    """
    unknown = sorted(_given(init_strategy) - set(nodes))
    names: frozenset[str] = getattr(init_strategy, "names", frozenset())
    draws = sorted(names) if names and names.isdisjoint(nodes) else []
    if unknown or draws:
        has = f"init_to_value has values for {unknown}" if unknown else f"init_to_draws has draws only for {draws}"
        raise ValueError(f"{has}, but the model samples {list(latent_sites(nodes))}: give values under these names.")


def check_shape(name: str, site: Mapping[str, Any], value: Tensor) -> None:
    """Raise ValueError for an initial value that has not the shape of its site."""
    expected, found = site["fn"].shape(), value.shape
    if expected != found:
        each = found[1:] == expected
        remedy = f"; for a value of each chain use init_strategy=init_to_draws({{'{name}': values}})" if each else ""
        raise ValueError(
            f"Site '{name}': the initial value has shape {tuple(found)}, expected {tuple(expected)}{remedy}."
        )


def _given(init_strategy: Callable[..., Any]) -> set[str]:
    """Return the sites for which `init_to_value`, or one that it falls back to, has values."""
    if not isinstance(init_strategy, partial) or init_strategy.func is not init_to_value:
        return set()
    fallback = init_strategy.keywords.get("fallback")
    return set(init_strategy.keywords.get("values", {})) | (set() if fallback is None else _given(fallback))
