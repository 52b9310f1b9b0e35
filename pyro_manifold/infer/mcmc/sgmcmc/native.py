"""Steps along gradients of minibatches as native code: all steps of an iteration in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.infer.mcmc.layout import Layout
from pyro_manifold.infer.mcmc.native import NativeIteration, native_loop
from pyro_manifold.infer.mcmc.sgmcmc.steps import Gradient, StepSettings, StochasticState
from pyro_manifold.infer.mcmc.states import Block, Blocks, GivenNumbers, normal_like
from pyro_manifold.target.batched import Batch, BatchedPotential
from pyro_manifold.target.minibatch import MinibatchPotential, WholeData

Step = Callable[..., StochasticState]
ByStep = MinibatchPotential | WholeData

_BATCHES_TO_LOOK_AT = 4
_MOST_COORDINATES = 2**14
"""Of a chain: more do not fit a processor's cache, and products take most of the time anyway."""


class NativeSteps:
    """One step after the other on batches of one shape, in one call.

    ε, τ and friction are those of all steps: schedules of them are not for this.

    Args:
        step: a step, with mechanics and metrics bound.
        potential: energies and gradients by site on the batch of a step.
        layout: how sites are joined to blocks.
        blocks: in the order in which a step moves them, and draws their noise.
        settings: of all steps.
        state: where the chains begin.

    Attributes:
        graph: a step as a function of tensors; its form is ``"steps"`` or ``"native"``.
    """

    def __init__(
        self,
        step: Step,
        potential: ByStep,
        layout: Layout,
        blocks: Iterable[Block],
        settings: StepSettings,
        state: StochasticState,
    ) -> None:
        self._step, self._potential, self._layout, self._settings = step, potential, layout, settings
        self._blocks, self._squares = list(blocks), list(state.squares)
        first = self._batch(0)  # the density is of such batches
        self._kinds = {name: value.dtype for name, value in first.items()}
        self._shapes = [value.shape for value in first.values()]
        self._native = NativeIteration(self._function, len(self._flat(state)))

    @property
    def graph(self) -> Trusted:
        return self._native.graph

    @property
    def operators(self) -> int:
        """How many tensor operators a gradient takes, where it is a graph; else 0."""
        graph = self._density.of_one_chain
        return 0 if graph is None else sum(node.op == "call_function" for node in graph.graph.nodes)  # type: ignore[attr-defined]

    @property
    def _density(self) -> BatchedPotential:
        return self._potential.first

    def compile(self, state: StochasticState) -> None:
        """Use native code from now on, if it can be made and agrees; see `NativeIteration`.

        Nothing is said if not: networks of many layers are no worse off.

        Args:
            state: where the chains are, to trace and to compare at.
        """
        traced = self._density.graph.is_graph and self._density.of_one_chain is not None
        coordinates = sum(x[0].numel() for x in state.position.values())
        if not traced or coordinates > _MOST_COORDINATES or state.energy.device.type != "cpu":
            return
        coming = map(self._batch, range(state.steps + 1, state.steps + 1 + _BATCHES_TO_LOOK_AT))
        batches = list(islice(filter(self._is_alike, coming), 2))
        if not batches:
            return
        random = torch.Generator().manual_seed(0)  # of its own: a seeded run stays as it is
        points = [
            [*self._of_batch(batch, state), *self._noise(state, random), *self._flat(state), torch.tensor(1)]
            for batch in batches
        ]
        self._native.compile(partial(self._built, points[0][:-1], len(state.energy)), points, warn=False)

    def __call__(
        self, state: StochasticState, count: int, random: torch.Generator
    ) -> tuple[StochasticState, Tensor] | None:
        """The state so many steps later and the energies of all steps, ``(count, chains)``; None if it cannot say."""
        if not self._native.is_native:
            return None
        batches = [self._batch(state.steps + k) for k in range(1, count + 1)]
        if not all(map(self._is_alike, batches)):
            return None  # the last batch of a loader is a smaller one
        of_batches = [self._of_batch(batch, state) for batch in batches]
        noise = [self._noise(state, random) for _ in batches]
        rows = [torch.stack(values) for part in (of_batches, noise) for values in zip(*part, strict=True)]
        found = self._native.several([1] * count, [*rows, *self._flat(state)])
        after = self._state([value[-1] for value in found])
        return after._replace(steps=state.steps + count), found[2 * len(self._blocks)]

    # ---- as a function of tensors -------------------------------------------------------------------------------

    def _batch(self, number: int) -> Batch:
        return {} if self._potential.batches is None else self._potential.batches(number)

    def _is_alike(self, batch: Batch) -> bool:
        return [value.shape for value in batch.values()] == self._shapes

    def _of_batch(self, batch: Batch, state: StochasticState) -> list[Tensor]:
        """With a chain dimension in front, in the dtype of the state."""
        return [value.unsqueeze(0).to(state.energy.dtype) for value in batch.values()]

    def _noise(self, state: StochasticState, random: torch.Generator) -> list[Tensor]:
        return [normal_like(state.position[block], random) for block in self._blocks]

    def _flat(self, state: StochasticState) -> list[Tensor]:
        positions, momenta, gradients = (
            [part[block] for block in self._blocks] for part in (state.position, state.momentum, state.gradient)
        )
        return [*positions, *momenta, state.energy, *gradients, *[state.squares[block] for block in self._squares]]

    def _state(self, values: Sequence[Tensor]) -> StochasticState:
        count = len(self._blocks)
        energy, rest = values[2 * count], values[2 * count + 1 :]
        position, momentum, gradient = (
            dict(zip(self._blocks, part, strict=True))
            for part in (values[:count], values[count : 2 * count], rest[:count])
        )
        squares = dict(zip(self._squares, rest[count:], strict=True))
        return StochasticState(position, momentum, energy, gradient, 0, squares)

    def _moved(self, gradient: Callable[[Batch], Gradient], values: Sequence[Tensor]) -> list[Tensor]:
        names, blocks = list(self._kinds), len(self._blocks)
        batch = {name: values[k][0].to(self._kinds[name]) for k, name in enumerate(names)}
        noise = values[len(names) : len(names) + blocks]
        state, random = self._state(values[len(names) + blocks :]), GivenNumbers.of(*noise)
        return self._flat(self._step(state, gradient(batch), self._settings, random=random))

    def _function(self, *values: Tensor) -> tuple[Tensor, ...]:
        def on(batch: Batch) -> Gradient:
            def gradient(position: Blocks) -> tuple[Tensor, Blocks]:
                energy, slopes = self._potential.on(self._layout.unpack(position), batch)
                return energy, self._layout.pack(slopes)

            return gradient

        return tuple(self._moved(on, values[:-1]))

    def _built(self, example: Sequence[Tensor], chains: int) -> NativeLoop:
        of_one_chain, first = self._density.of_one_chain, len(self._kinds) + len(self._blocks)
        assert of_one_chain is not None

        def on(batch: Batch) -> Gradient:
            def gradient(position: Blocks) -> tuple[Tensor, Blocks]:
                sites = {name: value[0].contiguous() for name, value in self._layout.unpack(position).items()}
                energy, *slopes = of_one_chain(*[sites[name] for name in self._density.names], *batch.values())
                rows = {name: value.unsqueeze(0) for name, value in zip(self._density.names, slopes, strict=True)}
                return energy.unsqueeze(0), self._layout.pack(rows)

            return gradient

        return native_loop(
            begin=lambda *values: [value.clone() for value in values[first:]],
            step=lambda *values: self._moved(on, [*values[:first], *values[len(example) :]]),
            end=lambda *values: [value.clone() for value in values[len(example) :]],
            carried=len(example) - first,
            example=example,
            chains=chains,
            shared=range(len(self._kinds)),
        )
