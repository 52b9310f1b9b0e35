"""Points on a product of manifolds as rows, the protocol of a descent, and selection of chains from its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Size, Tensor

from pyro_manifold.manifolds import Manifold

K = TypeVar("K", str, tuple[str, ...])


class Points(Generic[K]):
    """Positions of all parts (sites or blocks of sites) as one vector per chain, ``(chains, coordinates)``.

    Args:
        example: ``{part: (any, ...)}``, used for its shapes.
        potential: computes energies and Euclidean gradients of any number of chains.
        manifolds: manifolds of the parts that have one.
        units: scales of the coordinates of Euclidean parts, ``{part: (...)}``; 1 for parts that are not given. With
            them, a descent does not depend on the units in which variables are measured.
    """

    def __init__(
        self,
        example: Mapping[K, Tensor],
        potential: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]],
        manifolds: Mapping[K, Manifold],
        units: Mapping[K, Tensor] | None = None,
    ) -> None:
        self._shapes: dict[K, Size] = {part: x.shape[1:] for part, x in example.items()}
        self._potential: Callable[[dict[K, Tensor]], tuple[Tensor, dict[K, Tensor]]] = potential
        self._manifolds: Mapping[K, Manifold] = manifolds
        self._units = _row_of(units, example) if units else None

    @property
    def dimension(self) -> int:
        """Degrees of freedom of one chain."""
        return sum(self._dimension(part, shape) for part, shape in self._shapes.items())

    def _dimension(self, part: K, shape: Size) -> int:
        if part not in self._manifolds:
            return shape.numel()
        manifold = self._manifolds[part]
        batch = len(shape) - manifold.event_dim
        return shape[:batch].numel() * manifold.dimension(*shape[batch:])

    def rows(self, parts: Mapping[K, Tensor]) -> Tensor:
        """Flatten ``{part: (chains, ...)}`` to ``(chains, coordinates)``."""
        rows = torch.cat([parts[part].reshape(len(parts[part]), -1) for part in self._shapes], 1)
        return rows if self._units is None else rows / self._units

    def parts(self, rows: Tensor) -> dict[K, Tensor]:
        """Split ``(chains, coordinates)`` into ``{part: (chains, ...)}``."""
        rows = rows if self._units is None else rows * self._units
        cut = rows.split([shape.numel() for shape in self._shapes.values()], 1)
        return {part: x.reshape(len(rows), *shape) for (part, shape), x in zip(self._shapes.items(), cut, strict=True)}

    def tangent(self, at: Tensor, vectors: Tensor) -> Tensor:
        """Project vectors to tangent space."""
        place, moved = self.parts(at), self.parts(vectors)
        for part, manifold in self._manifolds.items():
            moved[part] = manifold.tangent_projection(place[part], moved[part])
        return self.rows(moved)

    def moved(self, at: Tensor, by: Tensor) -> Tensor:
        """Return the points of the manifolds nearest to ``at + by``."""
        place = self.parts(at + by)
        for part, manifold in self._manifolds.items():
            place[part] = manifold.projection(place[part])
        return self.rows(place)

    def log_volume(self, at: Tensor, by: Tensor) -> Tensor:
        """Return the log of the factor by which `moved` changes volumes of tangent space, ``(chains,)``."""
        place, step = self.parts(at), self.parts(by)
        found = at.new_zeros(len(at))
        for part, manifold in self._manifolds.items():
            found = found + manifold.log_volume_of_projection(place[part], step[part]).reshape(len(at), -1).sum(1)
        return found

    def energy_and_slope(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Compute energies and gradients in tangent space; the energy is infinite where either is not finite."""
        energy, gradient = self._potential(self.parts(at))
        rows = self.rows(gradient)
        slope = self.tangent(at, rows if self._units is None else rows * self._units.square())
        fine = energy.isfinite() & slope.isfinite().all(1)
        return torch.where(fine, energy, torch.inf), torch.where(fine.unsqueeze(1), slope, 0.0)


def _row_of(units: Mapping[K, Tensor], example: Mapping[K, Tensor]) -> Tensor:
    """Return units as one row, with ones for parts that have no units."""
    return torch.cat(
        [units[part].flatten() if part in units else torch.ones_like(x[0]).flatten() for part, x in example.items()]
    )


class Place(Protocol):
    """State of a descent: named tensors ``(chains, ...)``; chains are independent of each other."""

    @property
    def at(self) -> Tensor: ...

    @property
    def energy(self) -> Tensor: ...


S = TypeVar("S", bound=Place)


class Descent(Protocol[S]):
    """Descent of independent chains; a chain whose energy would not decrease stays where it is."""

    def begin(self, at: Tensor) -> S:
        """Return the state at these points ``(chains, coordinates)``."""

    def advance(self, state: S) -> S:
        """Take one step, at the cost of one evaluation of the potential."""

    def predicted_decrease(self, state: S) -> Tensor:
        """Return the decrease in energy still predicted for each chain, ``(chains,)``; 0 for a chain that is stuck."""


def rows_of(state: Any, rows: Tensor) -> Any:
    """Return the state of the selected chains."""
    return type(state)(*[value[rows] for value in state])


def with_rows(state: Any, rows: Tensor, new: Any) -> Any:
    """Return the state with the selected chains replaced by ``new``."""
    pairs = zip(state, new, strict=True)
    return type(state)(*[value.index_copy(0, rows, values) for value, values in pairs])


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors ``(..., coordinates)`` to length 1."""
    tiny = torch.finfo(vectors.dtype).tiny
    vectors = vectors / vectors.abs().amax(-1, keepdim=True).clamp(min=tiny)  # squares would underflow
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=tiny)
