"""A Pyro model with its arguments, as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor
from torch.distributions import Transform

from pyro_manifold.density.causes import arguments_by_name
from pyro_manifold.density.loader import target_from_loader
from pyro_manifold.density.model import ModelTarget, target_from_model
from pyro_manifold.store import fingerprint


@dataclass(frozen=True)
class ModelOptions:
    """Options of the density of a model; see `target_from_model`.

    Attributes:
        transforms: transforms to unconstrained space for some of the sites.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        init_strategy: a function that returns the initial value of a site.
        subsample: whether plates may draw subsamples of their elements.
    """

    transforms: Mapping[str, Transform] | None = None
    max_plate_nesting: int | None = None
    init_strategy: Callable[..., Any] = init_to_uniform
    subsample: bool = False

    def __post_init__(self) -> None:
        nesting = self.max_plate_nesting
        if nesting is not None and (not isinstance(nesting, int) or isinstance(nesting, bool) or nesting < 0):
            raise ValueError(f"max_plate_nesting={nesting!r}, expected a number of plates, 0 or more, or None.")
        if self.transforms is not None and not isinstance(self.transforms, Mapping):
            raise ValueError(f"transforms={self.transforms!r}, expected a dictionary by site.")
        if not callable(self.init_strategy):
            raise ValueError(f"init_strategy={self.init_strategy!r}, expected a function such as init_to_sample.")


def refuse_guide(model: Any) -> None:
    """Raise ValueError for a guide in place of the model."""
    if isinstance(model, AutoGuide):
        raise ValueError(f"the model is a guide, {type(model).__name__}, expected the model that it is for.")


@dataclass(frozen=True, eq=False)
class Program:
    """A Pyro model with its arguments, from which everything that needs the model again is made.

    Attributes:
        model: a Pyro model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        loader: iterable over batches, whose tensors are the other arguments of the model; None if it takes all of them
            from ``args`` and ``kwargs``.
        options: how its density is made.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> program = Program(model, (torch.ones(3),))
        >>> sorted(program.trace().stochastic_nodes)
        ['mean', 'rows']
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loader: Iterable[Any] | None = None
    options: ModelOptions = ModelOptions()

    def __post_init__(self) -> None:
        if not isinstance(self.args, tuple | list) or not isinstance(self.kwargs, Mapping):
            raise ValueError(
                f"Program: args is a {type(self.args).__name__} and kwargs a {type(self.kwargs).__name__}, expected a "
                "tuple and a dictionary: Program(model, (y,))."
            )

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

    def with_options(self, **changed: Any) -> Program:
        """Return the program with some of its `ModelOptions` changed."""
        return replace(self, options=replace(self.options, **changed))

    @cached_property
    def target(self) -> ModelTarget:
        """The density of the model, made once.

        Raises:
            ValueError: for a model that has none; see `target_from_model`.
        """
        options = vars(self.options)
        if self.loader is not None:
            return target_from_loader(self.model, self.loader, self.kwargs, **options)
        return target_from_model(self.model, self.args, self.kwargs, **options)

    def trace(self, values: Mapping[str, Tensor] | None = None) -> poutine.Trace:
        """Return the trace of a run, outside of all handlers, with given values of some sites."""
        conditioned = poutine.condition(self, data=dict(values or {}))
        return poutine.block(poutine.trace(conditioned).get_trace)()

    def fingerprints(self) -> dict[str, str]:
        """Return hashes of the arguments and of the loader, by a name for messages."""
        arguments = arguments_by_name(self.model, self.args, self.kwargs)
        found = {"the fingerprint of the model's arguments": fingerprint(arguments)}
        if self.loader is not None:
            found["the fingerprint of data_loader"] = fingerprint(self.loader)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, without the density."""
        return {name: value for name, value in vars(self).items() if name != "target"}
