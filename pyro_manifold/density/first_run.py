"""The first run of a model with its arguments, before anything is traced, and checks of its density."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint

from pyro_manifold.density.causes import Arguments, ModelError, SiteRecorder, explained, version, wrong_shape
from pyro_manifold.density.distribution_parts import parts
from pyro_manifold.density.own_supports import too_wide
from pyro_manifold.density.sites import is_deterministic
from pyro_manifold.distributions import manifold_of, of_elements, off_manifold

Run = Callable[[Callable[[], Any]], poutine.Trace]
"""Function that runs a program once, with all of its sites in a trace."""


def first_trace(program: Callable[[], Any], run: Run, arguments: Arguments) -> poutine.Trace:
    """Run a model once, evaluate its log density, and raise known errors.

    Args:
        program: the model with its arguments.
        run: how to run it: initial values, handlers, validation.
        arguments: arguments of the model, by name.

    Returns:
        The trace, with log densities where they could be computed.

    Raises:
        ValueError: if the model fails for a known reason, changes the value of a site or an argument in place, or
            observes NaN, values off a manifold or a column in place of a vector.

    Warns:
        UserWarning: for observed values outside of another support, and for supports that a class declares too wide.
    """
    witness = SiteRecorder()
    before = {name: (value, version(value)) for name, value in arguments.items() if torch.is_tensor(value)}
    with explained(arguments, witness):
        trace = run(witness(program))
    witness.check_values()
    _check_arguments(before, lambda: run(program))
    _check_shapes(trace)
    outside = off_support(trace, lambda: run(program))
    _check_density(trace, witness, arguments, outside)
    for sentence in [*outside, *too_wide(trace)]:
        warnings.warn(sentence, stacklevel=3)
    return trace


def has_improper(trace: poutine.Trace) -> bool:
    """Return whether a site has an improper prior, which has no draws."""
    sites = (site for site in trace.nodes.values() if site["type"] == "sample")
    return any(isinstance(part, ImproperUniform) for site in sites for part in parts(site["fn"]))


def plate_nesting(trace: poutine.Trace) -> int:
    """Return the number of dimensions that the plates of a model take."""
    sites: Any = (site for site in trace.nodes.values() if site["type"] == "sample")
    frames = (frame for site in sites for frame in site["cond_indep_stack"] if frame.vectorized)
    return max((-frame.dim for frame in frames), default=0)


def _check_density(trace: poutine.Trace, witness: SiteRecorder, arguments: Arguments, outside: list[str]) -> None:
    """Compute log densities; raise a sentence for failures whose cause is known.

    All other failures may be due to this draw alone, such as a matrix that is not positive definite.
    """
    try:
        with explained(arguments, witness), pyro.validation_enabled(False):
            trace.compute_log_prob()
    except Exception as error:
        if outside:
            raise ValueError(outside[0]) from error
        if isinstance(error, ModelError):
            raise


def _check_arguments(before: Mapping[str, tuple[Tensor, int | None]], again: Callable[[], Any]) -> None:
    """Raise ValueError if another run of the model finds other data."""
    changed = {name: value for name, (value, of_it) in before.items() if version(value) != of_it}
    copies = {name: value.detach().clone() for name, value in changed.items()}
    if not changed:
        return
    again()
    for name, value in changed.items():
        if not torch.equal(value.detach(), copies[name]):
            raise ValueError(
                f"The model changes its argument {name} in place, so that the data differ between calls: copy it "
                f"first, {name} = {name}.clone()."
            )


def _check_shapes(trace: poutine.Trace) -> None:
    """Raise ValueError for data of another shape than their distribution, as a column for a vector."""
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and _has_data(site) and (sentence := wrong_shape(name, site)):
            raise ValueError(sentence)


def off_support(trace: poutine.Trace, again: Callable[[], poutine.Trace]) -> list[str]:
    """Return a sentence for each site that is observed outside its support.

    Supports that differ in another run of the model, because they depend on what is sampled, are left out.

    Raises:
        ValueError: for NaN, and for values off a manifold.
    """
    found = {}
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and _has_data(site) and torch.is_tensor(site["value"]):
            _check_nan(name, site["value"])
            sentence = _outside(name, site)
            if sentence:
                found[name] = sentence
    other = again().nodes if found else {}
    return [
        sentence
        for name, sentence in found.items()
        if name in other and _same(_support(trace.nodes[name]), _support(other[name]))
    ]


def _has_data(site: Mapping[str, Any]) -> bool:
    return bool(site["is_observed"]) and not is_deterministic(site)


def _check_nan(name: str, value: Tensor) -> None:
    if value.is_floating_point() and value.isnan().any():
        raise ValueError(
            f"Site '{name}' is observed with {int(value.isnan().sum())} NaN of {value.numel()} values: "
            "drop them, make them latent, or replace them by any number and mask the site "
            "(a NaN spoils the gradient even under a mask)."
        )


def _outside(name: str, site: Mapping[str, Any]) -> str | None:
    """Return a sentence on unmasked observed values outside the support; raise ValueError if off a manifold."""
    support, value = of_elements(_support(site)), site["value"]
    try:
        inside = support.check(value)
    except Exception:  # there is no support, or it cannot be checked for such values
        return None
    for mask in masks(site, inside):
        inside = inside | ~mask
    if bool(inside.all()):
        return None
    if manifold_of(support) is not None and value.dim() >= support.event_dim:
        raise ValueError(f"Site '{name}' is observed off its manifold: {off_manifold(value, support)}.")
    return (
        f"Site '{name}': {int((~inside).sum())} of {inside.numel()} observed values are outside the support {support}: "
        "check the data, or if the formula of the density is meant there, write "
        f"pyro.factor('{name}', distribution.log_prob(value))."
    )


def _support(site: Mapping[str, Any]) -> Any:
    try:
        return site["fn"].support if isinstance(site["fn"], Distribution) else None
    except NotImplementedError:
        return None


def masks(site: Mapping[str, Any], inside: Tensor) -> list[Tensor]:
    """Return the masks of the handler and of the distribution's parts, each to be broadcast with ``inside``.

    A mask has an entry for each event of the part to which it belongs; an event may be several of the values compared.
    """
    value, found = site["value"], [(site["mask"], site["fn"])]
    found += [(getattr(part, "_mask", None), part) for part in parts(site["fn"])]
    spread = []
    for mask, part in found:
        if mask is not None:
            mask = torch.as_tensor(mask, dtype=torch.bool, device=inside.device)
            inner = inside.dim() - (value.dim() - part.event_dim)
            spread.append(mask.reshape(mask.shape + (1,) * max(inner, 0)) if mask.dim() else mask)
    return spread


def _same(one: Any, other: Any) -> bool:
    """Return whether two supports are equal, parameters included; a support may depend on what is sampled."""
    if isinstance(one, Constraint):
        return type(one) is type(other) and _same(list(vars(one).values()), list(vars(other).values()))
    if torch.is_tensor(one):
        return torch.is_tensor(other) and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
