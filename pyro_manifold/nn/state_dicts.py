"""Values of the sites of a Bayesian network from the weights of the network that it was made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_manifold.manifolds import Stiefel
from pyro_manifold.nn.low_rank import LowRankLinear
from pyro_manifold.nn.orthogonal import _Orthogonal

_OWNER = "sites_from_state_dicts"

StateDict = Mapping[str, Tensor]


def sites_from_state_dicts(network: nn.Module, state_dicts: StateDict | Sequence[StateDict]) -> dict[str, Tensor]:
    r"""Return the weights of trained networks as values of the sites of the Bayesian network, to begin chains there.

    The state dicts are those of the torch network before `to_bayesian_` (of a copy, or saved): of one training, of
    several, or of draws by SWAG or a Laplace approximation.

    Sites that are parameters under another prior have the same value. Others have the nearest value that their layer
    allows, in the Frobenius norm: the ``basis`` of an orthogonal layer is the orthonormal factor of the polar
    decomposition of the weight, whose singular values are lost (a ``gain`` that is a site is their mean), and a
    `LowRankLinear` has the largest singular values and their vectors. A network with orthogonal layers is therefore
    another function than the one that was trained; with ``to_bayesian_(network, orthogonal=())`` it is the same.

    Args:
        network: the result of `to_bayesian_`, or a `PyroModule` with the layers of this package.
        state_dicts: one, or a sequence. Keys are those of the torch network, such as ``"0.weight"``; others, such as
            running statistics, are ignored.

    Returns:
        ``{site: (state dicts, ...)}``, also for a single one: for `pyro_manifold.infer.init_to_draws`, and without
        orthogonal layers for `pyro_manifold.infer.Predictive`.

    Raises:
        TypeError: if ``network`` is not a `PyroModule`.
        ValueError: if there are no state dicts, a key is missing, or a tensor has another shape.

    Examples:
        >>> import copy, torch
        >>> from torch import nn
        >>> from pyro_manifold.nn import to_bayesian_
        >>> trained = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3))
        >>> network = to_bayesian_(copy.deepcopy(trained))
        >>> values = sites_from_state_dicts(network, trained.state_dict())
        >>> {name: tuple(value.shape) for name, value in values.items()}
        {'0.basis': (1, 8, 4), '0.bias': (1, 4), '2.weight': (1, 3, 4), '2.bias': (1, 3)}
    """
    if not isinstance(network, PyroModule):
        raise TypeError(f"{_OWNER}: network is a {type(network).__name__}, expected the result of to_bayesian_.")
    several = [state_dicts] if isinstance(state_dicts, Mapping) else list(state_dicts)
    if not several or not all(isinstance(each, Mapping) for each in several):
        raise ValueError(f"{_OWNER}: state_dicts={state_dicts!r}, expected a state dict or a list of them.")
    found = [dict(_sites(network, each)) for each in several]
    return {name: torch.stack([values[name] for values in found]) for name in found[0]}


def _sites(network: nn.Module, state: StateDict) -> Iterator[tuple[str, Tensor]]:
    for prefix, module in network.named_modules():
        names = list(getattr(module, "_pyro_samples", ()))
        if not names:
            continue
        path = f"{prefix}." if prefix else ""
        derived = _derived(module, path, state)
        for name in names:
            yield path + name, derived[name] if name in derived else _parameter(path + name, state, module, name)


def _derived(module: nn.Module, path: str, state: StateDict) -> dict[str, Tensor]:
    """Return the values of the sites of a layer of this package that are computed from its weight."""
    if isinstance(module, _Orthogonal):
        return _orthogonal(module, _weight(f"{path}weight", state, path + "basis"))
    if isinstance(module, LowRankLinear):
        weight = _weight(f"{path}weight", state, path + "singular_values")
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = module.rank
        return {"left": left[:, :rank], "singular_values": values[:rank], "right": right[:rank].mT}
    return {}


def _orthogonal(module: _Orthogonal, weight: Tensor) -> dict[str, Tensor]:
    groups = getattr(module, "groups", 1)
    matrix = weight.flatten(1) if groups == 1 else weight.flatten(1).unflatten(0, (groups, -1))
    tall = matrix.mT if module._transposed else matrix
    if tall.shape != _shape(module, "basis"):
        raise ValueError(
            f"{_OWNER}: a weight of shape {tuple(weight.shape)} is given for {module}, expected the weight of a layer "
            "of the same sizes."
        )
    return {"basis": Stiefel().projection(tall), "gain": torch.linalg.svdvals(tall).mean()}


def _parameter(key: str, state: StateDict, module: nn.Module, name: str) -> Tensor:
    value = _weight(key, state, key)
    expected = _shape(module, name)
    if value.shape != expected:
        raise ValueError(
            f"{_OWNER}: '{key}' has shape {tuple(value.shape)}, expected {tuple(expected)} as in the network: "
            "pass a state dict of the same network."
        )
    return value


def _shape(module: Any, name: str) -> torch.Size:
    """Return the shape of a site of a module, whose prior is a distribution or a function of the module."""
    prior = module._pyro_samples[name]
    shape: torch.Size = (prior if hasattr(prior, "log_prob") else prior(module)).shape()
    return shape


def _weight(key: str, state: StateDict, site: str) -> Tensor:
    if key not in state:
        raise ValueError(
            f"{_OWNER}: site '{site}' needs '{key}', but the state dict has the keys {_some(state)}: pass that of the "
            "torch network before to_bayesian_ (of AveragedModel or DataParallel, that of .module)."
        )
    return state[key].detach().clone()


def _some(state: StateDict, most: int = 6) -> str:
    keys = list(state)
    return f"{keys}" if len(keys) <= most else f"{keys[:most]} and {len(keys) - most} more"
