"""A Pyro model with its arguments, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyro import poutine
from torch import Tensor


def latent_sites(nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sites of a trace that are sampled and not observed, without the indices of subsamples."""
    return {
        name: site
        for name, site in nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and not poutine.util.site_is_subsample(site)
    }


@dataclass(frozen=True)
class Program:
    """A Pyro model with its arguments.

    Attributes:
        model: a Pyro model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        loader: iterable over batches, whose tensors are the other arguments of the model; None if it takes all of them
            from ``args`` and ``kwargs``.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loader: Iterable[Any] | None = None

    def __call__(self) -> Any:
        """Run the model.

        Raises:
            ValueError: if it takes its arguments from a loader.
        """
        self.check_has_arguments()
        return self.model(*self.args, **self.kwargs)

    def check_has_arguments(self) -> None:
        """Raise ValueError for a model that takes its arguments from a loader, in batches."""
        if self.loader is not None:
            raise ValueError(
                "the model took its arguments from data_loader in batches, and cannot be run again without them"
            )

    def handled(self, handler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Program:
        """Return the program with a handler, or any function of models, applied to its model."""
        return replace(self, model=handler(self.model))

    def trace(self, values: Mapping[str, Tensor] | None = None) -> poutine.Trace:
        """Return the trace of a run, outside of all handlers, with given values of some sites."""
        conditioned = poutine.condition(self, data=dict(values or {}))
        return poutine.block(poutine.trace(conditioned).get_trace)()
