"""A target for a number of chains: positions to begin with, and the energy of all chains at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.layout import Layout
from pyro_manifold.infer.mcmc.states import Block, Blocks, Potential
from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import BatchedPotential, Sites
from pyro_manifold.target.initial_values import finite_values, initial_values
from pyro_manifold.target.minibatch import MinibatchPotential
from pyro_manifold.target.model import Target

Batched = BatchedPotential | MinibatchPotential


@dataclass(frozen=True)
class Problem:
    """What a kernel composes its transitions for.

    Attributes:
        target: what to sample from.
        chains: how many chains.
        initial_values: ``{site: (chains, ...)}`` with finite energy and gradient.
        layout: how sites are joined to blocks.
        batched: energies and gradients of all chains, by site.
        random: where all random numbers of the run come from; seeded from torch's generator, and so by
            `pyro.set_rng_seed`.
        drawn: whether the initial values were drawn, not given.
    """

    target: Target
    chains: int
    initial_values: Sites
    layout: Layout
    batched: Batched
    random: torch.Generator
    drawn: bool = False

    @classmethod
    def build(
        cls,
        target: Target,
        chains: int,
        initial_params: Sites | None,
        *,
        full_mass: bool | list[Block] = False,
        batched: Callable[[Target, Sites], Batched],
    ) -> Problem:
        """The problem of a target.

        Args:
            target: what to sample from.
            chains: how many chains.
            initial_params: ``{site: (chains, ...)}``, or None to draw them.
            full_mass: how unconstrained sites are grouped, see `Layout.build`.
            batched: from the target and positions of all chains to energies and gradients of all chains.
        """
        values = initial_values(target, chains, initial_params)
        layout = Layout.build({name: value[0] for name, value in values.items()}, target.manifolds, full_mass)
        potential = batched(target, values)
        if values:
            values = finite_values(target, values, initial_params is None, potential)
        device = next((value.device for value in values.values()), torch.device("cpu"))
        random = torch.Generator(device).manual_seed(int(torch.randint(2**63 - 1, ())))
        return cls(target, chains, values, layout, potential, random, initial_params is None)

    @property
    def position(self) -> Blocks:
        """The initial values as blocks."""
        return self.layout.pack(self.initial_values)

    @property
    def manifolds(self) -> dict[Block, Manifold]:
        """The manifold of each block that has one."""
        return {(name,): manifold for name, manifold in self.target.manifolds.items()}

    def potential(self, position: Blocks) -> tuple[Tensor, Blocks]:
        """Potential energy ``(chains,)`` and Euclidean gradient of blocks."""
        energy, gradient = self.batched(self.layout.unpack(position))
        return energy, self.layout.pack(gradient)

    @property
    def operators(self) -> int:
        """How many tensor operators energy and gradient take, where they are a graph; else 0."""
        graph: Any = getattr(self.batched, "of_one_chain", None)
        return 0 if graph is None else sum(node.op == "call_function" for node in graph.graph.nodes)

    @property
    def potential_of_one_chain(self) -> Potential | None:
        """`potential` for a single chain, as a graph; None if there is none."""
        graph = getattr(self.batched, "of_one_chain", None)
        if graph is None:
            return None
        names = list(self.initial_values)

        def potential(position: Blocks) -> tuple[Tensor, Blocks]:
            sites = self.layout.unpack(position)
            # Backward formulas of some factorisations look at the memory layout, which the graph froze.
            energy, *gradient = graph(*[sites[name][0].contiguous() for name in names])
            return energy.unsqueeze(0), self.layout.pack(
                {name: value.unsqueeze(0) for name, value in zip(names, gradient, strict=True)}
            )

        return potential
