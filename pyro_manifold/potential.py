"""Potential energy and gradient of many chains from the potential energy of one.

Pyro's handlers cost more than the arithmetic of most models, so the energy and gradient of one chain are traced
once into a graph of tensor operations, and the graph is vectorised over chains. Tracing comes first because it
also covers models that `torch.vmap` refuses (enumerated sites, whose einsum has an autograd function of its own).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.narrow_products import transpose_narrow_products
from pyro_manifold.tracing import reason, trace

Sites = dict[str, Tensor]
PotentialFunction = Callable[[Sites], Tensor]
BatchedFunction = Callable[[Sites], tuple[Tensor, Sites]]

FactorisationError = torch.linalg.LinAlgError  # type: ignore[attr-defined]

_CHECK_SCALES = (0.01, 0.3, 1.0, 3.0)


def value_and_gradient(potential_fn: PotentialFunction, sites: Sites) -> tuple[Tensor, Sites]:
    """Potential energy and Euclidean gradient of one chain; a failed factorisation gives NaN, as in Pyro."""
    leaves = {name: value.detach().requires_grad_() for name, value in sites.items()}
    zeros = {name: torch.zeros_like(value) for name, value in sites.items()}
    if not sites:
        return torch.as_tensor(potential_fn(leaves)).detach(), zeros
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
        example: positions of all chains, for number, shapes, dtypes and devices, and to check against.
        manifolds: of the sites that have one, so that the check stays on it.
        warn: whether to say so when the graph cannot be used for more than one chain.

    Attributes:
        mode: ``"traced"``, ``"vmapped"`` or ``"loop"``.
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
        self._batched: BatchedFunction = self._chain_by_chain
        self.mode = "loop"
        chains = len(next(iter(example.values())))
        # What is wrong with the model itself should be raised as such, not as a failure to trace it.
        first = {name: value[0] for name, value in example.items()}
        once, again = (value_and_gradient(potential_fn, first)[0] for _ in range(2))
        if not agrees(again, once):
            raise ValueError(
                f"The density is not the same at each call ({float(-once)}, then {float(-again)} at one point): "
                "samplers need a model without random numbers of its own."
            )
        for mode, build in (("traced", _trace), ("vmapped", _vectorise)):
            try:
                candidate = build(potential_fn, example)
                _check_agreement(candidate, self._chain_by_chain, example, manifolds or {})
            except Exception as error:  # a model can defeat a tracer in any way; the next candidate goes on
                if warn and chains > 1:
                    following = "torch.vmap" if mode == "traced" else "a loop over chains, which is slow"
                    warnings.warn(
                        f"The model cannot be {mode} ({reason(error)}); going on with {following}.", stacklevel=2
                    )
                continue
            self._batched, self.mode = candidate, mode
            return

    def __call__(self, sites: Sites) -> tuple[Tensor, Sites]:
        try:
            return self._batched(sites)
        except FactorisationError:
            # Some chain failed to factorise a matrix: find out which, chain by chain.
            return self._chain_by_chain(sites)

    def holds_at(self, sites: Sites, chains: list[int]) -> bool:
        """Whether the graph agrees with the model where these chains are; if not, all are looped over from now on."""
        try:
            fast, _ = self._batched(sites)
        except FactorisationError:
            return True
        slow, _ = self._chain_by_chain({name: value[chains] for name, value in sites.items()})
        if agrees(fast[chains], slow):
            return True
        self._batched, self.mode = self._chain_by_chain, "loop"
        return False

    def _chain_by_chain(self, sites: Sites) -> tuple[Tensor, Sites]:
        chains = len(next(iter(sites.values())))
        results = [
            value_and_gradient(self._potential_fn, {name: value[chain] for name, value in sites.items()})
            for chain in range(chains)
        ]
        gradient = {name: torch.stack([gradient[name] for _, gradient in results]) for name in sites}
        return torch.stack([energy for energy, _ in results]), gradient


def _trace(potential_fn: PotentialFunction, example: Sites) -> BatchedFunction:
    names = list(example)

    def one_chain(*values: Tensor) -> tuple[Tensor, ...]:
        energy, gradient = value_and_gradient(potential_fn, dict(zip(names, values, strict=True)))
        return energy, *gradient.values()

    # Distinct storage for each input: tracing merges inputs that are the same tensor object.
    in_order = [value.clone(memory_format=torch.contiguous_format) for value in example.values()]
    graph = trace(one_chain, *[value[0].clone() for value in in_order])
    # Traced once more, so that vectorising costs nothing at each call.
    batched = trace(torch.vmap(graph), *in_order)
    batched.graph.eliminate_dead_code()
    transpose_narrow_products(batched)

    def traced(sites: Sites) -> tuple[Tensor, Sites]:
        # Backward formulas of some factorisations look at the memory layout, which a trace freezes: one for all calls.
        energy, *gradient = batched(*[sites[name].contiguous() for name in names])
        return energy, dict(zip(names, gradient, strict=True))

    return traced


def _vectorise(potential_fn: PotentialFunction, example: Sites) -> BatchedFunction:
    gradient_and_value: Any = torch.func.vmap(torch.func.grad_and_value(potential_fn))

    def vectorised(sites: Sites) -> tuple[Tensor, Sites]:
        gradient, energy = gradient_and_value(sites)
        return energy, gradient

    return vectorised


def _check_agreement(
    candidate: BatchedFunction, reference: BatchedFunction, example: Sites, manifolds: Mapping[str, Manifold]
) -> None:
    """Compare at points that the candidate has not seen: a branch on values would be frozen in a trace."""
    # Random numbers of their own: looking at the model must not change the draws of a seeded run.
    noise = torch.Generator().manual_seed(0)
    for scale in _CHECK_SCALES:
        sites = {
            name: value + scale * torch.randn(value.shape, generator=noise, dtype=value.dtype, device="cpu").to(value)
            for name, value in example.items()
        }
        for name, manifold in manifolds.items():
            sites[name] = manifold.projection(sites[name])
        # A few chains suffice; the reference is slow.
        few = {name: value[:4] for name, value in sites.items()}
        expected_energy, expected_gradient = reference(few)
        try:
            energy, gradient = candidate(sites)
        except FactorisationError:
            continue  # outside the support of some chain; the next scale decides
        pairs = [(expected_energy, energy), *[(expected_gradient[name], gradient[name]) for name in sites]]
        for expected, found in pairs:
            if not agrees(found[:4], expected):
                raise ValueError("its density differs from the model's; does the model branch on values of sites?")


def agrees(found: Tensor, expected: Tensor) -> bool:
    """Equal up to half the digits of the dtype, relative to the largest entry, with NaN and infinities alike."""
    tolerance = float(torch.finfo(expected.dtype).eps) ** 0.5
    finite = expected[expected.isfinite()].abs()
    scale = float(finite.max()) if len(finite) else 1.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(scale, 1.0), equal_nan=True)
