"""Square orthonormal matrices of a fit, which stays in the component of O(n) in which it begins."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions import manifold_of
from pyro_manifold.infer.svi.updates import torch_optimizer
from pyro_manifold.optim import RiemannianOptimizer, has_components


def warn_of_components(guide: Any, optim: Any) -> None:
    """Warn of sites and parameters that are square orthonormal matrices, whose determinants a fit does not change.

    Args:
        guide: the guide, after its first step.
        optim: the optimiser, after its first step.

    Warns:
        UserWarning: with the names, and the way to begin in the other component; parameters that a Riemannian optimiser
            moves along their manifold are left to its own warning.
    """
    sites = {
        name for name, site in _sites(guide).items() if has_components(manifold_of(site["fn"].support), site["value"])
    }
    store = pyro.get_param_store()
    for parameter in optim.optim_objs:
        name = store.param_name(parameter)
        constraint: Constraint | None = store._constraints.get(name)
        if name is None or constraint is None or not has_components(manifold_of(constraint), store[name]):
            continue
        own = torch_optimizer(optim, parameter)
        if isinstance(own, RiemannianOptimizer) and own.keeps(parameter):
            sites.discard(name.split(".")[-1])
        elif name.split(".")[-1] not in sites:
            sites.add(name)
    if sites:
        named = ", ".join(f"'{name}'" for name in sorted(sites))
        value = f"values={{'{min(sites)}': a matrix of the other determinant}}"
        warnings.warn(
            f"SVI: square orthonormal matrices ({named}) keep the determinant, 1 or -1, with which a fit begins (1 in "
            "Pyro's guides), and the maximum may have the other: fit from both, by "
            f"init_loc_fn=init_to_value({value}) of the guide or the initial value of a parameter, and keep the fit "
            "with the smaller loss.",
            stacklevel=3,
        )


def _sites(guide: Any) -> dict[str, Any]:
    trace = getattr(guide, "prototype_trace", None)
    return {} if trace is None else dict(trace.iter_stochastic_nodes())
