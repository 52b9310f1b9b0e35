"""Interface of a manifold, as functions of points and tangent vectors.

A manifold is a smooth curved set in the space of all vectors or matrices of one shape, its *ambient* space. A *tangent
vector* at one of its points is the velocity of a curve that leaves the point within the set; the *tangent space* is the
linear space of all tangent vectors at a point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Manifold(ABC):
    """A smooth set of tensors, such as the unit vectors; stateless, so one object serves sites of every size.

    Methods are pure functions of tensors: the last ``event_dim`` dimensions hold a point or a tangent
    vector, all dimensions in front are batch dimensions. The dtype and device are those of the arguments.
    """

    event_dim: int
    shape_in_words: str = "any"
    """Description of the event shapes of its points, for messages."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def dimension(self, *shape: int) -> int:
        """Return the number of degrees of freedom of a point with this event shape."""

    def accepts_shape(self, *shape: int) -> bool:
        """Return whether there are points with this event shape."""
        return len(shape) == self.event_dim

    def components(self, *shape: int) -> int:
        """Return the number of connected components of the manifold of this event shape."""
        return 1

    def entry_scale(self, *shape: int) -> float:
        """Return the root mean square entry of a `random_point` with this event shape: the unit of a coordinate."""
        return 1.0

    @abstractmethod
    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return a random point of shape ``shape`` (batch dimensions, then the event)."""

    @abstractmethod
    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        """Project ``ambient``, any tensor of the point's shape, orthogonally onto the tangent space at ``point``.

        It turns the gradient of a function of the entries into its gradient on the manifold.
        """

    @abstractmethod
    def projection(self, ambient: Tensor) -> Tensor:
        """Return the nearest point of the manifold, by the sum of squared differences of entries."""

    def log_volume_of_projection(self, point: Tensor, tangent: Tensor) -> Tensor:
        r"""Return the log of the factor by which the projection of the tangent space changes volumes.

        It is the log density of a random tangent vector $\delta$ at $x$, minus that of the point
        ``projection(x + δ)``, with volumes measured in the ambient space; 0 at $\delta = 0$.

        Args:
            point: x, ``(..., *event)``.
            tangent: δ, tangent at x.

        Returns:
            ``(...)``, a number for each batch element.

        Raises:
            NotImplementedError: for a manifold that does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no log_volume_of_projection: define this method for it.")

    @abstractmethod
    def retraction(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Take a step on the manifold, to a point near ``point + tangent`` that equals it to first order."""

    @abstractmethod
    def geodesic_flow(self, point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
        """Return the end point and end velocity of the geodesic that leaves ``point`` with velocity ``tangent``.

        A geodesic is the path of constant speed that bends no more than the manifold does, such as a great circle on
        the sphere; lengths are those of the ambient space.
        """

    def exponential(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return the end point of the unit-time geodesic that leaves ``point`` with velocity ``tangent``."""
        return self.geodesic_flow(point, tangent, 1.0)[0]

    def restoration(self, point: Tensor) -> Tensor:
        """Return the point of the manifold near one that is off it by rounding; cheaper than `projection`."""
        return self.projection(point)

    @abstractmethod
    def membership_error(self, point: Tensor) -> Tensor:
        """Return the distance of ``point`` from the manifold, a non-negative number for each batch element."""

    def transport(self, start: Tensor, end: Tensor, tangent: Tensor) -> Tensor:
        """Transport ``tangent`` from ``start`` to ``end``, by projection onto the tangent space at ``end``."""
        return self.tangent_projection(end, tangent)

    def contains(self, point: Tensor, tolerance: float | None = None) -> Tensor:
        """Return whether each batch element lies on the manifold up to ``tolerance`` (see `membership_tolerance`)."""
        if tolerance is None:
            tolerance = self.membership_tolerance(point.dtype)
        return self.membership_error(point) <= tolerance

    @staticmethod
    def membership_tolerance(dtype: torch.dtype) -> float:
        """Return the default tolerance, 10 ε^(2/3) for machine precision ε: 4e-10 in float64 and 2e-4 in float32.

        It is loose enough for the rounding errors that long trajectories accumulate, and tight enough to detect values
        that were never orthonormal.
        """
        return 10 * float(torch.finfo(dtype).eps) ** (2 / 3)
