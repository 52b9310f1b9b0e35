"""Loss and gradients of a guide over all particles, as a graph of tensors or one call of native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.compiled import FlatFunction, Labels, Verified, folded_graph
from pyro_manifold.compiled.native import UnsupportedOperatorError, compile_sum
from pyro_manifold.density import Batch, BatchedPotential
from pyro_manifold.infer.svi.reparametrisation import Reparametrisation

Parameters = dict[str, Tensor]
"""Unconstrained parameters by their names in the guide."""

_Density = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]

_ELEMENTS_OF_AN_OPERATOR = 4000
"""Elements that take as long as the overhead of an operator."""

_POINTS = 2  # points of comparison, in addition to that of the trace
_NO_NATIVE_CODE = (
    "No native code for the steps of SVI, which only makes them slower: {reason}. Set PYRO_MANIFOLD_NATIVE=0 in "
    "the environment to disable native code without this warning."
)


class Objective:
    """Loss of Pyro's `Trace_ELBO` and an unbiased estimate of its gradient, with noise as an argument.

    Args:
        reparametrisation: the guide.
        parameters: parameters of the guide, whose memory is read by later calls.
        potential: potential energies of the model at draws of all particles.
        particles: number of draws in each estimate.
        batch: an example of the inputs that change from step to step.

    Attributes:
        graph: the function in use, from noise, parameters and batch; ``"eager"``, ``"traced"`` or ``"native"``.
        noise: memory of the noise, ``(particles, noise)``.
        outputs: memory of the loss and of the gradient of each parameter, after a call.
    """

    def __init__(
        self,
        reparametrisation: Reparametrisation,
        parameters: Parameters,
        potential: BatchedPotential,
        particles: int,
        batch: Batch,
    ) -> None:
        self._form, self._potential, self._particles = reparametrisation, potential, particles
        self._names, self._batch_names = list(parameters), list(batch)
        self._parameters = [value.detach() for value in parameters.values()]
        first = self._parameters[0]
        self.noise = first.new_empty(particles, reparametrisation.noise)
        self.outputs = [first.new_zeros(()), *[torch.zeros_like(value) for value in self._parameters]]
        self._native: Callable[[], None] | None = None
        self._rows: list[Tensor] = []
        labels = Labels(["the loss", *[f"the gradient of '{name}'" for name in self._names]])
        self.graph = Verified(self._of_all, "eager", labels=labels)
        self.graph.attempt("traced", lambda _: folded_graph(self._of_all, *self._example(batch)), self._points(batch))

    @property
    def cost(self) -> int:
        """Cost of a call as a graph, in small tensor operators; by shapes, so that seeded runs are reproducible."""
        graph: Any = self._potential.of_one_chain
        values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"] if graph else []
        elements = sum(value.numel() for value in values if isinstance(value, Tensor))
        return 2 * len(values) + self._particles * elements // _ELEMENTS_OF_AN_OPERATOR

    def __call__(self, batch: Batch) -> None:
        """Draw noise, and write loss and gradients to `outputs`."""
        self.noise.normal_()
        self.again(batch)

    def again(self, batch: Batch) -> None:
        """Evaluate again with the same noise, and write loss and gradients to `outputs`."""
        if self._native is None or self.graph.backend != "native":
            found = self.graph(self.noise, *self._parameters, *batch.values())
            torch._foreach_copy_(self.outputs, list(found))
            return
        for row, value in zip(self._rows, batch.values(), strict=True):
            row[0].copy_(value)
        self._native()

    def difference(self, batch: Batch) -> str | None:
        """Describe how graphs differ from the model at the present noise; None if they agree."""
        draws = self._form.draws(dict(zip(self._names, self._parameters, strict=True)), self.noise)
        found = self._potential.difference_at(self._form.sites(draws.values.detach()), [0], batch or None)
        return found or self.graph.difference_at([self.noise, *self._parameters, *batch.values()])

    # ---- forms ---------------------------------------------------------------------------------------------------

    def compile(self, batch: Batch, warn: bool = True) -> None:
        """Compile loss and gradients to native code, and use it from now on if it agrees with the graph."""
        failure = _NO_NATIVE_CODE if warn else None
        self.graph.attempt("native", lambda _: self._built(batch), self._points(batch), failure=failure)

    def _built(self, batch: Batch) -> FlatFunction:
        one = self._potential.of_one_chain
        if one is None or self.noise.device.type != "cpu":
            raise UnsupportedOperatorError("the model has no graph of one particle on a CPU")
        dtype, names = self.noise.dtype, self._potential.names
        if any(value.is_floating_point() and value.dtype != dtype for value in batch.values()):
            raise UnsupportedOperatorError("arguments of another dtype than the guide's parameters")
        dtypes, count = [value.dtype for value in batch.values()], len(self._names)

        def of_one(noise: Tensor, *rows: Tensor) -> list[Tensor]:
            parameters = [row[0] for row in rows[:count]]
            inputs = [row[0].to(kind) for row, kind in zip(rows[count:], dtypes, strict=True)]

            def density(sites: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
                # Contiguous, since backward formulas of some factorisations depend on the memory layout.
                energy, *gradient = one(*[sites[name][0].contiguous() for name in names], *inputs)
                return energy.unsqueeze(0), {n: g.unsqueeze(0) for n, g in zip(names, gradient, strict=True)}

            return [value.unsqueeze(0) for value in self._evaluated(noise, parameters, density)]

        rows = [value.unsqueeze(0) for value in self._parameters]
        self._rows = [value.to(dtype).unsqueeze(0).clone() for value in batch.values()]
        inputs = [self.noise, *rows, *self._rows]
        loop = compile_sum(of_one, inputs, self._particles, shared=len(self._rows))
        self._native, self.outputs = loop.bound(0, inputs)

        def native(noise: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
            return tuple(loop(0, noise, *[value.to(dtype).unsqueeze(0) for value in others]))

        return native

    def _of_all(self, noise: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        count = len(self._names)
        batch = dict(zip(self._batch_names, others[count:], strict=True))
        return tuple(self._evaluated(noise, others[:count], lambda sites: self._potential(sites, batch or None)))

    def _evaluated(self, noise: Tensor, parameters: Sequence[Tensor], density: _Density) -> list[Tensor]:
        """Return the loss and gradients, as sums over the given rows of noise divided by the number of particles."""
        leaves = [value.detach().requires_grad_() for value in parameters]
        with torch.enable_grad():
            draws = self._form.draws(dict(zip(self._names, leaves, strict=True)), noise)
            energy, gradient = density(self._form.sites(draws.values.detach()))
            slopes = torch.cat([gradient[name].reshape(len(noise), -1) for name in self._form.shapes], -1)
            objective = (draws.values * slopes.detach()).sum() + draws.negative_entropy
            found = torch.autograd.grad(objective / self._particles, leaves)
        loss = (energy + draws.log_density.detach()).sum() / self._particles
        return [loss.detach(), *found]

    # ---- points of comparison ------------------------------------------------------------------------------------

    def _example(self, batch: Batch, number: int = 0) -> list[Tensor]:
        random = torch.Generator().manual_seed(number)  # so that a seeded run is not changed
        noise = torch.randn(self.noise.shape, generator=random, dtype=self.noise.dtype).to(self.noise)
        return [noise, *[value.clone() for value in self._parameters], *[value.clone() for value in batch.values()]]

    def _points(self, batch: Batch) -> list[list[Tensor]]:
        return [self._example(batch, number) for number in range(1, 1 + _POINTS)]
