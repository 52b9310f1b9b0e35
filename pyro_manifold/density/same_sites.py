"""Check that a model has the same sites at all values; models with varying sites have no density for the samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger

from pyro_manifold.compiled import NotAFunctionError

_ADVICE = (
    "samplers need the same sites at each call: sample it in every run and switch its effect by torch.where, a mask or "
    "a factor of 0, or write its sum or integral into the likelihood (such as MixtureSameFamily)."
)


class OtherSitesError(NotAFunctionError):
    """Error of a model whose sites differ between runs; Pyro's list of trace shapes is removed from the message."""

    def __init__(self, message: str) -> None:
        super().__init__(message.partition("\nTrace Shapes:")[0])


@dataclass(frozen=True)
class Prototype:
    """The sites of a model in one run.

    Attributes:
        shapes: shapes of latent sites, ``{name: shape}``; None for those that are summed out.
        observed: names of observed sites and factors; None if these may differ from run to run, as with an `if` in the
            likelihood. They may not if Pyro sums sites out, since it plans the summation once.
    """

    shapes: Mapping[str, torch.Size | None]
    observed: frozenset[str] | None

    @classmethod
    def of(cls, trace: poutine.Trace) -> Prototype:
        """Return the sites of a run without enumeration."""
        nodes = {name: node for name, node in trace.nodes.items() if _is_of_model(node)}
        latent = {name: node["fn"] for name, node in nodes.items() if not node["is_observed"]}
        shapes = {name: None if fn.has_enumerate_support else fn.shape() for name, fn in latent.items()}
        sums = None in shapes.values()
        return cls(shapes, frozenset(set(nodes) - set(latent)) if sums else None)


@dataclass(frozen=True)
class FixedStructure:
    """A model that raises an error if its sites are not those of the prototype.

    Attributes:
        program: the model with its arguments.
        prototype: the sites that it must have.

    Raises:
        OtherSitesError: when it is run, if a site is new, missing or has another shape.
    """

    program: Callable[[], Any]
    prototype: Prototype

    def __call__(self) -> Any:
        with _Sites(self.prototype) as sites:
            result = self.program()
        sites.check_none_is_missing()
        return result


class _Sites(Messenger):
    """Handler that compares the sites of one run with the prototype."""

    def __init__(self, prototype: Prototype) -> None:
        super().__init__()
        self._prototype, self._seen = prototype, set[str]()

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not _is_of_model(msg):
            return
        name, observed = msg["name"], self._prototype.observed
        self._seen.add(name)
        if msg["is_observed"]:
            if observed is not None and name not in observed:
                _refuse(name)
        elif name not in self._prototype.shapes:
            _refuse(name)
        else:
            self._check_shape(name, msg["fn"])

    def _check_shape(self, name: str, fn: Any) -> None:
        expected = self._prototype.shapes[name]
        if expected is None:
            return
        found = fn.shape()
        # Dimensions of summed-out sites are to the left of all plates.
        same = found == expected if self._prototype.observed is None else _ends_alike(found, expected)
        if not same:
            raise OtherSitesError(
                f"Site '{name}' has shape {tuple(found)} in one run of the model and {tuple(expected)} in another: "
                "samplers need the same shapes at each call; give it the largest shape, and mask unused elements by "
                "torch.where or a mask."
            )

    def check_none_is_missing(self) -> None:
        """Raise OtherSitesError for the first site of the prototype that is missing in this run."""
        for name in [*self._prototype.shapes, *sorted(self._prototype.observed or ())]:
            if name not in self._seen:
                _refuse(name)


def _refuse(name: str) -> None:
    raise OtherSitesError(f"Site '{name}' exists only in some runs of the model, but {_ADVICE}")


def _is_of_model(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not poutine.util.site_is_subsample(site)


def _ends_alike(found: torch.Size, expected: torch.Size) -> bool:
    return len(found) >= len(expected) and found[len(found) - len(expected) :] == expected
