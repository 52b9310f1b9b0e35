"""Metrics that change from point to point, and what moving in them needs: their connection and their volume."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

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
