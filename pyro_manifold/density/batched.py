"""Potential energy and gradient of many chains from the potential energy of one.

The potential energy is minus the log density, up to a constant. Pyro's handlers cost more than the arithmetic of most
models, so the energy and gradient of one chain are traced once into a graph of tensor operations, and the graph is
vectorised over chains. Tracing comes first because it also covers models that `torch.vmap` does not support (enumerated
sites, whose einsum has an autograd function of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled import FactorisationError, FlatFunction, Labels, Vectorised, agrees, compiled
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.manifolds import Manifold

Sites = dict[str, Tensor]
PotentialFunction = Callable[[Sites], Tensor]
Batch = dict[str, Tensor]
"""Inputs other than the sites that change from step to step, by name."""

BatchPotential = Callable[[Sites, Batch], Tensor]

_LONG = 1000
"""Operators from which a density is compiled before it is used, which takes as long as 200 evaluations by torch."""

_COMPARISON_SCALES = (0.01, 0.3, 1.0, 3.0)


def value_and_gradient(
    potential_fn: PotentialFunction, sites: Sites, undifferentiated: Collection[str] = ()
) -> tuple[Tensor, Sites]:
    """Compute the potential energy and Euclidean gradient of one chain; a failed factorisation gives NaN for both.

    A trajectory through such a point is therefore rejected, whichever backend evaluates the density. The gradient is
    reported as 0 with respect to sites that are ``undifferentiated``.

    Raises:
        ValueError: inside of ``torch.inference_mode()``, where each gradient would be 0.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "Gradients are needed, and torch records none inside of torch.inference_mode(): run outside of it; "
            "torch.no_grad() is possible."
        )
    leaves = {name: value.detach().requires_grad_() for name, value in sites.items() if name not in undifferentiated}
    zeros = {name: torch.zeros_like(value) for name, value in sites.items()}
    try:
        with torch.enable_grad():
            energy = potential_fn({**sites, **leaves})
            _check_scalar(energy)
            if not energy.requires_grad:
                return energy.to(next(iter(zeros.values()))), zeros
            gradients = torch.autograd.grad(energy, list(leaves.values()), allow_unused=True)
    except FactorisationError:
        nowhere = {name: torch.full_like(value, torch.nan) for name, value in sites.items()}
        return next(iter(leaves.values())).new_tensor(torch.nan), nowhere
    found = {name: value.detach() for name, value in zip(leaves, gradients, strict=True) if value is not None}
    return energy.detach(), {**zeros, **found}


def value_alone(potential_fn: PotentialFunction, sites: Sites) -> Tensor:
    """Compute the potential energy of one chain, without a gradient; NaN where a factorisation fails."""
    first = next(iter(sites.values()))
    try:
        with torch.no_grad():
            energy = potential_fn(sites)
    except FactorisationError:
        return first.new_tensor(torch.nan)
    _check_scalar(energy)
    return energy.to(first)


def _check_scalar(energy: object) -> None:
    if not torch.is_tensor(energy):
        raise ValueError(f"The potential energy is {energy!r} instead of a tensor: potential_fn must return one.")
    if energy.dim():
        raise ValueError(
            f"The potential energy has shape {tuple(energy.shape)} instead of being a scalar: sum it in potential_fn; "
            "and if initial_params has a leading dimension for a single chain, remove that."
        )


class BatchedPotential:
    """Potential energy and gradient of many chains: ``{site: (chains, ...)}`` to ``(chains,)`` and gradients.

    The first of these backends that works and agrees with the model at new points is used: the traced and vectorised
    graph, the model under `torch.vmap`, a loop over chains.

    Args:
        potential_fn: potential energy of one chain; with ``batch``, a function of its sites and a batch.
        example: positions of all chains; they give number, shapes, dtypes and devices, and backends are compared near
            them.
        manifolds: manifolds of the sites that have one, so that the comparison stays on them.
        undifferentiated: sites with respect to which no gradient is needed; it is reported as 0.
        batch: an example of the inputs that change from step to step; None if there are none.
        own_batches: whether a batch has a leading chain dimension.
        gradient: whether to compute gradients; if not, a call returns none, and the potential energy need not be
            differentiable.
        compile: options for `torch.compile`, if the graph is to be compiled; None if not.
        warn: whether to warn if the graph cannot be used for more than one chain, or not compiled.
        native: whether long graphs are compiled as C, to be evaluated but not transformed.

    Attributes:
        graph: the function in use; its ``backend`` is ``"native"`` for long graphs, ``"compiled"``, ``"traced"``,
            ``"vmapped"`` or ``"loop"``.
    """

    def __init__(
        self,
        potential_fn: PotentialFunction | BatchPotential,
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        undifferentiated: Collection[str] = (),
        batch: Batch | None = None,
        own_batches: bool = False,
        gradient: bool = True,
        compile: Mapping[str, Any] | None = None,
        warn: bool = True,
        native: bool = False,
    ) -> None:
        self._potential_fn: Any = potential_fn
        self._names, self._batch_names = list(example), list(batch or {})
        self._own_batches, self._takes_batch = own_batches, batch is not None
        self._differentiated = self._names if gradient else []
        self._undifferentiated = frozenset(undifferentiated)
        inputs = [*example.values(), *(batch or {}).values()]
        shared = 0 if own_batches else len(self._batch_names)
        self.graph = Vectorised(self._one_chain, inputs, shared=shared, labels=self._labels)
        if not example:
            return
        self._check_repeatable(self.graph.row(0, inputs))
        other = [_resampled(value, int(own_batches)) for value in (batch or {}).values()]
        points = ([*point, *other] for point in _comparison_points(example, manifolds or {}))
        subject = "The model" if warn and len(inputs[0]) > 1 else None
        native_from = _LONG if native and native_code_is_allowed() else None
        self.graph.vectorise(points, alternative=self._by_functional_gradient, subject=subject, native_from=native_from)
        if compile is not None:
            warning = "jit_compile=True had no effect, continuing without compilation: {reason}." if warn else None
            self.graph.attempt("compiled", partial(_compiled, options=compile), [inputs], failure=warning)

    @property
    def of_one_chain(self) -> FlatFunction | None:
        """The graph of energy and gradients of one chain; None if there is none."""
        return self.graph.graph

    @property
    def operators(self) -> int:
        """Number of tensor operators in the graph of energy and gradient of one chain; 0 if there is no graph."""
        graph: Any = self.of_one_chain
        return 0 if graph is None else sum(node.op == "call_function" for node in graph.graph.nodes)

    @property
    def names(self) -> list[str]:
        """Names of the sites, in the order of the graph's inputs."""
        return self._names

    def __call__(self, sites: Sites, batch: Batch | None = None) -> tuple[Tensor, Sites]:
        energy, *gradient = self.graph(*self._in_order(sites, batch))
        return energy, dict(zip(self._differentiated, gradient, strict=True))

    @property
    def _labels(self) -> Labels:
        outputs = ["the potential energy", *[f"the gradient of '{name}'" for name in self._differentiated]]
        return Labels(outputs, dict(enumerate(self._names)), self._branch)

    def _branch(self, _: FlatFunction, inputs: Sequence[Tensor], chain: int) -> str | None:
        """Describe how the model's operations differ from its trace, as only a branch can cause; None if not at all."""
        try:
            other = self.graph.other_operation(inputs, chain)
        except Exception:  # a model can fail in any way, and the values are reported without a cause
            return None
        return other and f"the model has a branch on values of sites: its trace has {other}"

    def difference_at(self, sites: Sites, chains: list[int], batch: Batch | None = None) -> str | None:
        """Describe how the graph differs from the model at the positions of these chains; None if it agrees."""
        return self.graph.difference_at(self._in_order(sites, batch), chains)

    def _in_order(self, sites: Sites, batch: Batch | None) -> list[Tensor]:
        return [*[sites[name] for name in self._names], *[(batch or {})[name] for name in self._batch_names]]

    def _check_repeatable(self, first: list[Tensor]) -> None:
        """Raise ValueError if the density is not repeatable; an error of the model is not a failure to trace it."""
        once, again = self._one_chain(*first)[0], value_alone(*self._of_values(first))
        if not agrees(again, once):
            raise ValueError(
                f"The density is not the same at each call ({float(-once)}, then {float(-again)} at one point): "
                "samplers need a model that draws no random numbers of its own and changes no data in place."
            )

    def _one_chain(self, *values: Tensor) -> tuple[Tensor, ...]:
        potential, sites = self._of_values(values)
        if not self._differentiated:
            return (value_alone(potential, sites),)
        energy, gradient = value_and_gradient(potential, sites, self._undifferentiated)
        return energy, *gradient.values()

    def _of_values(self, values: Sequence[Tensor]) -> tuple[PotentialFunction, Sites]:
        """Return the potential energy on the batch in these inputs of one chain, and the sites in them."""
        count = len(self._names)
        sites = dict(zip(self._names, values[:count], strict=True))
        batch = [dict(zip(self._batch_names, values[count:], strict=True))] if self._takes_batch else []

        def potential(at: Sites) -> Tensor:
            energy: Tensor = self._potential_fn(at, *batch)
            return energy

        return potential, sites

    def _by_functional_gradient(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Compute energy and gradient of one chain by torch.func, which `torch.vmap` supports."""
        batch = [dict(zip(self._batch_names, values[len(self._names) :], strict=True))] if self._takes_batch else []
        sites = dict(zip(self._names, values[: len(self._names)], strict=True))
        if not self._differentiated:
            return (self._potential_fn(sites, *batch).detach(),)
        gradient_and_value: Any = torch.func.grad_and_value(self._potential_fn)
        gradient, energy = gradient_and_value(sites, *batch)
        # Parameters of a module require gradients of their own, which would keep every iteration in memory.
        return energy.detach(), *[gradient[name].detach() for name in self._names]


def _compiled(graph: FlatFunction, options: Mapping[str, Any]) -> FlatFunction:
    function = compiled(graph, options)
    # One memory layout: torch.compile compiles again for every other.
    return lambda *values: function(*[value.contiguous() for value in values])


def _resampled(value: Tensor, dimension: int) -> Tensor:
    """Return another batch of the same shape, which a trace has not seen: a random choice of rows with replacement.

    A batch that is a single number, without rows, is returned as it is.
    """
    if value.dim() <= dimension:
        return value
    rows = torch.randint(value.shape[dimension], (value.shape[dimension],), generator=torch.Generator().manual_seed(0))
    return value.index_select(dimension, rows.to(value.device))


def _comparison_points(example: Sites, manifolds: Mapping[str, Manifold]) -> Iterator[list[Tensor]]:
    """Yield points that a trace has not seen: a branch on values would be frozen in it."""
    # A generator of its own, so that the comparison does not change the draws of a seeded run.
    noise = torch.Generator().manual_seed(0)
    for scale in _COMPARISON_SCALES:
        sites = {
            name: value + scale * torch.randn(value.shape, generator=noise, dtype=value.dtype, device="cpu").to(value)
            for name, value in example.items()
        }
        for name, manifold in manifolds.items():
            sites[name] = manifold.projection(sites[name])
        yield list(sites.values())
