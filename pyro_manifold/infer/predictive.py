"""Pyro's Predictive, with draws where Pyro's plates look for them."""

from __future__ import annotations

from typing import Any

import pyro.infer
from pyro import poutine
from torch import Tensor


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
        options = {"num_samples": self.num_samples, "return_sites": return_sites, "parallel": self.parallel}
        return pyro.infer.Predictive(self.model, placed, **options)


def _with_batch_dimensions(draws: Tensor, count: int, event_dim: int) -> Tensor:
    """``(draws, batch, event)`` with so many dimensions of the batch, those that are new in front of it."""
    missing = count - (draws.dim() - 1 - event_dim)
    return draws.reshape(len(draws), *[1] * missing, *draws.shape[1:])
