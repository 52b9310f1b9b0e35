"""Known causes of errors inside a model, reported as sentences.

A user's model can fail in any way, inside torch too. If the cause is known, such as NumPy arrays,
mixed dtypes or parameters out of their range, the error is replaced by a sentence that names the site or argument. All
other errors are passed on unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.distributions import Unit, constraints
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.constraints import Constraint
from torch.distributions.utils import lazy_property

from pyro_manifold.compiled import broadcast_shapes, reason
from pyro_manifold.density.distribution_parts import parts
from pyro_manifold.density.supports import without_map

Arguments = dict[str, Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arguments_by_name(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return all arguments by name, or by position if the model's signature does not name them."""
    try:
        names = [
            name for name, parameter in inspect.signature(model).parameters.items() if parameter.kind in _POSITIONAL
        ]
    except (TypeError, ValueError):
        names = []
    names += [f"args[{place}]" for place in range(len(names), len(args))]
    return {**dict(zip(names, args, strict=False)), **kwargs}


class ModelError(ValueError):
    """Error of a model whose cause is known."""


class SiteRecorder(Messenger):
    """Record the sites of a run, and which of them was the last."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[str, Any] | None = None
        self.sites: dict[str, tuple[dict[str, Any], int | None]] = {}
        self.not_a_tensor: str | None = None

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        self.last = msg
        if msg["is_observed"]:
            self._check_is_tensor(msg, "is observed with")

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        self._check_is_tensor(msg, "gets from init_strategy")
        if torch.is_tensor(msg["value"]):
            self.sites[msg["name"]] = (msg, version(msg["value"]))

    def _check_is_tensor(self, msg: dict[str, Any], verb: str) -> None:
        no_tensor = _is_foreign(msg["value"]) or isinstance(msg["value"], Real | np.generic)
        if no_tensor and not msg["infer"].get("_deterministic"):
            given = "value.to_numpy()" if hasattr(msg["value"], "to_numpy") else "value"
            found = f"Site '{msg['name']}' {verb} a {_kind(msg['value'])}"
            self.not_a_tensor = f"{found}, expected a tensor: pass torch.as_tensor({given})."
            raise TypeError(self.not_a_tensor)

    def latent(self) -> dict[str, Tensor]:
        """Return the values of the sites that were sampled."""
        sites = {name: site for name, (site, _) in self.sites.items() if not poutine.util.site_is_subsample(site)}
        return {name: site["value"] for name, site in sites.items() if not site["is_observed"]}

    def check_values(self) -> None:
        """Raise ValueError if the value of a site was changed in place since it was sampled or observed."""
        for name, (site, before) in self.sites.items():
            if version(site["value"]) != before:
                raise ValueError(
                    f"Site '{name}': the model changes its value in place, and the density would be that of another "
                    "value: compute a new tensor (x = x * scale instead of x *= scale; x.clone() before x[0] = ...)."
                )


def version(value: Tensor) -> int | None:
    """Return the version counter of a tensor, which counts changes in place; None for a tensor of inference mode."""
    return None if value.is_inference() else value._version


@contextmanager
def explained(arguments: Arguments, witness: SiteRecorder | None = None) -> Iterator[None]:
    """Replace errors of a model whose cause is known by a sentence.

    Args:
        arguments: arguments of the model, by name.
        witness: record of the run.

    Raises:
        ModelError: with the sentence.
    """
    witness = witness or SiteRecorder()
    try:
        yield
    except Exception as error:
        if witness.not_a_tensor:
            raise ModelError(witness.not_a_tensor) from None
        for cause in (
            _foreign_arguments(error, arguments),
            _mixed_dtypes(error, witness, arguments),
            _at_site(error, witness),
            _shapes(error, witness),
        ):
            if cause:
                raise ModelError(cause) from error
        raise


def _is_foreign(value: object) -> bool:
    """Return whether a value holds numbers outside a tensor, such as an array or a data frame."""
    if isinstance(value, list | tuple):
        return any(isinstance(part, Real | np.ndarray) and not isinstance(part, Integral) for part in value)
    return isinstance(value, np.ndarray) or (hasattr(value, "to_numpy") and not torch.is_tensor(value))


def _kind(value: object) -> str:
    module = type(value).__module__.split(".")[0]
    return type(value).__name__ if module == "builtins" else f"{module}.{type(value).__name__}"


def _foreign_arguments(error: Exception, arguments: Arguments) -> str | None:
    foreign = {name: _kind(value) for name, value in arguments.items() if _is_foreign(value)}
    if not foreign or not isinstance(error, TypeError | AttributeError):
        return None
    name, found = next(iter(foreign)), ", ".join(f"{name} ({kind})" for name, kind in foreign.items())
    return (
        f"The model fails ({reason(error)}) with arguments that are not tensors, {found}: pass {name} = "
        f"torch.as_tensor({name}, dtype=torch.get_default_dtype())."
    )


def is_about_dtypes(error: Exception) -> bool:
    """Return whether torch raised the error because dtypes differ."""
    return isinstance(error, RuntimeError) and any(word in reason(error) for word in ("dtype", "scalar type"))


def _mixed_dtypes(error: Exception, witness: SiteRecorder, arguments: Arguments) -> str | None:
    if not is_about_dtypes(error):
        return None
    tensors = {f"argument {name}": value for name, value in arguments.items() if torch.is_tensor(value)}
    tensors |= {f"site '{name}'": value for name, value in witness.latent().items()}
    found = "".join(f"; {name} is {value.dtype}" for name, value in tensors.items())
    return (
        f"The model mixes dtypes ({reason(error)}){found}: convert the data to the dtype of the sites, such as "
        "y.to(torch.get_default_dtype()), or call torch.set_default_dtype(torch.float64) before the model is made, if "
        "its data are float64."
    )


def _at_site(error: Exception, witness: SiteRecorder) -> str | None:
    """Describe the error at the last site that the model reached; None if its cause is not known."""
    site = witness.last
    if site is None:
        return None
    if isinstance(error, ZeroDivisionError) and poutine.util.site_is_subsample(site):
        return (
            f"Plate '{site['name']}' has no elements, and Pyro's plates need one: check the data, or leave the plate "
            "and its sites out where there are none."
        )
    if isinstance(error, NotImplementedError | ValueError) and not site["is_observed"]:
        sentence = without_map(site["name"], site["fn"]) if isinstance(site["fn"], Distribution) else None
        if sentence:
            return sentence
    if isinstance(error, NotImplementedError) and not site["is_observed"]:
        return (
            f"Site '{site['name']}' cannot be drawn from ({reason(error)}), to begin with: pass the kernel "
            f"init_strategy=init_to_value(values={{'{site['name']}': value}})."
        )
    wrong = wrong_parameters(site["fn"])
    return f"Site '{site['name']}': {wrong} ({reason(error)})." if wrong else None


def _shapes(error: Exception, witness: SiteRecorder) -> str | None:
    """Describe a mismatch of shapes between an observed value and its distribution; None if there is none."""
    if not isinstance(error, RuntimeError):
        return None
    observed = ((name, site) for name, (site, _) in witness.sites.items() if site["is_observed"])
    return next((sentence for name, site in observed if (sentence := wrong_shape(name, site))), None)


def wrong_shape(name: str, site: Mapping[str, Any]) -> str | None:
    """Return a sentence if an observed value has another shape than its distribution; None if one of them is repeated.

    A column and a vector have a common shape, in which each value would count for each entry of the other.
    """
    if not hasattr(site["fn"], "shape"):
        return None
    expected, found = tuple(site["fn"].shape()), tuple(torch.as_tensor(site["value"]).shape)
    try:
        if tuple(broadcast_shapes(expected, found)) in (expected, found):
            return None
    except ValueError:
        pass
    return (
        f"Site '{name}' is observed with a value of shape {found}, expected {expected}, the shape of its distribution "
        "and plates."
    )


def wrong_parameters(distribution: Any) -> str | None:
    """Return a clause that names a parameter of a distribution outside its constraint; None if each is inside."""
    for part in parts(distribution):
        for name, value, constraint in _parameters(part):
            try:
                inside = constraint.check(value)
            except Exception:  # a shape, dtype or type that cannot be checked
                continue
            if not bool(inside.all()):
                return (
                    f"{name} of {type(part).__name__} has {int((~inside).sum())} of {inside.numel()} values outside "
                    f"{constraint}"
                )
    return None


def _parameters(distribution: Any) -> Iterator[tuple[str, Tensor, Constraint]]:
    if isinstance(distribution, Unit):  # a term of `pyro.factor`, which has a value and no parameters to the user
        return
    of_kind: Mapping[str, Constraint] = getattr(distribution, "arg_constraints", None) or {}
    for name, constraint in of_kind.items():
        derived = name not in vars(distribution) and isinstance(getattr(type(distribution), name, None), lazy_property)
        if not derived and not constraints.is_dependent(constraint) and torch.is_tensor(getattr(distribution, name)):
            yield name, getattr(distribution, name), constraint
