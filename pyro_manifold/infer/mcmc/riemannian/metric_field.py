"""Metrics that change from point to point, and what moving in them needs: their connection and their volume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from pyro_manifold.graphs.agreement import agrees
from pyro_manifold.graphs.tracing import forward_differentiable, trace
from pyro_manifold.graphs.trusted import Trusted

# Their types do not tell pairs from triples with an auxiliary output.
jvp: Any = torch.func.jvp
vjp: Any = torch.func.vjp

Field = Callable[[Tensor], Tensor]
"""A function of the flat position ``(d,)`` of one chain."""


class MetricField(ABC):
    r"""A metric G(q) on flat positions, for all chains at once.

    :math:`C(q, v)` is the lower connection as a matrix: :math:`C(q, v)\,w = G\,\Gamma(v, w)` with
    :math:`G\,\Gamma(v, w) = \tfrac12 (\partial_v G\,w + \partial_w G\,v - \nabla v^\top G w)`, symmetric in v and w.
    """

    @abstractmethod
    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        r"""``G`` of shape ``(chains, d, d)``, and the map of symmetric weights W to :math:`\tfrac12\nabla tr(W G)`.

        With W = G⁻¹, held fixed, that is the gradient of :math:`\tfrac12\log|G|`; so nothing is ever differentiated
        through a factorisation.
        """

    @abstractmethod
    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        """C(q, v) v, of shape ``(chains, d)``, at the cost of a few evaluations of the field."""

    @abstractmethod
    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        """C(q, v), of shape ``(chains, d, d)``, at the cost of d evaluations of the field."""


class PullBackMetric(MetricField):
    r"""The metric that an embedding brings back from flat space: :math:`G = J^\top J`, J the Jacobian of f.

    Then :math:`C(q, v)\,w = J^\top f''(q)[v, w]`: a product of products, no tensor of third derivatives. Costs are
    O(l d²) for G and C, O(l) evaluations' worth for C v.

    Args:
        embedding: ``(d,)`` to ``(l,)``.
        dimension: d.
        codomain: l, which decides between forward and reverse mode.
    """

    def __init__(self, embedding: Field, dimension: int, codomain: int) -> None:
        self._embedding = embedding
        self._jacobian: Field = (jacfwd if dimension <= codomain else jacrev)(embedding)

    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        jacobian, pull = vjp(vmap(self._jacobian), position)
        return jacobian.mT @ jacobian, lambda weights: pull(jacobian @ weights)[0]

    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        def along(q: Tensor, v: Tensor) -> Tensor:
            _, second = jvp(lambda q: jvp(self._embedding, (q,), (v,))[1], (q,), (v,))
            return vjp(self._embedding, q)[1](second)[0]

        return vmap(along)(position, velocity)

    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        jacobian, change = vmap(lambda q, v: jvp(self._jacobian, (q,), (v,)))(position, velocity)
        return jacobian.mT @ change


class DenseMetric(MetricField):
    r"""A metric given as the matrix G(q) itself.

    Args:
        metric: ``(d,)`` to a symmetric positive definite ``(d, d)``.
    """

    def __init__(self, metric: Field) -> None:
        self._metric = metric

    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        metric, pull = vjp(vmap(self._metric), position)
        return metric, lambda weights: pull(weights / 2)[0]

    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        def along(q: Tensor, v: Tensor) -> Tensor:
            _, change = jvp(self._metric, (q,), (v,))
            _, pull = vjp(lambda q: v @ self._metric(q) @ v, q)
            return change @ v - pull(torch.ones_like(v[0]))[0] / 2

        return vmap(along)(position, velocity)

    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        def along(q: Tensor, v: Tensor) -> Tensor:
            _, change = jvp(self._metric, (q,), (v,))
            lowered = jacfwd(lambda q: self._metric(q) @ v)(q)
            return (change + lowered - lowered.mT) / 2

        return vmap(along)(position, velocity)


def metric_field(function: Field, start: Tensor) -> MetricField:
    """The field of a function that returns an embedding ``(l,)``, or the metric itself, ``(d, d)``.

    Args:
        function: of the flat position of one chain.
        start: positions of all chains, ``(chains, d)``, to look at it with.

    Raises:
        ValueError: if the function returns something else, or cannot be differentiated.
    """
    dimension, example = start.shape[-1], start[0]
    found: object = function(example)
    if not torch.is_tensor(found):
        raise ValueError(f"metric returns {found!r}, expected a tensor.")
    if found.dim() != 1 and found.shape != (dimension, dimension):
        raise ValueError(
            f"metric returns a tensor of shape {tuple(found.shape)}, expected a vector, whose pull-back is the metric, "
            f"or the metric itself, ({dimension}, {dimension})."
        )
    if found.dim() == 2 and not agrees(found.mT, found):
        raise ValueError("metric returns a matrix that is not symmetric, expected the metric itself.")

    def in_dtype_of_sites(position: Tensor) -> Tensor:
        value = function(position).to(position.dtype)
        return value if value.dim() == 1 else (value + value.mT) / 2

    graph = _without_handlers(in_dtype_of_sites, example)
    field = PullBackMetric(graph, dimension, len(found)) if found.dim() == 1 else DenseMetric(graph)
    try:
        with torch.enable_grad():
            field.at(start[:1])
            field.connection(start[:1], torch.ones_like(start[:1]))
    except Exception as error:
        raise ValueError(
            f"The metric cannot be differentiated twice by torch.func ({error}): write it, or the model that it is "
            "found from, without branches on values, .item(), writes into tensors and random numbers; or pass metric=."
        ) from error
    return field


def _without_handlers(function: Field, example: Tensor) -> Field:
    """The function as a graph, so that Pyro's handlers do not run inside torch.func; itself if that is not the same."""
    trusted = Trusted(lambda position: (function(position),), "eager")
    # Where a model defeats the tracer, whether torch.func can do without is seen next.
    trusted.attempt(
        "traced",
        lambda _: forward_differentiable(trace(lambda position: (function(position),), example.clone())),
        [(example + 0.3,), (example - 1.0,)],
    )
    if trusted.is_graph and not _has_the_derivative_of(lambda position: trusted(position)[0], function, example):
        trusted.forget()
    return lambda position: trusted(position)[0]


def _has_the_derivative_of(graph: Field, function: Field, example: Tensor) -> bool:
    """A trace goes through functions that bring a derivative of their own, and may have none in their place.

    That of a polar factor is NaN at matrices that are orthonormal, where it is singular vectors that are traced.
    """
    try:
        _, expected = jvp(function, (example,), (torch.ones_like(example),))
    except Exception:  # what cannot be differentiated but as a graph
        return True
    found = jvp(graph, (example,), (torch.ones_like(example),))[1]
    return agrees(found, expected.to(found))  # of a model that mixes dtypes, the graph may have either
