"""Pyro's `Predictive`, with posterior draws in the batch dimensions that plates expect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyro.infer
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.compiled import reason
from pyro_manifold.density import (
    StartInSupport,
    arguments_by_name,
    explained,
    has_data,
    in_minibatches,
    is_deterministic,
    is_latent,
)
from pyro_manifold.diagnostics import Node, Values, check_same_number

_SHAPES_SHOWN = 4
_REMEDY = (
    "index dimensions from the right in the model (U * scales[..., None, :], F[..., group, :, :] for a plate of "
    "groups, (x[..., None, :] @ A).squeeze(-2) for x @ A in a plate of rows), or pass parallel=False."
)


class Predictive(pyro.infer.Predictive):
    r"""`pyro.infer.Predictive` in which ``parallel=True`` works with draws of `MCMC.get_samples` for all site shapes.

    With ``parallel=True``, draws are one more plate, to the left of those of the model. A matrix U outside the plates
    of a model that has one plate must then have the shape ``(draws, 1, n, p)``. Pyro's class gives it the shape
    ``(draws, n, p)``, so that its draws are broadcast against the elements of the plate: an error, or if both have the
    same size, a different draw for each element. This class inserts a dimension of size 1 for each plate that a site is
    not in.

    The model must index event dimensions from the right, as for all vectorisation in Pyro:
    ``U * scales[..., None, :]`` and ``noise[..., None]``, not ``U * scales`` and ``noise``.

    Args:
        model: a Pyro model; ``poutine.uncondition(model)`` draws what the model observes.
        posterior_samples: ``{site: (draws, ...)}``, such as ``mcmc.get_samples()``. Draws of sites that are
            deterministic in the model are left out: the model computes them again from its present arguments.
        guide: as in Pyro.
        num_samples: as in Pyro.
        return_sites: as in Pyro.
        parallel: whether to run the model once for all draws.

    Raises:
        ValueError: for draws whose shapes do not match the model, and with ``parallel=True`` for a model that gives
            other results for all draws at once than for each draw separately.

    Examples:
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

    def __init__(
        self,
        model: Callable[..., Any],
        posterior_samples: Mapping[str, Tensor] | None = None,
        guide: Callable[..., Any] | None = None,
        num_samples: int | None = None,
        return_sites: Sequence[str] = (),
        parallel: bool = False,
    ) -> None:
        if isinstance(return_sites, str):
            raise ValueError(f"Predictive: return_sites={return_sites!r}, expected a list like [{return_sites!r}].")
        super().__init__(model, _checked(posterior_samples), guide, num_samples, return_sites, parallel)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Draw the sites not in ``posterior_samples``, or ``return_sites``; arguments are those of the model."""
        with self._explained(args, kwargs):
            if self.parallel:
                return self._placed(args, kwargs).forward(*args, **kwargs)
            samples = self._without_deterministic(args, kwargs) or None
            options = {"num_samples": self.num_samples, "return_sites": self.return_sites}
            return pyro.infer.Predictive(self._drawn_model, samples, self.guide, **options).forward(*args, **kwargs)

    @property
    def _drawn_model(self) -> Callable[..., Any]:
        """The model, whose sites with draws Pyro draws once more, to no effect, also under an improper prior."""
        return StartInSupport(self.posterior_samples)(self.model) if self.posterior_samples else self.model

    def get_vectorized_trace(self, *args: Any, **kwargs: Any) -> poutine.Trace:
        """Return one trace of the model for all draws."""
        with self._explained(args, kwargs):
            return self._placed(args, kwargs).get_vectorized_trace(*args, **kwargs)

    @contextmanager
    def _explained(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Explain errors caused by arguments or draws that do not match the model."""
        samples = {f"posterior_samples['{name}']": value for name, value in self.posterior_samples.items()}
        try:
            with explained({**arguments_by_name(self.model, args, kwargs), **samples}):
                yield
        except RuntimeError as error:
            sentence = _misshapen(self.model, self.posterior_samples, args, kwargs)
            if sentence:
                raise ValueError(f"{sentence} ({reason(error)}).") from error
            raise

    def _without_deterministic(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Tensor]:
        """Return the draws of sites that the model draws."""
        if not self.posterior_samples:
            return self.posterior_samples
        first = {name: value[0] for name, value in self.posterior_samples.items()}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            nodes = _trace_of_draw(poutine.mask(self._drawn_model, mask=False), first, args, kwargs).nodes
        return _drawn(self.posterior_samples, nodes)

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> pyro.infer.Predictive:
        """Return Pyro's class with draws reshaped to have a dimension for each plate of the model before the event."""
        samples, return_sites = self.posterior_samples, self.return_sites
        if self.guide is not None:
            options = {"num_samples": self.num_samples, "return_sites": None, "parallel": self.parallel}
            samples, return_sites = pyro.infer.Predictive(self.guide, **options)(*args, **kwargs), return_sites or None
        nodes: Any = {}
        # As in Pyro: a model may check its mask to skip terms that are not predictions, such as factors.
        masked = poutine.mask(self._drawn_model, mask=False)
        check_same_number(samples, "Predictive: posterior_samples")
        # Without draws the model is checked with two from the prior.
        compared = samples or _prior_draws(masked, args, kwargs)
        if compared:
            first = {name: value[0] for name, value in compared.items()}
            nodes = _trace_of_draw(masked, first, args, kwargs).nodes
            compared, samples = _drawn(compared, nodes), _drawn(samples, nodes)
        sites = {name: site for name, site in nodes.items() if site["type"] == "sample"}
        frames = [frame for site in sites.values() for frame in site["cond_indep_stack"] if frame.vectorized]
        nesting = max((-frame.dim for frame in frames), default=0)
        placed = {
            name: _with_batch_dimensions(value, nesting, sites[name]["fn"].event_dim) if name in sites else value
            for name, value in compared.items()
        }
        if placed:
            _check_alike(masked, compared, placed, args, kwargs)
        options = {"num_samples": self.num_samples, "return_sites": return_sites, "parallel": self.parallel}
        return pyro.infer.Predictive(self._drawn_model, placed if samples else None, **options)


class _ConditionDrawnSites(Messenger):
    """Give sites the values of a draw, but for deterministic ones, which the model computes."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._values = values

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self._values and not is_deterministic(msg):
            msg["value"], msg["is_observed"] = self._values[msg["name"]], True


def _trace_of_draw(
    model: Callable[..., Any], values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> poutine.Trace:
    with poutine.block():
        return poutine.trace(_ConditionDrawnSites(values)(model)).get_trace(*args, **kwargs)


def _drawn(samples: Mapping[str, Tensor], nodes: Mapping[str, Node]) -> dict[str, Tensor]:
    """Return samples without those of deterministic sites, which are values for other arguments of the model."""
    return {name: x for name, x in samples.items() if name not in nodes or not is_deterministic(nodes[name])}


def _prior_draws(model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return two prior draws of the latent sites, made separately; none if their sites or shapes differ."""
    with poutine.block(), torch.random.fork_rng(devices=[]), torch.no_grad():
        traces = [poutine.trace(model).get_trace(*args, **kwargs).nodes for _ in range(2)]
    first, second = ({name: site["value"] for name, site in nodes.items() if is_latent(site)} for nodes in traces)
    subsampled = any(site["type"] == "sample" and in_minibatches(site) for site in traces[0].values())
    if subsampled or {name: x.shape for name, x in first.items()} != {name: x.shape for name, x in second.items()}:
        return {}
    return {name: torch.stack([value, second[name]]) for name, value in first.items()}


def _checked(posterior_samples: Any) -> Any:
    """Return the draws as tensors; raise an error unless they are a mapping from site names to draws."""
    if posterior_samples is None:
        return None
    if not isinstance(posterior_samples, Mapping):
        raise ValueError(
            f"Predictive: posterior_samples={posterior_samples!r}, expected a dictionary of draws by site, such as "
            "mcmc.get_samples(), or the flat of a Posterior."
        )
    samples = {name: torch.as_tensor(x) if isinstance(x, np.ndarray) else x for name, x in posterior_samples.items()}
    for name, value in samples.items():
        if not torch.is_tensor(value) or not value.dim() or not len(value):
            found = f"of shape {tuple(value.shape)}" if torch.is_tensor(value) else f"of type {type(value).__name__}"
            raise ValueError(
                f"Predictive: posterior_samples['{name}'] is {found}, expected a tensor (draws, ...) with at least "
                "one draw."
            )
    return samples


def _misshapen(
    model: Callable[..., Any], samples: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Describe draws whose shape differs from that in the model; None if all match or the model fails anyway."""
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            nodes = poutine.block(poutine.trace(model).get_trace)(*args, **kwargs).nodes
    except Exception:  # the error is not caused by the draws
        return None
    for name, value in samples.items():
        expected = nodes[name]["value"].shape if name in nodes else value.shape[1:]
        if value.shape[1:] != expected:
            return (
                f"Predictive: posterior_samples['{name}'] has shape {tuple(value.shape)}, expected (draws, "
                f"*{tuple(expected)}), as returned by get_samples() without group_by_chain"
            )
    return None


def _check_alike(
    model: Callable[..., Any],
    samples: Mapping[str, Tensor],
    placed: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Raise an error unless the first and the last draw give the same results jointly as separately.

    Draws that are broadcast against the elements of a plate cause no error if both have the same size.
    """
    count = len(next(iter(samples.values())))
    chosen = [0, count - 1] if count > 1 else [0]
    drawn_so_far = _Shapes()
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # this check must not change the predictions
        shapes = {name: site["value"].shape for name, site in _sites(model, _draw(samples, 0), args, kwargs).items()}
        try:
            both = {name: x[chosen] for name, x in placed.items()}
            together = pyro.infer.Predictive(drawn_so_far(model), both, parallel=True)
            nodes = together.get_vectorized_trace(*args, **kwargs).nodes
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
                f"Predictive(parallel=True): the model cannot be run for all draws at once ({reason(error)}; for "
                f"{len(chosen)} draws {drawn_so_far}): {_REMEDY}"
            ) from error
    if wrong:
        raise ValueError(
            f"Predictive(parallel=True): for all draws at once the model gives another result at site '{wrong[0]}' "
            f"than for each draw separately: {_REMEDY}"
        )


class _Shapes(Messenger):
    """Handler that records the shapes of sites, so that an error between two sites names the first of them."""

    def __init__(self) -> None:
        super().__init__()
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> Any:
        self._shapes.clear()
        return super().__enter__()

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if torch.is_tensor(msg["value"]) and not poutine.util.site_is_subsample(msg):
            self._shapes[msg["name"]] = tuple(msg["value"].shape)

    def __str__(self) -> str:
        if not self._shapes:
            return "there is no site before the error"
        last = next(reversed(self._shapes))
        shapes = dict(list(self._shapes.items())[-_SHAPES_SHOWN:])
        return f"the last site before the error is '{last}', and shapes are {shapes}"


def _sites(
    model: Callable[..., Any], values: Values, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Node]:
    """Return latent, observed and deterministic sites given values of some; none if the data are subsampled."""
    nodes = poutine.block(poutine.trace(poutine.condition(model, values)).get_trace)(*args, **kwargs).nodes
    if any(site["type"] == "sample" and in_minibatches(site) for site in nodes.values()):
        return {}
    return {name: site for name, site in nodes.items() if is_latent(site) or has_data(site) or is_deterministic(site)}


def _draw(samples: Mapping[str, Tensor], k: int) -> Values:
    return {name: value[k] for name, value in samples.items()}


def _of_draw(values: Tensor, k: int, count: int) -> Tensor:
    """Return the value at one draw; values without a dimension of draws are shared by all draws."""
    return values[k] if values.dim() and len(values) == count else values


def _differs(together: Node, alone: Node, k: int) -> bool:
    """Return whether the log density or deterministic value of a site differs between joint and single evaluation."""
    if is_deterministic(together):
        found, expected = together["value"], alone["value"]
    else:
        found, expected = (site["fn"].log_prob(site["value"]) for site in (together, alone))
    return not torch.allclose(found[k].reshape(expected.shape), expected, rtol=1e-3, atol=1e-3, equal_nan=True)


def _with_batch_dimensions(draws: Tensor, count: int, event_dim: int) -> Tensor:
    """Reshape ``(draws, batch, event)`` to ``count`` batch dimensions, with new ones to the left."""
    missing = count - (draws.dim() - 1 - event_dim)
    return draws.reshape(len(draws), *[1] * missing, *draws.shape[1:])
