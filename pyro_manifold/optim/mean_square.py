r"""Running mean squares of gradients, by which RMSProp, AdaDelta and Adam scale coordinates."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from pyro_manifold.manifolds import Manifold

SecondMoment = Literal["ambient", "transported"]
r"""Running mean square V of gradients on a manifold, in one of two definitions.

With G the gradient of the entries at the point X, $g = P_X(G)$ its projection onto the tangent space there, and T the
transport, which projects onto the tangent space at the next point,

- ``"ambient"``: $V \leftarrow \rho V + (1 - \rho)\, g \circ g$, a non-negative matrix that is not transported;
- ``"transported"``: $V \leftarrow \rho\, T(V) + (1 - \rho)\, P_X(G \circ G)$, a tangent vector, as in Zhou, Gao,
  Tran & Gerlach, arXiv 1902.03718. Its entries may be negative, and a negative entry reverses its coordinate.

The step is $P_X(g \oslash (\sqrt{V} + \delta))$ for the first and
$P_X(G \oslash (\mathrm{sign}(V) \circ \sqrt{|V|} + \delta))$ for the second; products ∘ and quotients ⊘ are entrywise.
Adam squares G in both and divides its momentum. Where V is near zero and negative, the divisor of the second passes
through zero. For parameters without a manifold the two are the same.

The transform of a constrained parameter of Pyro's store projects its gradient, so that the optimiser receives g for G.
For the form of the paper give the parameter no constraint, an initial value on the manifold, and the group option
``manifold``.
"""


def accumulate(
    manifold: Manifold, point: Tensor, past: Tensor, gradient: Tensor, decay: float, kind: SecondMoment
) -> Tensor:
    r"""Return $\rho V + (1 - \rho)\, g \circ g$, with the square projected if V is to be transported."""
    square = gradient * gradient
    if kind == "transported":
        square = manifold.tangent_projection(point, square)
    return past.lerp(square, 1 - decay)


def squared_gradient(manifold: Manifold, point: Tensor, gradient: Tensor, kind: SecondMoment) -> Tensor:
    """Return the gradient that RMSProp and AdaDelta square and divide: projected, unless V is transported."""
    return gradient if kind == "transported" else manifold.tangent_projection(point, gradient)


def carry(manifold: Manifold, start: Tensor, end: Tensor, mean_square: Tensor, kind: SecondMoment) -> Tensor:
    """Return V for the next step: transported to the new point if ``kind`` is ``"transported"``, else unchanged."""
    return manifold.transport(start, end, mean_square) if kind == "transported" else mean_square


def root(mean_square: Tensor, kind: SecondMoment) -> Tensor:
    r"""Return $\sqrt{V}$, or $\mathrm{sign}(V) \circ \sqrt{|V|}$ if V may be negative."""
    return mean_square.sqrt() if kind == "ambient" else mean_square.sign() * mean_square.abs().sqrt()


def check_kind(kind: str, owner: str) -> None:
    """Raise ValueError unless ``kind`` is ``"ambient"`` or ``"transported"``."""
    if kind not in get_args(SecondMoment):
        raise ValueError(f"{owner}: second_moment={kind!r}, expected one of {get_args(SecondMoment)}.")
