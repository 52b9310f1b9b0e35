"""Potential energy and gradient of many chains from the potential energy of one.

The potential energy is minus the log density, up to a constant. Pyro's handlers cost more than the arithmetic of most
models, so the energy and gradient of one chain are traced once into a graph of tensor operations, and the graph is
vectorised over chains. Tracing comes first because it also covers models that `torch.vmap` refuses (enumerated sites,
whose einsum has an autograd function of its own).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.graphs.agreement import FactorisationError, FlatFunction, agrees
from pyro_manifold.graphs.narrow_products import transpose_narrow_products
from pyro_manifold.graphs.tracing import trace
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.manifolds import Manifold

Sites = dict[str, Tensor]
PotentialFunction = Callable[[Sites], Tensor]

_COMPARISON_SCALES = (0.01, 0.3, 1.0, 3.0)
_COMPARED_CHAINS = 4  # a few suffice; going through the model is slow


def value_and_gradient(potential_fn: PotentialFunction, sites: Sites) -> tuple[Tensor, Sites]:
    """Potential energy and Euclidean gradient of one chain; a failed factorisation gives NaN, as in Pyro."""
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
        return next(iter(leaves.values())).new_tensor(torch.nan), zeros
    gradient = {
        name: zeros[name] if value is None else value.detach() for name, value in zip(leaves, gradients, strict=True)
    }
    return energy.detach(), gradient


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

    The first of these that works and agrees with the model at fresh points is used: the traced and vectorised
    graph, the model under `torch.vmap`, a loop over chains.

    Args:
        potential_fn: potential energy of one chain.
        example: positions of all chains, for number, shapes, dtypes and devices, and to compare near.
        manifolds: of the sites that have one, so that the comparison stays on it.
        warn: whether to say so when the graph cannot be used for more than one chain.

    Attributes:
        graph: the function in use; its form is ``"traced"``, ``"vmapped"`` or ``"loop"``.
    """

    def __init__(
        self,
        potential_fn: PotentialFunction,
        example: Sites,
        manifolds: Mapping[str, Manifold] | None = None,
        *,
        warn: bool = True,
    ) -> None:
        self._potential_fn = potential_fn
        self._names = list(example)
        self.graph = Trusted(self._chain_by_chain, "loop")
        if not example:
            return
        chains = len(next(iter(example.values())))
        self._check_repeatable({name: value[0] for name, value in example.items()})
        for form, build, following in (
            ("traced", self._traced, "torch.vmap"),
            ("vmapped", self._vectorised, "a loop over chains, which is slow"),
        ):
            failure = f"The model cannot be {form} ({{reason}}); going on with {following}."
            points = _comparison_points(example, manifolds or {})
            rows = list(range(min(chains, _COMPARED_CHAINS)))
            said = failure if warn and chains > 1 else None
            if self.graph.attempt(form, partial(build, example), points, rows=rows, failure=said):
                return

    def __call__(self, sites: Sites) -> tuple[Tensor, Sites]:
        energy, *gradient = self.graph(*[sites[name] for name in self._names])
        return energy, dict(zip(self._names, gradient, strict=True))

    def difference_at(self, sites: Sites, chains: list[int]) -> str | None:
        """What the graph has different from the model where these chains are; None if nothing."""
        return self.graph.difference_at([sites[name] for name in self._names], chains)

    def _check_repeatable(self, first: Sites) -> None:
        """What is wrong with the model itself should be raised as such, not as a failure to trace it."""
        once, again = (value_and_gradient(self._potential_fn, first)[0] for _ in range(2))
        if not agrees(again, once):
            raise ValueError(
                f"The density is not the same at each call ({float(-once)}, then {float(-again)} at one point): "
                "samplers need a model without random numbers of its own."
            )

    def _one_chain(self, *values: Tensor) -> tuple[Tensor, ...]:
        energy, gradient = value_and_gradient(self._potential_fn, dict(zip(self._names, values, strict=True)))
        return energy, *gradient.values()

    def _chain_by_chain(self, *values: Tensor) -> tuple[Tensor, ...]:
        results = [self._one_chain(*chain) for chain in zip(*values, strict=True)]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    def _traced(self, example: Sites, _: FlatFunction) -> FlatFunction:
        # Distinct storage for each input: tracing merges inputs that are the same tensor object.
        in_order = [value.clone(memory_format=torch.contiguous_format) for value in example.values()]
        # Behind a lambda, because the tracer would count the self of a method among the inputs.
        graph = trace(lambda *values: self._one_chain(*values), *[value[0].clone() for value in in_order])
        # Traced once more, so that vectorising costs nothing at each call.
        batched = trace(torch.vmap(graph), *in_order)
        batched.graph.eliminate_dead_code()
        transpose_narrow_products(batched)

        def traced(*values: Tensor) -> tuple[Tensor, ...]:
            # Backward formulas of some factorisations look at the memory layout, which a trace freezes: one for all.
            results: tuple[Tensor, ...] = batched(*[value.contiguous() for value in values])
            return results

        return traced

    def _vectorised(self, _example: Sites, _: FlatFunction) -> FlatFunction:
        gradient_and_value: Any = torch.func.vmap(torch.func.grad_and_value(self._potential_fn))

        def vectorised(*values: Tensor) -> tuple[Tensor, ...]:
            gradient, energy = gradient_and_value(dict(zip(self._names, values, strict=True)))
            return energy, *[gradient[name] for name in self._names]

        return vectorised


def _comparison_points(example: Sites, manifolds: Mapping[str, Manifold]) -> Iterator[list[Tensor]]:
    """Points that a trace has not seen: a branch on values would be frozen in it."""
    # Random numbers of their own: looking at the model must not change the draws of a seeded run.
    noise = torch.Generator().manual_seed(0)
    for scale in _COMPARISON_SCALES:
        sites = {
            name: value + scale * torch.randn(value.shape, generator=noise, dtype=value.dtype, device="cpu").to(value)
            for name, value in example.items()
        }
        for name, manifold in manifolds.items():
            sites[name] = manifold.projection(sites[name])
        yield list(sites.values())
