"""Points on a product of manifolds as rows, what a descent is, and how its states are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Size, Tensor

from pyro_manifold.manifolds import Manifold

K = TypeVar("K", str, tuple[str, ...])


class Points(Generic[K]):
    """Positions of all parts, sites or blocks of them, as one vector for each chain, ``(chains, coordinates)``.

    Args:
        example: ``{part: (any, ...)}``, for shapes.
        potential: energies and Euclidean gradients of any number of chains.
        manifolds: of the parts that have one.
    """

    def __init__(
        self,
        example: Mapping[K, Tensor],
        potential: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]],
        manifolds: Mapping[K, Manifold],
    ) -> None:
        self._shapes: dict[K, Size] = {part: x.shape[1:] for part, x in example.items()}
        self._potential: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]] = potential
        self._manifolds: Mapping[K, Manifold] = manifolds

    def rows(self, parts: Mapping[K, Tensor]) -> Tensor:
        """``{part: (chains, ...)}`` to ``(chains, coordinates)``."""
        return torch.cat([parts[part].reshape(len(parts[part]), -1) for part in self._shapes], 1)

    def parts(self, rows: Tensor) -> dict[K, Tensor]:
        """``(chains, coordinates)`` to ``{part: (chains, ...)}``."""
        cut = rows.split([shape.numel() for shape in self._shapes.values()], 1)
        return {part: x.reshape(len(rows), *shape) for (part, shape), x in zip(self._shapes.items(), cut, strict=True)}

    def tangent(self, at: Tensor, vectors: Tensor) -> Tensor:
        """Vectors projected to tangent space."""
        place, moved = self.parts(at), self.parts(vectors)
        for part, manifold in self._manifolds.items():
            moved[part] = manifold.tangent_projection(place[part], moved[part])
        return self.rows(moved)

    def moved(self, at: Tensor, by: Tensor) -> Tensor:
        """The points of the manifolds nearest to ``at + by``."""
        place = self.parts(at + by)
        for part, manifold in self._manifolds.items():
            place[part] = manifold.projection(place[part])
        return self.rows(place)

    def energy_and_slope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Energies and gradients in tangent space. Where one is not finite, the energy is infinite."""
        energy, gradient = self._potential(self.parts(at))
        slope = self.tangent(at, self.rows(gradient))
        fine = energy.isfinite() & slope.isfinite().all(1)
        return torch.where(fine, energy, torch.inf), torch.where(fine.unsqueeze(1), slope, 0.0)


class Place(Protocol):
    """The state of a descent: named tensors ``(chains, ...)``, each chain for itself."""

    @property
    def at(self) -> Tensor: ...

    @property
    def energy(self) -> Tensor: ...


S = TypeVar("S", bound=Place)


class Descent(Protocol[S]):
    """A way down; each chain goes by itself. A chain that was not led lower stays, and tries another step next."""

    def begin(self, at: Tensor) -> S:
        """The state at some points ``(chains, coordinates)``."""

    def advance(self, state: S) -> S:
        """One step, which costs one evaluation."""

    def promise(self, state: S) -> Tensor:
        """How much lower a chain may still come, by the last that it knows, ``(chains,)``; 0 where it is stuck."""


def rows_of(state: Any, rows: Tensor) -> Any:
    """The state of some chains."""
    return type(state)(*[value[rows] for value in state])


def with_rows(state: Any, rows: Tensor, new: Any) -> Any:
    """The state with that of some chains replaced."""
    pairs = zip(state, new, strict=True)
    return type(state)(*[value.index_copy(0, rows, values) for value, values in pairs])


def unit(vectors: Tensor) -> Tensor:
    """Each row at length 1."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
