"""Pyro's Predictive, with draws where Pyro's plates look for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro.infer
import torch
from pyro import poutine
from torch import Tensor

from pyro_manifold.diagnostics.replay import Node, Values, has_data, is_deterministic, is_latent
from pyro_manifold.graphs.trusted import reason
from pyro_manifold.target.minibatch import in_minibatches

_REMEDY = (
    "say in it from the right which dimension is meant (U * scales[..., None, :], F[..., group, :, :] for a plate of "
    "groups), or take parallel=False."
)


class Predictive(pyro.infer.Predictive):
    r"""`pyro.infer.Predictive`, whose ``parallel=True`` takes the draws of `MCMC.get_samples` for all shapes of sites.

    In parallel, draws are one more plate, to the left of those of the model. A matrix U outside the plates of a model
    that has one plate must then have the shape ``(draws, 1, n, p)``. Pyro's class gives it ``(draws, n, p)``, so that
    its draws meet the elements of the plate: an error, or if there are as many of them, each element with a draw of its
    own. This class puts a dimension of size 1 at each plate that a site is not in.

    The model must say which dimensions belong to an event by their place from the right, as for all of Pyro's
    vectorisation: ``U * scales[..., None, :]`` and ``noise[..., None]``, not ``U * scales`` and ``noise``.

    Args:
        model: a Pyro model; ``poutine.uncondition(model)`` draws what the model observes.
        posterior_samples: ``{site: (draws, ...)}``, such as ``mcmc.get_samples()``.
        guide: as in Pyro.
        num_samples: as in Pyro.
        return_sites: as in Pyro.
        parallel: whether to run the model once for all draws.

    Example:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> def model(count):
        ...     U = pyro.sample("U", StiefelUniform(3, 2))
        ...     scales = pyro.sample("scales", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
        ...     factor = U * scales[..., None, :]
        ...     with pyro.plate("rows", count):
        ...         pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), factor, torch.ones(3)))
        >>> draws = {"U": StiefelUniform(3, 2).sample((10,)), "scales": torch.rand(10, 2)}
        >>> Predictive(model, draws, parallel=True)(4)["y"].shape
        torch.Size([10, 4, 3])
    """

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draws of the sites that ``posterior_samples`` lacks, or of ``return_sites``; arguments are the model's."""
        if not self.parallel:
            return super().forward(*args, **kwargs)
        return self._placed(args, kwargs).forward(*args, **kwargs)

    def get_vectorized_trace(self, *args: Any, **kwargs: Any) -> poutine.Trace:
        """One trace of the model for all draws."""
        return self._placed(args, kwargs).get_vectorized_trace(*args, **kwargs)

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> pyro.infer.Predictive:
        """Pyro's class with a dimension for each plate of the model in front of every event."""
        samples, return_sites = self.posterior_samples, self.return_sites
        if self.guide is not None:
            options = {"num_samples": self.num_samples, "return_sites": None, "parallel": self.parallel}
            samples, return_sites = pyro.infer.Predictive(self.guide, **options)(*args, **kwargs), return_sites or None
        nodes: Any = {}
        counts = {name: len(value) if value.dim() else 0 for name, value in samples.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ValueError(
                f"Predictive: posterior_samples has {counts} draws, expected draws in the first dimension of each, as "
                "many of one site as of another."
            )
        if samples:
            first = {name: value[0] for name, value in samples.items()}
            nodes = poutine.block(poutine.trace(poutine.condition(self.model, first)).get_trace)(*args, **kwargs).nodes
        sites = {name: site for name, site in nodes.items() if site["type"] == "sample"}
        frames = [frame for site in sites.values() for frame in site["cond_indep_stack"] if frame.vectorized]
        nesting = max((-frame.dim for frame in frames), default=0)
        placed = {
            name: _with_batch_dimensions(value, nesting, sites[name]["fn"].event_dim) if name in sites else value
            for name, value in samples.items()
        }
        if placed:
            _check_alike(self.model, samples, placed, args, kwargs)
        options = {"num_samples": self.num_samples, "return_sites": return_sites, "parallel": self.parallel}
        return pyro.infer.Predictive(self.model, placed, **options)


def _check_alike(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    placed: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise a sentence unless the model says of the first and the last draw together what it says of each alone.

    Draws that meet the elements of a plate make no error if there are as many of them.
    """
    count = len(next(iter(samples.values())))
    chosen = [0, count - 1] if count > 1 else [0]
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # to look at the model must not change what it predicts
        shapes = {name: site["value"].shape for name, site in _sites(model, _draw(samples, 0), args, kwargs).items()}
        try:
            both = {name: x[chosen] for name, x in placed.items()}
            nodes = pyro.infer.Predictive(model, both, parallel=True).get_vectorized_trace(*args, **kwargs).nodes
            wrong = []
            for k, draw in enumerate(chosen):
                drawn = {
                    name: _of_draw(nodes[name]["value"], k, len(chosen)).reshape(shape)
                    for name, shape in shapes.items()
                    if not is_deterministic(nodes[name])
                }
                alone = _sites(model, {**drawn, **_draw(samples, draw)}, args, kwargs)
                wrong += [name for name in shapes if name in alone and _differs(nodes[name], alone[name], k)]
        except Exception as error:  # a model can fail in any way
            raise ValueError(
                f"Predictive(parallel=True): the model cannot be run for all draws at once ({reason(error)}): {_REMEDY}"
            ) from error
    if wrong:
        raise ValueError(
            "Predictive(parallel=True): of all draws together the model says something else about site "
            f"'{wrong[0]}' than of each alone: {_REMEDY}"
        )


def _sites(
    model: Callable[..., Any], values: Values, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Node]:
    """Sites that are drawn, observed or deterministic, given values of some; none if data come in minibatches."""
    nodes = poutine.block(poutine.trace(poutine.condition(model, values)).get_trace)(*args, **kwargs).nodes
    if any(site["type"] == "sample" and in_minibatches(site) for site in nodes.values()):
        return {}
    return {name: site for name, site in nodes.items() if is_latent(site) or has_data(site) or is_deterministic(site)}


def _draw(samples: Mapping[str, Tensor], k: int) -> Values:
    return {name: value[k] for name, value in samples.items()}


def _of_draw(values: Tensor, k: int, count: int) -> Tensor:
    """What belongs to a draw, of values for all draws or of one for all of them."""
    return values[k] if values.dim() and len(values) == count else values


def _differs(together: Node, alone: Node, k: int) -> bool:
    """Whether a site has another log density, or another deterministic value, for all draws than for each."""
    if is_deterministic(together):
        found, expected = together["value"], alone["value"]
    else:
        found, expected = (site["fn"].log_prob(site["value"]) for site in (together, alone))
    return not torch.allclose(found[k].reshape(expected.shape), expected, rtol=1e-3, atol=1e-3, equal_nan=True)


def _with_batch_dimensions(draws: Tensor, count: int, event_dim: int) -> Tensor:
    """``(draws, batch, event)`` with so many dimensions of the batch, those that are new in front of it."""
    missing = count - (draws.dim() - 1 - event_dim)
    return draws.reshape(len(draws), *[1] * missing, *draws.shape[1:])
