"""Target for a number of chains: initial values, and vectorised energies and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_manifold.density import (
    INVERSE_TEMPERATURE,
    Batch,
    BatchedDensity,
    BatchedPotential,
    Sites,
    Target,
    TemperedTarget,
    finite_values,
    initial_values,
    refuse_cut_gradients,
)
from pyro_manifold.infer.mcmc.transitions.layout import Layout
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks, ChainState, Potential, coordinates
from pyro_manifold.manifolds import Manifold


@dataclass(frozen=True)
class Problem:
    """Target distribution with initial values and vectorised density, the input of `Kernel.compose`.

    Kernels use `position`, the initial values as blocks, `manifolds`, the manifold of each block that has one,
    `density`, energies and gradients as functions of blocks, and `random`.

    Attributes:
        target: target distribution.
        chains: number of chains.
        initial_values: ``{site: (chains, ...)}`` with finite energy and gradient.
        layout: grouping of sites into blocks.
        batched: energies and gradients of all chains on a batch, by site.
        random: generator of all random numbers of the run, seeded from torch's generator and thus by
            `pyro.set_rng_seed`.
        drawn: whether the initial values were drawn at random.
        functionals: makes, of the problem, the function of a state by which warm-up chooses the trajectory length; the
            run supplies one that symmetries of the posterior do not change.
    """

    target: Target
    chains: int
    initial_values: Sites
    layout: Layout
    batched: BatchedDensity
    random: torch.Generator
    drawn: bool = False
    functionals: Callable[[Problem], Callable[[ChainState], Tensor]] = lambda problem: coordinates

    @classmethod
    def build(
        cls,
        target: Target,
        chains: int,
        initial_params: Sites | None,
        *,
        full_mass: bool | list[Block] = False,
        batched: Callable[[Target, Sites], BatchedDensity],
        differentiated: bool = True,
    ) -> Problem:
        """Build the problem of a target.

        Args:
            target: target distribution.
            chains: number of chains.
            initial_params: ``{site: (chains, ...)}``, or None to draw them.
            full_mass: grouping of unconstrained sites; see `Layout.build`.
            batched: builds the function for energies and gradients of all chains, from the target and positions.
            differentiated: whether the gradient is used, which is then compared with difference quotients.

        Raises:
            ValueError: if there are no initial values, or a model cuts the gradient of a site.
        """
        values = initial_values(target, chains, initial_params)
        layout = Layout.build({name: value[0] for name, value in values.items()}, target.manifolds, full_mass)
        if values and differentiated:
            _compare_gradient(target, values)
        potential = batched(target, values)
        if values:
            values = finite_values(target, values, initial_params is None, potential)
        device = next((value.device for value in values.values()), torch.device("cpu"))
        random = torch.Generator(device).manual_seed(int(torch.randint(2**63 - 1, ())))
        return cls(target, chains, values, layout, potential, random, initial_params is None)

    def at(self, position: Blocks) -> Problem:
        """Return the same target with other initial positions."""
        return replace(self, initial_values=self.layout.unpack(position))

    def other_starts(self) -> Blocks:
        """Draw other random initial positions, with finite energy and gradient."""
        values = initial_values(self.target, self.chains, None)
        return self.layout.pack(finite_values(self.target, values, True, self.batched))

    @property
    def is_subsampled(self) -> bool:
        """Return whether the density is evaluated on minibatches of the data."""
        return not self.batched.batches.is_full

    @property
    def position(self) -> Blocks:
        """Initial values as blocks."""
        return self.layout.pack(self.initial_values)

    @property
    def manifolds(self) -> dict[Block, Manifold]:
        """Manifold of each block that has one."""
        return {(name,): manifold for name, manifold in self.target.manifolds.items()}

    def density(self, batch: Batch | None = None) -> Potential:
        """Return energies and Euclidean gradients as functions of blocks, on a batch (the first, if None or empty)."""

        def potential(position: Blocks) -> tuple[Tensor, Blocks]:
            energy, gradient = self.batched(self.layout.unpack(position), batch or None)
            return energy, self.layout.pack(gradient)

        return potential

    def at_step(self, step: int) -> Potential:
        """Return the density on the batch of a step, given by its number."""
        return self.density(self.batched.batches(step))

    def potential(self, position: Blocks) -> tuple[Tensor, Blocks]:
        """Compute potential energy ``(chains,)`` and Euclidean gradient of blocks, on all data or the first batch."""
        return self.density()(position)

    @property
    def size(self) -> int:
        """Number of tensor operators in the graph of energy and gradient; 0 if there is no graph."""
        return self.batched.first.operators

    @property
    def operators(self) -> int:
        """Number of tensor operators that torch runs for energy and gradient: none if their graph is native code."""
        return 0 if self.batched.first.graph.backend == "native" else self.size

    @property
    def potential_of_one_chain(self) -> Potential | None:
        """`potential` for a single chain, as a graph; None if there is none."""
        density = None if self.is_subsampled else self.density_of_one_chain
        return None if density is None else density({})

    @property
    def density_of_one_chain(self) -> Callable[[Batch], Potential] | None:
        """Function from a batch to `potential_of_one_chain` on it; None if there is none."""
        return density_of_one_chain(self.batched.first, self.layout)


def _compare_gradient(target: Target, positions: Sites) -> None:
    """Raise ValueError if the gradient is wrong; at an inverse temperature of 0 that of the likelihood is not seen."""
    full = target.full if isinstance(target, TemperedTarget) else target.as_written
    fixed = {INVERSE_TEMPERATURE, *target.undifferentiated}
    positions = {name: x for name, x in positions.items() if name not in fixed}
    refuse_cut_gradients(full.potential_fn, positions, full.manifolds)


def density_of_one_chain(batched: BatchedPotential, layout: Layout) -> Callable[[Batch], Potential] | None:
    """Return a function from a batch to energy and gradient of blocks of one chain, a graph; None if there is none.

    Args:
        batched: energies and gradients of all chains.
        layout: grouping of sites into blocks.
    """
    graph = batched.of_one_chain
    if graph is None:
        return None

    def on(batch: Batch) -> Potential:
        def potential(position: Blocks) -> tuple[Tensor, Blocks]:
            sites = layout.unpack(position)
            # Contiguous, since backward formulas of some factorisations depend on the memory layout.
            if batched.graph.of_single_rows is not None:
                energies, *gradients = batched.graph.of_single_rows(
                    *[sites[name].contiguous() for name in batched.names]
                )
                return energies, layout.pack(dict(zip(batched.names, gradients, strict=True)))
            energy, *gradient = graph(*[sites[name][0].contiguous() for name in batched.names], *batch.values())
            rows = {name: value.unsqueeze(0) for name, value in zip(batched.names, gradient, strict=True)}
            return energy.unsqueeze(0), layout.pack(rows)

        return potential

    return on
