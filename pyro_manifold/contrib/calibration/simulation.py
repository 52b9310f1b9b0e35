"""Simulated data sets of a Pyro model, and the model conditioned on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

from pyro_manifold.compiled import reason
from pyro_manifold.density import arguments_by_name, explained, has_data, in_minibatches, is_latent
from pyro_manifold.diagnostics import Node, Values

Model = Callable[..., Any]


class Conditioned:
    """A model whose observed sites have given values, whatever its arguments hold.

    Args:
        model: a Pyro model.
        data: ``{observed site: value}``.
        conditioned_on: a second value of each observed site, whose likelihood is multiplied to that of ``data``.

    Attributes:
        data: the argument, which may be changed between runs.
    """

    def __init__(self, model: Model, data: Values, conditioned_on: Values | None = None) -> None:
        self.data, self._conditioned_on = data, conditioned_on
        self.__wrapped__ = model  # its signature names the arguments in messages

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Given(self.data, self._conditioned_on or {}):
            return self.__wrapped__(*args, **kwargs)


class _Given(Messenger):
    """Handler that replaces the values of observed sites."""

    def __init__(self, data: Values, conditioned_on: Values) -> None:
        super().__init__()
        self._data, self._conditioned_on = data, conditioned_on

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self._data:
            msg["value"], msg["is_observed"], msg["done"] = self._data[name], True, False
            if name in self._conditioned_on:
                msg["fn"] = _Twice(msg["fn"], self._conditioned_on[name])


class _Twice(TorchDistribution):
    """Distribution whose log density includes that of another value, independent of the first given the parameters."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  torch's own convention

    def __init__(self, base_dist: Any, other: Tensor) -> None:
        self.base_dist, self.other = base_dist, other
        super().__init__(base_dist.batch_shape, base_dist.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.base_dist.support

    def expand(self, batch_shape: Any, _instance: Any = None) -> _Twice:
        return _Twice(self.base_dist.expand(batch_shape), self.other)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.base_dist.log_prob(value) + self.base_dist.log_prob(self.other)


class _Free(Messenger):
    """Handler by which observed sites are drawn."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self._names and msg["is_observed"]:
            msg["value"], msg["is_observed"], msg["done"] = None, False, False


class Simulated(NamedTuple):
    """True values of the latent sites and a data set drawn with them.

    Attributes:
        truth: ``{latent site: value}``, without discrete sites that are summed out.
        data: ``{observed site: value}``.
    """

    truth: Values
    data: Values

    @property
    def not_finite(self) -> list[str]:
        """Sites with a value that is not finite."""
        return [name for name, x in {**self.truth, **self.data}.items() if not bool(torch.isfinite(x).all())]


@dataclass(frozen=True)
class Generator:
    """Simulation of data sets by a model.

    Attributes:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        observed: names of the observed sites.
    """

    model: Model
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    observed: tuple[str, ...]

    def draw(self, truth: Values | None = None) -> Simulated:
        """Draw a data set, and the latent sites from their prior unless they are given."""
        nodes = self.nodes(truth)
        missing = sorted(set(self.observed) - set(nodes))
        if missing:
            raise ValueError(f"calibrate: simulate has no site '{missing[0]}', which the model observes: name it so.")
        found = {name: site for name, site in nodes.items() if is_latent(site) and name not in self.observed}
        drawn = {name: _value(site) for name, site in found.items() if not site["fn"].has_enumerate_support}
        return Simulated({**drawn, **(truth or {})}, {name: _value(nodes[name]) for name in self.observed})

    def nodes(self, truth: Values | None = None) -> dict[str, Node]:
        """Return the sites of a run in which observed sites are drawn."""
        model = poutine.condition(self.model, data=truth) if truth else self.model
        try:
            with explained(arguments_by_name(self.model, self.args, self.kwargs)), torch.no_grad():
                free = poutine.trace(_Free(self.observed)(model))
                nodes: dict[str, Node] = poutine.block(free.get_trace)(*self.args, **self.kwargs).nodes
        except NotImplementedError as error:
            raise _no_draws(error) from error
        except ValueError as error:
            if isinstance(error.__cause__, NotImplementedError):
                raise _no_draws(error.__cause__) from error
            raise
        return {name: site for name, site in nodes.items() if site["type"] == "sample"}


def _no_draws(error: Exception) -> ValueError:
    return ValueError(
        f"calibrate: a site of the model cannot be drawn from ({reason(error)}): give each site a proper prior and a "
        "distribution that can be sampled, or pass another model as simulate=."
    )


def _value(site: Node) -> Tensor:
    return torch.as_tensor(site["value"]).detach()


def observed_sites(model: Model, args: tuple[Any, ...], kwargs: Mapping[str, Any], named: Any) -> dict[str, Tensor]:
    """Return the observed sites of a model with the values that it observes; a site without a value has what it draws.

    Args:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        named: the names of the sites; None for those that the model observes.

    Raises:
        ValueError: if there are none, or others than the named ones; if one is in a plate that subsamples.
    """
    with explained(arguments_by_name(model, args, kwargs)), torch.no_grad(), pyro.validation_enabled(False):
        begun = InitMessenger(_start)(model)
        nodes = poutine.block(poutine.trace(begun).get_trace)(*args, **kwargs).nodes
    sites = {name: site for name, site in nodes.items() if site["type"] == "sample"}
    found = [name for name, site in sites.items() if has_data(site)]
    if named is not None:
        if isinstance(named, str) or not isinstance(named, Sequence):
            raise ValueError(f"calibrate: observed={named!r}, expected a list of names of sites, such as ['y'].")
        latent = [name for name, site in sites.items() if is_latent(site)]
        unknown = [name for name in named if name not in (*found, *latent)]
        if unknown:
            raise ValueError(f"calibrate: observed names {unknown}, but the model's sites are {[*latent, *found]}.")
        others = [name for name in found if name not in named]
        if others:
            raise ValueError(f"calibrate: the model observes {others} too: name all observed sites in observed=.")
        found = list(named)
    if not found:
        raise ValueError(
            "calibrate: the model has no observed site: pass its arguments with data, or name the sites that have "
            "data, such as observed=['y']."
        )
    subsampled = [name for name, site in sites.items() if in_minibatches(site)]
    if subsampled:
        raise ValueError(f"calibrate: site '{subsampled[0]}' is in a plate that subsamples: remove subsample_size.")
    return {name: _value(sites[name]) for name in found}


def _start(site: Node) -> Tensor:
    """Return a draw of a site; another value of its support for an improper prior."""
    try:
        return site["fn"].sample()
    except NotImplementedError:
        transform = biject_to(site["fn"].support)
        return transform(torch.zeros(transform.inverse_shape(site["fn"].shape())))


def check_generates(generator: Generator, sites: Values, is_model: bool) -> Simulated:
    """Return a draw of the generator, or raise an error for one that has factors or lacks latent sites of the model.

    Args:
        generator: simulation of data sets.
        sites: values of the latent sites of the fitted model.
        is_model: whether the generator is the fitted model.
    """
    nodes = generator.nodes()
    factors = [name for name, site in nodes.items() if isinstance(site["fn"], dist.Unit)]
    if factors and is_model:
        raise ValueError(
            f"calibrate: site '{factors[0]}' is a pyro.factor, which simulations ignore: write it as a distribution, "
            "or pass a model that simulates the same density as simulate=."
        )
    drawn = generator.draw()
    for name, value in sites.items():
        shape = tuple(drawn.truth[name].shape) if name in drawn.truth else None
        if shape != tuple(value.shape):
            found = "lacks the site" if shape is None else f"draws a value of shape {shape} at the site"
            raise ValueError(
                f"calibrate: simulate {found} '{name}', of which the model has a value of shape {tuple(value.shape)}: "
                "sample it there too."
            )
    return drawn
