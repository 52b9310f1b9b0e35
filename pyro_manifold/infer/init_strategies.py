"""Initialisation strategies: chains that begin at given draws, or at draws of a fitted guide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor

from pyro_manifold.density import Sites
from pyro_manifold.diagnostics import check_same_number

InitStrategy = Callable[[dict[str, Any]], Tensor]
"""Function from a site of a trace to its initial value, as those of `pyro.infer.autoguide.initialization`."""


class _Joint:
    """Strategy that takes the values of all sites of a run of the model from one joint draw.

    Args:
        draw: function that returns the next joint draw, ``{site: value}``.
        otherwise: strategy for sites that a draw does not have.
        names: sites of which the model must have at least one; none for any model.
    """

    def __init__(
        self,
        draw: Callable[[], Sites],
        otherwise: Callable[[dict[str, Any], Sites], Tensor],
        names: Iterable[str] = (),
    ) -> None:
        self._draw, self._otherwise, self.names = draw, otherwise, frozenset(names)
        self._values: Sites = {}
        self._seen: set[str] | None = None

    def __call__(self, site: dict[str, Any]) -> Tensor:
        name = site["name"]
        if self._seen is None or name in self._seen:  # another run of the model
            self._values, self._seen = self._draw(), set()
        self._seen.add(name)
        if name not in self._values:
            return self._otherwise(site, self._values)
        value, expected = self._values[name], site["fn"].shape()
        if value.shape != expected[len(expected) - value.dim() :]:
            raise ValueError(
                f"Site '{name}': the initial value has shape {tuple(value.shape)}, expected {tuple(expected)} as in "
                "the model: pass draws of this model, with the dimension of draws in front."
            )
        return value.clone()


class _Cycle:
    """Draws in random order, over and over: as many chains in succession as there are draws begin at different ones."""

    def __init__(self, draws: Sites) -> None:
        self._draws, self._count = draws, len(next(iter(draws.values())))
        self._order: list[int] | None = None
        self._next = 0

    def __call__(self) -> Sites:
        if self._order is None:  # at the first use, so that shards with seeds of their own differ
            self._order = torch.randperm(self._count).tolist()
        place = self._order[self._next % self._count]
        self._next += 1
        return {name: value[place] for name, value in self._draws.items()}


class _Fallback:
    def __init__(self, fallback: InitStrategy) -> None:
        self._fallback = fallback

    def __call__(self, site: dict[str, Any], values: Sites) -> Tensor:
        return self._fallback(site)


class _OfGuide:
    """Joint draws of a guide, and the error for a site that it does not have."""

    def __init__(self, guide: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._guide, self._args, self._kwargs = guide, args, kwargs

    def __call__(self) -> Sites:
        with poutine.block(), torch.no_grad():  # the strategy is called while the model runs under handlers
            nodes = poutine.trace(self._guide).get_trace(*self._args, **self._kwargs).nodes
        return {
            name: site["value"].detach()
            for name, site in nodes.items()
            if site["type"] == "sample" and not site["infer"].keys() & {"is_auxiliary", "_deterministic"}
        }

    def missing(self, site: dict[str, Any], values: Sites) -> Tensor:
        raise ValueError(
            f"init_to_guide: the guide has no site '{site['name']}', expected the sites of the model, but it has "
            f"{sorted(values)}: pass a guide of this model."
        )


def init_to_draws(draws: Mapping[str, Any], *, fallback: InitStrategy = init_to_uniform) -> InitStrategy:
    """Initialise chains at given draws, each chain at another one.

    The draws may come from anywhere: a guide, an earlier run, another library, or the weights of trained networks
    (`pyro_manifold.nn.sites_from_state_dicts`). They are taken in random order, and again from the first one if there
    are more chains than draws. Draws where the density is not finite are replaced by the next ones.

    Args:
        draws: ``{site: (draws, ...)}``, values as in the model (not in unconstrained space); those of sites that the
            model does not have are ignored.
        fallback: strategy for sites without draws, one of `pyro.infer.autoguide.initialization`.

    Returns:
        A strategy for ``init_strategy`` of the kernels, of Pyro's kernels and of Pyro's guides (``init_loc_fn``).

    Raises:
        ValueError: if ``draws`` is not a dictionary of tensors with the same number of draws, at least one; and by the
            kernel, for a draw of another shape than the site, and if the model has none of the sites.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> def model():
        ...     pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        >>> kernel = OHMC(model, init_strategy=init_to_draws({"scale": torch.tensor([0.5, 2.0])}))
        >>> run = kernel.prepare(2, 10, None)  # two chains, 10 iterations of warm-up
        >>> sorted(round(float(x), 6) for x in run.values["scale"])
        [0.5, 2.0]
    """
    if not isinstance(draws, Mapping) or not draws:
        raise ValueError(f"init_to_draws: draws={draws!r}, expected a dictionary of draws by site.")
    tensors = {name: torch.as_tensor(value).detach() for name, value in draws.items()}
    check_same_number(tensors, "init_to_draws: draws")
    return _Joint(_Cycle(tensors), _Fallback(fallback), tensors)


def init_to_guide(guide: Callable[..., Any], *args: Any, **kwargs: Any) -> InitStrategy:
    """Initialise chains at draws of a fitted guide, each chain at another one.

    With `AutoDelta` all chains begin at its point. Draws where the density is not finite are drawn again. A guide that
    misses a mode has no chain there: R-hat does not show this, since chains that all begin in one place may agree on a
    part of the posterior. For a check, begin some chains elsewhere.

    Args:
        guide: a guide of Pyro or of this package, fitted, or any function that samples the sites of the model.
        *args: its arguments, which are those of the model.
        **kwargs: its keyword arguments.

    Returns:
        A strategy for ``init_strategy`` of the kernels and of Pyro's kernels.

    Raises:
        ValueError: by the kernel, if the model samples a site that the guide does not have.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro.infer.autoguide import AutoNormal
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> def model(y):
        ...     scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        ...     pyro.sample("y", dist.Normal(0.0, scale), obs=y)
        >>> y = torch.tensor(1.5)
        >>> guide = AutoNormal(model)
        >>> _ = guide(y)  # set up; fit it by SVI
        >>> kernel = OHMC(model, init_strategy=init_to_guide(guide, y))
        >>> MCMC(kernel, 10, 10, num_chains=4, disable_progbar=True).run(y)
    """
    if not callable(guide):
        raise ValueError(f"init_to_guide: guide={guide!r}, expected a guide, such as AutoMultivariateNormal(model).")
    source = _OfGuide(guide, args, kwargs)
    return _Joint(source, source.missing)
