"""Potential energy and gradient of many chains from the potential energy of one.

The potential energy is minus the log density, up to a constant. Pyro's handlers cost more than the arithmetic of most
models, so the energy and gradient of one chain are traced once into a graph of tensor operations, and the graph is
vectorised over chains. Tracing comes first because it also covers models that `torch.vmap` does not support (enumerated
sites, whose einsum has an autograd function of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from pyro_manifold.compiled import (
    PRODUCTS,
    VECTORISATION,
    WITHOUT_STRIDES,
    FactorisationError,
    FlatFunction,
    Labels,
    Verified,
    agrees,
    compiled,
    first_other_operation,
    folded_graph,
    run,
    simplified,
    trace,
    vmapped,
    without_fallback_warnings,
    writes,
)
from pyro_manifold.manifolds import Manifold

_ATEN = torch.ops.aten

Sites = dict[str, Tensor]
PotentialFunction = Callable[[Sites], Tensor]
Batch = dict[str, Tensor]
"""Inputs other than the sites that change from step to step, by name."""

BatchPotential = Callable[[Sites, Batch], Tensor]

_COMPARISON_SCALES = (0.01, 0.3, 1.0, 3.0)
_LARGEST_KEPT_BLOCK = 32 * 2**20 - 2**12  # bytes that glibc keeps in its heap; larger blocks fault page by page
_COMPARED_CHAINS = 4  # a few suffice; evaluating the model itself is slow


def value_and_gradient(potential_fn: PotentialFunction, sites: Sites) -> tuple[Tensor, Sites]:
    """Compute the potential energy and Euclidean gradient of one chain; a failed factorisation gives NaN for both.

    A trajectory through such a point is therefore rejected, whichever backend evaluates the density.

    Raises:
        ValueError: inside of ``torch.inference_mode()``, where each gradient would be 0.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "Gradients are needed, and torch records none inside of torch.inference_mode(): run outside of it; "
            "torch.no_grad() is possible."
        )
    leaves = {name: value.detach().requires_grad_() for name, value in sites.items()}
    zeros = {name: torch.zeros_like(value) for name, value in sites.items()}
    try:
        with torch.enable_grad():
            energy = potential_fn(leaves)
            _check_scalar(energy)
            if not energy.requires_grad:
                return energy.to(next(iter(zeros.values()))), zeros
            gradients = torch.autograd.grad(energy, list(leaves.values()), allow_unused=True)
    except FactorisationError:
        nowhere = {name: torch.full_like(value, torch.nan) for name, value in sites.items()}
        return next(iter(leaves.values())).new_tensor(torch.nan), nowhere
    gradient = {
        name: zeros[name] if value is None else value.detach() for name, value in zip(leaves, gradients, strict=True)
    }
    return energy.detach(), gradient


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
        batch: an example of the inputs that change from step to step; None if there are none.
        own_batches: whether a batch has a leading chain dimension.
        gradient: whether to compute gradients; if not, a call returns none, and the potential energy need not be
            differentiable.
        compile: options for `torch.compile`, if the graph is to be compiled; None if not.
        warn: whether to warn if the graph cannot be used for more than one chain, or not compiled.

    Attributes:
        graph: the function in use; its ``form`` is ``"compiled"``, ``"traced"``, ``"vmapped"`` or ``"loop"``.
        of_one_chain: the graph of energy and gradients of one chain; None if there is none.
    """

    of_one_chain: FlatFunction | None = None
    _trace: GraphModule | None = None

    def __init__(
        self,
        potential_fn: PotentialFunction | BatchPotential,
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        batch: Batch | None = None,
        own_batches: bool = False,
        gradient: bool = True,
        compile: Mapping[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        self._potential_fn: Any = potential_fn
        self._names, self._batch_names = list(example), list(batch or {})
        self._own_batches, self._takes_batch = own_batches, batch is not None
        self._differentiated = self._names if gradient else []
        common = 0 if own_batches else len(self._batch_names)
        self.graph = Verified(self._chain_by_chain, "loop", common, self._labels)
        if not example:
            return
        chains = len(next(iter(example.values())))
        inputs = [*example.values(), *(batch or {}).values()]
        self._check_repeatable(self._of_chain(0, inputs))
        for form, build, following in (
            ("traced", self._traced, "torch.vmap"),
            ("vmapped", self._vectorised, "a loop over chains, which is slow"),
        ):
            failure = f"The model cannot be {form} ({{reason}}); falling back to {following}."
            other = [_resampled(value, int(own_batches)) for value in (batch or {}).values()]
            points = ([*point, *other] for point in _comparison_points(example, manifolds or {}))
            rows = list(range(min(chains, _COMPARED_CHAINS)))
            warning = failure if warn and chains > 1 else None
            if self.graph.attempt(form, partial(build, inputs), points, rows=rows, failure=warning):
                break
        if compile is not None:
            warning = "jit_compile=True had no effect, continuing without compilation: {reason}." if warn else None
            self.graph.attempt("compiled", partial(_compiled, options=compile), [inputs], failure=warning)

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
        if self._trace is None:
            return None
        one = [value.clone() for value in self._of_chain(chain, inputs)]
        try:
            if not self._one_chain(*one)[0].isfinite():
                return None  # a run that raises on the way, such as by a factorisation, has a short trace
            other = first_other_operation(self._trace, self._graph_of(one))
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
        energy, gradient = value_and_gradient(potential, sites)
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

    def _of_chain(self, chain: int, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of one chain: its sites, and its own batch or the common one."""
        own = len(self._names) + (len(self._batch_names) if self._own_batches else 0)
        return [*[value[chain] for value in values[:own]], *values[own:]]

    def _chain_by_chain(self, *values: Tensor) -> tuple[Tensor, ...]:
        results = [self._one_chain(*self._of_chain(chain, values)) for chain in range(len(values[0]))]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def _traced(self, inputs: Sequence[Tensor], _: FlatFunction) -> FlatFunction:
        # Distinct storage for each input: tracing merges inputs that are the same tensor object.
        in_order = [value.clone(memory_format=torch.contiguous_format) for value in inputs]
        one = [value.clone() for value in self._of_chain(0, in_order)]
        graph = self._trace = self._graph_of(one)
        try:
            return self._of_all_chains(graph, in_order)
        except RuntimeError:
            # torch.vmap does not write values that differ between chains into a tensor that does not, and has no views
            # that the memory layout of many chains does not allow.
            if not writes(graph) and _ATEN.view.default not in {node.target for node in graph.graph.nodes}:
                raise
        return self._of_all_chains(run(VECTORISATION, graph, *one), in_order)

    def _graph_of(self, one: Sequence[Tensor]) -> GraphModule:
        # A lambda, because the tracer would count the self of a method among the inputs.
        return run(WITHOUT_STRIDES, trace(lambda *values: self._one_chain(*values), *one))

    def _of_all_chains(self, graph: GraphModule, in_order: Sequence[Tensor]) -> FlatFunction:
        self.of_one_chain = graph
        chains, on_cpu = len(in_order[0]), in_order[0].device.type == "cpu"
        together = min(chains, _chains_together(graph)) if on_cpu else chains
        own = sum(dimension is not None for dimension in self._dimensions)

        def part(values: Sequence[Tensor], first: int) -> list[Tensor]:
            # Backward formulas of some factorisations depend on the memory layout, which a trace freezes: one for all.
            rows = [value[first : first + together].contiguous() for value in values[:own]]
            return [*rows, *[value.contiguous() for value in values[own:]]]

        # Traced once more, so that vectorising costs nothing at each call; branches on constants are resolved here.
        graphs = {}
        for first in range(0, chains, together):
            rows = min(together, chains - first)
            if rows not in graphs:
                then = PRODUCTS if on_cpu else ()
                if rows == 1 and not writes(graph):
                    graphs[rows] = self._with_chain_dimension(simplified(graph, then=then))
                else:
                    batched = vmapped(graph, self._dimensions)
                    graphs[rows] = folded_graph(batched, *part(in_order, first), then=then)

        def traced(*values: Tensor) -> tuple[Tensor, ...]:
            starts = range(0, chains, together)
            results = [graphs[min(together, chains - first)](*part(values, first)) for first in starts]
            return results[0] if len(results) == 1 else tuple(map(torch.cat, zip(*results, strict=True)))

        return traced

    def _with_chain_dimension(self, graph: GraphModule) -> FlatFunction:
        """Return the graph of one chain as a function of inputs with one row each, without another trace."""
        return lambda *values: tuple(value.unsqueeze(0) for value in graph(*self._of_chain(0, values)))

    @property
    def _dimensions(self) -> tuple[int | None, ...]:
        """Dimension of the chains in each input, as ``in_dims`` of `torch.vmap`."""
        of_batch = 0 if self._own_batches else None
        return (*[0] * len(self._names), *[of_batch] * len(self._batch_names))

    def _vectorised(self, _inputs: Sequence[Tensor], _: FlatFunction) -> FlatFunction:
        names, batch_names, takes_batch = self._names, self._batch_names, self._takes_batch
        differentiated = bool(self._differentiated)

        def one(*values: Tensor) -> tuple[Tensor, ...]:
            batch = [dict(zip(batch_names, values[len(names) :], strict=True))] if takes_batch else []
            sites = dict(zip(names, values[: len(names)], strict=True))
            if not differentiated:
                return (self._potential_fn(sites, *batch).detach(),)
            gradient_and_value: Any = torch.func.grad_and_value(self._potential_fn)
            gradient, energy = gradient_and_value(sites, *batch)
            # Parameters of a module require gradients of their own, which would keep every iteration in memory.
            return energy.detach(), *[gradient[name].detach() for name in names]

        vectorised: FlatFunction = without_fallback_warnings(torch.func.vmap(one, in_dims=self._dimensions))
        return vectorised


def _chains_together(graph: GraphModule) -> int:
    """Return the number of chains whose intermediate values all stay below the size that is memory-mapped again."""
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"]
    sizes = [value.numel() * value.element_size() for value in values if isinstance(value, Tensor)]
    return max(1, _LARGEST_KEPT_BLOCK // max([*sizes, 1]))


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
