"""Position-dependent metrics, with their connection and the gradient of their log volume."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

from pyro_manifold.compiled import FORWARD_MODE, Verified, agrees, folded_graph, run, trace

# Typed as Any, since their annotations do not distinguish results with and without auxiliary output.
jvp: Any = torch.func.jvp
vjp: Any = torch.func.vjp

Field = Callable[[Tensor], Tensor]
"""Function of the flat position ``(d,)`` of one chain."""


class MetricField(ABC):
    r"""Position-dependent metric G(q) on flat positions, vectorised over chains.

    $C(q, v)$ is the lower connection as a matrix: $C(q, v)\,w = G\,\Gamma(v, w)$ with
    $G\,\Gamma(v, w) = \tfrac12 (\partial_v G\,w + \partial_w G\,v - \nabla v^\top G w)$, symmetric in v and w.
    """

    @abstractmethod
    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        r"""Return G, ``(chains, d, d)``, and the map from symmetric weights W to $\tfrac12\nabla tr(W G)$.

        With W = G⁻¹, held fixed, that is the gradient of $\tfrac12\log|G|$, so that no derivative of a
        factorisation is needed.
        """

    @abstractmethod
    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        """Compute C(q, v) v, ``(chains, d)``, at the cost of a few evaluations of the field."""

    @abstractmethod
    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        """Compute C(q, v), ``(chains, d, d)``, at the cost of d evaluations of the field."""


class TracedField(MetricField):
    """Metric field with its connection traced to a graph once; a step contains it four times and tracing is slow.

    Args:
        field: the metric field.
        position: example positions for tracing.
        velocity: example velocities for tracing.
        as_matrix: whether `connection_matrix` is used instead of `connection`.
    """

    def __init__(self, field: MetricField, position: Tensor, velocity: Tensor, as_matrix: bool) -> None:
        self._field = field
        connection = field.connection_matrix if as_matrix else field.connection
        self._connection = folded_graph(connection, position.clone(), velocity.clone())

    def at(self, position: Tensor) -> tuple[Tensor, Field]:
        return self._field.at(position)

    def connection(self, position: Tensor, velocity: Tensor) -> Tensor:
        return self._connection(position, velocity)

    def connection_matrix(self, position: Tensor, velocity: Tensor) -> Tensor:
        return self._connection(position, velocity)


class PullBackMetric(MetricField):
    r"""Pull-back metric of an embedding f: $G = J^\top J$, J the Jacobian of f.

    Then $C(q, v)\,w = J^\top f''(q)[v, w]$, which is computed by Jacobian-vector products, without a tensor of
    third derivatives. The cost is O(l d²) for G and C, and that of O(l) evaluations for C v.

    Args:
        embedding: function from ``(d,)`` to ``(l,)``.
        dimension: d.
        codomain: l; it determines whether forward or reverse mode is used.
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
    r"""Metric given as a function that returns the matrix G(q).

    Args:
        metric: function from ``(d,)`` to a symmetric positive definite ``(d, d)``.
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
    """Build the metric field of a function that returns an embedding ``(l,)`` or the metric itself, ``(d, d)``.

    Args:
        function: function of the flat position of one chain.
        start: positions of all chains, ``(chains, d)``, at which the function is checked.

    Raises:
        ValueError: if the function returns something else, or cannot be differentiated.
    """
    dimension, example = start.shape[-1], start[0]
    found: object = function(example)
    if not torch.is_tensor(found):
        raise ValueError(f"metric returns {found!r}, expected a tensor.")
    if found.dim() != 1 and found.shape != (dimension, dimension):
        raise ValueError(
            f"metric returns a tensor of shape {tuple(found.shape)}, expected a vector, of which the pull-back "
            f"metric is used, or the metric itself, ({dimension}, {dimension})."
        )
    if found.dim() == 2 and not agrees(found.mT, found):
        raise ValueError(
            "metric returns a matrix that is not symmetric, expected a symmetric positive definite matrix."
        )

    def in_dtype_of_sites(position: Tensor) -> Tensor:
        value = function(position).to(position.dtype)
        return value if value.dim() == 1 else (value + value.mT) / 2

    _load_forward_differentiation()
    graph = _without_handlers(in_dtype_of_sites, example)
    field = PullBackMetric(graph, dimension, len(found)) if found.dim() == 1 else DenseMetric(graph)
    try:
        with torch.enable_grad():
            field.at(start[:1])
            field.connection(start[:1], torch.ones_like(start[:1]))
    except Exception as error:
        raise ValueError(
            f"The metric cannot be differentiated twice by torch.func ({error}): avoid branches on values, .item(), "
            "in-place operations and random numbers in it, or in the model from which it is computed, or pass "
            "metric=."
        ) from error
    return field


@cache
def _load_forward_differentiation() -> None:
    """Load torch's forward-mode differentiation without its deprecation warning (`torch.jit.script`, torch 2.15)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit")
        jvp(torch.neg, (torch.zeros(()),), (torch.zeros(()),))


def _without_handlers(function: Field, example: Tensor) -> Field:
    """Trace the function, so that Pyro's handlers do not run inside torch.func; return it unchanged if that fails."""
    verified = Verified(lambda position: (function(position),), "eager")
    # If tracing fails, the caller checks whether torch.func can differentiate the function itself.
    verified.attempt(
        "traced",
        lambda _: run(FORWARD_MODE, trace(lambda position: (function(position),), example.clone())),
        [(example + 0.3,), (example - 1.0,)],
    )
    if verified.is_graph and not _has_the_derivative_of(lambda position: verified(position)[0], function, example):
        verified.use_reference()
    return lambda position: verified(position)[0]


def _has_the_derivative_of(graph: Field, function: Field, example: Tensor) -> bool:
    """Return whether the graph has the derivative of the function.

    Tracing replaces functions with a custom derivative by their operations, which may not be differentiable. A polar
    factor is traced as a singular value decomposition, whose derivative is NaN at orthonormal matrices.
    """
    try:
        _, expected = jvp(function, (example,), (torch.ones_like(example),))
    except Exception:  # only the graph can be differentiated
        return True
    found = jvp(graph, (example,), (torch.ones_like(example),))[1]
    return agrees(found, expected.to(found))  # if a model mixes dtypes, the graph may have either
