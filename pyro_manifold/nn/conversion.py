"""Conversion of an existing network to a Bayesian one, with a prior for every parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Literal

from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedParameter

from pyro_manifold.nn.checks import check_gain, check_positive, is_positive
from pyro_manifold.nn.orthogonal import OrthogonalConv2d, OrthogonalLinear
from pyro_manifold.nn.priors import NormalPrior, remember_placement

Chosen = Literal["hidden"] | type | tuple[type, ...] | Collection[str] | Callable[[str, nn.Module], bool]
"""Choice of the layers that become orthogonal, see `to_bayesian_`."""

PriorScale = float | Callable[[str, nn.Parameter], float] | None

_OWNER = "to_bayesian_"
_OUTPUT_SCALE = 4.0  # chosen by python -m benchmarks.accuracy.networks.priors, see docs/how_to/networks.md
_LAYERS = (nn.Linear, nn.Conv2d)
_ORTHOGONAL = {nn.Linear, PyroModule[nn.Linear], nn.Conv2d, PyroModule[nn.Conv2d]}
_NORMALISATIONS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


def to_bayesian_(
    network: nn.Module,
    orthogonal: Chosen = "hidden",
    *,
    prior_scale: PriorScale = None,
    bias_scale: float = 1.0,
    gain: Any = None,
) -> PyroModule:
    r"""Give every parameter of a network a prior, **in place**, and make it a `PyroModule` as `to_pyro_module_` does.

    Some of the layers `torch.nn.Linear` and `torch.nn.Conv2d` are replaced by `OrthogonalLinear` and
    `OrthogonalConv2d`. All other parameters become sites with independent normal entries: of mean 0 and standard
    deviation 1/√fan-in for tensors of two or more dimensions (fan-in is the number of terms that one output sums, the
    product of all sizes but the first), so that inputs of variance 1 have outputs of variance 1; 4/√fan-in for the
    weight of the last Linear or Conv2d, so that a classifier can be certain; 1 for embeddings; and ``bias_scale`` for
    biases and other parameters of at most one dimension. The weights of normalisation layers have mean 1. Parameters
    with ``requires_grad=False`` are left unchanged; the values of all others are discarded. The dtype and device of
    each layer are kept, and follow later calls of ``.to(...)``.

    Args:
        network: a module; attributes of a `PyroModule` that are sites already are left unchanged.
        orthogonal: the layers that become orthogonal. ``"hidden"``: every Linear and Conv2d but the last, in the order
            of ``network.named_modules()``, whose outputs are not hidden and have a scale that the data determine. Or a
            type, or several, such as ``nn.Conv2d``; or names, such as ``["0", "body.2"]``; or a function of name and
            layer. ``()`` for none. Subclasses of the two layers are never replaced.
        prior_scale: standard deviation of the weights that are not orthogonal, or a function from name and parameter to
            it; None for the values above.
        bias_scale: standard deviation of biases, including those of orthogonal layers.
        gain: gain of the orthogonal layers, as in `OrthogonalLinear`; √2 keeps the variance through ReLU. None for
            $\sqrt{\max(1, \text{out} / \text{in})}$ of each layer, with which inputs of variance 1 have outputs of
            variance 1 (of a convolution, ``in`` is the size of a patch).

    Returns:
        The network.

    Raises:
        TypeError: if ``network`` is not a module.
        ValueError: if it has no parameters that could become sites, shares one between layers, has some without a
            shape, or has batch normalisation; or for arguments other than those above. The network is unchanged then.

    Examples:
        >>> import torch
        >>> from pyro import poutine
        >>> from torch import nn
        >>> network = to_bayesian_(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)))
        >>> network[0]
        OrthogonalLinear(8, 4, bias=True)
        >>> network(torch.randn(5, 8)).shape
        torch.Size([5, 3])
        >>> sorted(poutine.trace(network).get_trace(torch.randn(5, 8)).stochastic_nodes)
        ['0.basis', '0.bias', '2.bias', '2.weight']
    """
    parameters = _checked_parameters(network)
    check_positive(_OWNER, bias_scale=bias_scale)
    if gain is not None:
        check_gain(_OWNER, gain)
    replaced = _chosen(network, orthogonal)
    scales = {
        name: _scale(network, name, parameter, prior_scale, bias_scale)
        for name, parameter in parameters.items()
        if name.rpartition(".")[0] not in replaced
    }
    for name, layer in replaced.items():
        parent, _, child = name.rpartition(".")
        # setattr would move the layer to the end of a sequence that is already a PyroModule.
        network.get_submodule(parent)._modules[child] = _orthogonal(layer, gain, bias_scale)
    to_pyro_module_(network)
    for name, scale in scales.items():
        parent, _, own_name = name.rpartition(".")
        _give_prior(network.get_submodule(parent), own_name, scale)
    return network


def _checked_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are to become sites, by name; raise ValueError if the network cannot be converted."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"{_OWNER}: network is a {type(network).__name__}, expected a torch.nn.Module.")
    parameters: dict[str, nn.Parameter] = {}
    names: dict[int, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad or _of_pyro(network, name):
            continue
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{_OWNER}: '{name}' has no shape yet; run the network once on an example first.")
        if id(parameter) in names:
            raise ValueError(
                f"{_OWNER}: '{names[id(parameter)]}' and '{name}' are the same tensor and would become two "
                "independent sites; give each layer its own parameter."
            )
        names[id(parameter)], parameters[name] = name, parameter
    if not parameters:
        raise ValueError(f"{_OWNER}: network has no parameters with requires_grad=True, expected some to give a prior.")
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            raise ValueError(
                f"{_OWNER}: '{name}' normalises over the batch, so that the likelihood does not factorise over "
                "examples; use GroupNorm or LayerNorm, or call network.eval() first to use the running statistics."
            )
    return parameters


def _of_pyro(network: nn.Module, name: str) -> bool:
    """Return whether a parameter is the unconstrained value of a `PyroParam`."""
    parent, _, own_name = name.rpartition(".")
    return own_name.removesuffix("_unconstrained") in getattr(network.get_submodule(parent), "_pyro_params", ())


def _chosen(network: nn.Module, orthogonal: Chosen) -> dict[str, nn.Module]:
    """Return the layers to replace, by name."""
    layers = {name: part for name, part in network.named_modules() if name and isinstance(part, nn.Linear | nn.Conv2d)}
    able = {name: layer for name, layer in layers.items() if _can_be_replaced(layer)}
    if orthogonal == "hidden":
        return {name: able[name] for name in list(layers)[:-1] if name in able}
    if isinstance(orthogonal, type):
        return {name: layer for name, layer in able.items() if isinstance(layer, orthogonal)}
    if callable(orthogonal):
        return {name: layer for name, layer in able.items() if orthogonal(name, layer)}
    several = list(orthogonal) if isinstance(orthogonal, Collection) and not isinstance(orthogonal, str) else [None]
    types = tuple(kind for kind in several if isinstance(kind, type))
    names = {name for name in several if isinstance(name, str)}
    if len(types) + len(names) < len(several) or (types and names):
        raise ValueError(
            f"{_OWNER}: orthogonal={orthogonal!r}, expected 'hidden', types, a list of names or a function of name and "
            "layer."
        )
    unknown = sorted(names - set(able))
    if unknown:
        raise ValueError(
            f"{_OWNER}: orthogonal names {unknown}, but the layers Linear and Conv2d that can be replaced are "
            f"{list(able)}."
        )
    return {name: layer for name, layer in able.items() if name in names or isinstance(layer, types)}


def _can_be_replaced(layer: nn.Module) -> bool:
    """Return whether a layer is exactly a Linear or Conv2d that has its weight, with all parameters trainable."""
    free = all(parameter.requires_grad for parameter in layer.parameters())
    return type(layer) in _ORTHOGONAL and layer._parameters.get("weight") is not None and free


def _orthogonal(layer: Any, gain: Any, bias_scale: float) -> nn.Module:
    """Return the orthogonal layer that replaces a layer of `torch.nn`."""
    options: dict[str, Any] = {"bias": layer.bias is not None, "bias_scale": bias_scale}
    options["gain"] = _gain_that_keeps_variance(layer) if gain is None else gain
    options |= {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        new: nn.Module = OrthogonalLinear(layer.in_features, layer.out_features, **options)
    else:
        options |= {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        new = OrthogonalConv2d(layer.in_channels, layer.out_channels, layer.kernel_size, **options)
    return new.train(layer.training)


def _gain_that_keeps_variance(layer: Any) -> float:
    """Return the gain with which inputs of variance 1 have outputs of variance 1, see `OrthogonalLinear`."""
    outputs, *patch = layer.weight.shape
    return math.sqrt(max(1.0, outputs / getattr(layer, "groups", 1) / math.prod(patch)))


def _scale(network: nn.Module, name: str, parameter: nn.Parameter, prior_scale: PriorScale, bias_scale: float) -> float:
    """Return the standard deviation of the prior of a parameter."""
    if callable(prior_scale):
        scale = prior_scale(name, parameter)
        if not is_positive(scale):
            raise ValueError(f"{_OWNER}: prior_scale gives {scale!r} for '{name}', expected a positive number.")
        return float(scale)
    if prior_scale is not None:
        check_positive(_OWNER, prior_scale=prior_scale)
    if parameter.dim() < 2:
        return float(bias_scale)
    if prior_scale is not None:
        return float(prior_scale)
    if isinstance(network.get_submodule(name.rpartition(".")[0]), nn.Embedding | nn.EmbeddingBag):
        return 1.0
    layers = [f"{layer}.weight".lstrip(".") for layer, part in network.named_modules() if isinstance(part, _LAYERS)]
    scale = _OUTPUT_SCALE if layers and name == layers[-1] else 1.0
    return scale / math.sqrt(math.prod(parameter.shape[1:]))


def _give_prior(module: nn.Module, name: str, scale: float) -> None:
    parameter = module._parameters[name]
    assert parameter is not None
    mean = 1.0 if name == "weight" and isinstance(module, _NORMALISATIONS) else 0.0
    if "_placement" not in module._buffers:
        remember_placement(module, parameter.dtype, parameter.device)
    setattr(module, name, PyroSample(NormalPrior(tuple(parameter.shape), scale, mean)))
