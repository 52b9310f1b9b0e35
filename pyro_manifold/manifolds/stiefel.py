"""The Stiefel manifold V(n, p): the set of n×p matrices with orthonormal columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.manifolds.base import Manifold
from pyro_manifold.manifolds.polar import polar_factor
from pyro_manifold.manifolds.polar_volume import log_volume_of_polar_retraction
from pyro_manifold.manifolds.sphere import great_circle_flow

RetractionMethod = Literal["qr", "polar", "cayley"]


def check_shape(n: int, p: int, owner: str) -> None:
    """Raise ValueError unless 1 ≤ p ≤ n."""
    if not 1 <= p <= n:
        raise ValueError(
            f"{owner}: got n={n}, p={p}, but n×p matrices with orthonormal columns need 1 ≤ p ≤ n; "
            "swap the two or transpose the matrix."
        )


def positive_qr(matrix: Tensor) -> Tensor:
    r"""Return the orthonormal factor of $Z = QR$ with a positive diagonal of R, which makes it unique.

    Its distribution is uniform (the Haar measure) when ``matrix`` has independent standard normal entries (Mezzadri
    2007, arXiv math-ph/0609050); without this choice of signs it is not.

    Examples:
        >>> Q = positive_qr(torch.tensor([[-2.0], [0.0]]))
        >>> torch.allclose(Q, torch.tensor([[-1.0], [0.0]]), atol=1e-6)
        True
    """
    factor, triangle = torch.linalg.qr(matrix)
    diagonal = triangle.diagonal(dim1=-2, dim2=-1)
    return factor * torch.where(diagonal < 0, -1.0, 1.0).to(matrix.dtype).unsqueeze(-2)


def cayley_flow(point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Rotate a point and a tangent vector by the Cayley transform of the plane they span.

    $$
    (X, r) \mapsto (QX, Qr), \quad Q = (I - \tfrac{t}{2} W)^{-1} (I + \tfrac{t}{2} W),
    \quad W = r X^\top - X r^\top .
    $$

    Q is orthogonal, so orthonormality, tangency and every norm in the kinetic energy are kept; W is the
    same before and after, so the flow with ``-time`` is the inverse. Wen & Yin 2013; Yanush & Kropotov,
    arXiv 1901.08045.

    With $C = X^\top r$, $A = \mathrm{skew}(C)$, $S = r^\top r - C^\top C$ and h = t/2, W maps X to $2XA + (r - XA)$ and
    $r - XA$ to $-XS$. On these two blocks Q costs one p×p inverse and products of 12np² operations:

    $$
    X' = X + 2D, \quad r' = r + X(A - C - 2hS) + 2D(A - hS), \quad
    D = h\,(r + X(2A - C - hS))\,(I - 2hA + h^2 S)^{-1} .
    $$

    The symmetric part of the inverted matrix is at least I. Without rounding C = A. Their difference removes from r
    what is not tangent: with A in place of C rounding errors would grow exponentially from step to step, and with
    $X + D$ as one product, linearly. A square X has $r = XA$ and S = 0.

    For n ≤ 2p < 2n, S is singular or nearly so, and long steps would multiply rounding errors by $\|tr\|^2$. There
    the n×n system of the definition is solved, whose condition number is at most $1 + \|tW\|/2$.

    Args:
        point: X, ``(..., n, p)``.
        tangent: r, ``(..., n, p)``, tangent at X.
        time: t, a number or a tensor that broadcasts with ``(..., n, p)``.

    Returns:
        The rotated point and the rotated tangent vector.
    """
    n, p = point.shape[-2:]
    if n <= 2 * p < 2 * n:
        return cayley_flow_by_rows(point, tangent, time)
    half, inner = time / 2, point.mT @ tangent
    skew = (inner - inner.mT) / 2
    identity = torch.eye(inner.shape[-1], dtype=point.dtype, device=point.device).expand_as(inner)
    # solve_ex does not raise: a diverging step may contain non-finite entries, which are returned.
    if n == p:
        along, off_tangent = (point @ torch.cat([skew, inner - skew], -1)).chunk(2, -1)
        change = by_matrix(torch.linalg.solve_ex, identity - time * skew, (2 * time) * along, left=False)[0]
        return point + change, tangent - off_tangent + change @ skew
    square = half * (tangent.mT @ tangent - inner.mT @ inner)
    turned, off_tangent = skew - square, inner - skew
    inverse = by_matrix(torch.linalg.solve_ex, identity - half * (skew + turned), identity)[0]
    along = point @ torch.cat([turned - off_tangent, -2 * square - off_tangent], -1)
    moved, kept = along.chunk(2, -1)
    change = (tangent + moved) @ (time * inverse)
    return point + change, tangent + kept + change @ turned


def cayley_flow_by_rows(point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
    """Compute `cayley_flow` by the n×n system; one Newton–Schulz step keeps rounding from adding up."""
    p, both, outer = point.shape[-1], torch.cat([point, tangent], -1), tangent @ point.mT
    generator = (time / 2) * (outer - outer.mT)
    identity = torch.eye(point.shape[-2], dtype=point.dtype, device=point.device)
    moved = both + 2 * by_matrix(torch.linalg.solve_ex, identity - generator, generator @ both)[0]
    end, carried = newton_schulz(moved[..., :p]), moved[..., p:]
    inner = end.mT @ carried
    return end, carried - end @ ((inner + inner.mT) / 2)


def geodesic_flow(point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Follow the geodesic for a given time, with lengths of the surrounding Euclidean space.

    $$
    [X', r'] = [X, r] \exp\!\left(t \begin{bmatrix} A & -S \\ I & A \end{bmatrix}\right)
    \begin{bmatrix} e^{-tA} & 0 \\ 0 & e^{-tA} \end{bmatrix},
    \quad A = X^\top r, \; S = r^\top r .
    $$

    The formula requires X orthonormal and r tangent: rounding errors grow exponentially from step to step, to order 1
    in about thirty steps of size 0.6. They are therefore removed at the end of each step. For p = 1 the geodesic is a
    great circle.

    Edelman, Arias & Smith 1998, eq. 2.42; Byrne & Girolami 2013, arXiv 1301.6064.

    Args:
        point: X, ``(..., n, p)``.
        tangent: r, ``(..., n, p)``, tangent at X.
        time: t, a number or a tensor that broadcasts with ``(..., n, p)``.

    Returns:
        The end point and the velocity there.
    """
    p = point.shape[-1]
    if p == 1:
        return great_circle_flow(point, tangent, time, dim=-2)
    inner, square = point.mT @ tangent, tangent.mT @ tangent
    identity = torch.eye(p, dtype=point.dtype, device=point.device).expand_as(square)
    generator = torch.cat([torch.cat([inner, -square], -1), torch.cat([identity, inner], -1)], -2)
    exponential, unwind = _exponentials(time * generator, -time * inner)
    moved = torch.cat([point, tangent], -1) @ exponential
    end, velocity = newton_schulz(moved[..., :p] @ unwind), moved[..., p:] @ unwind
    inner = end.mT @ velocity
    return end, velocity - end @ ((inner + inner.mT) / 2)


def _exponentials(large: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Compute exponentials of 2p×2p and p×p matrices, in one batch if those of a single matrix are not exact."""
    if _ONE_EXPONENTIAL_IS_EXACT:
        return torch.linalg.matrix_exp(large), torch.linalg.matrix_exp(small)
    p = small.shape[-1]
    padded = torch.nn.functional.pad(small, (0, p, 0, p))
    both = torch.linalg.matrix_exp(torch.stack([large, padded]))
    return both[0], both[1, ..., :p, :p]


def _one_exponential_is_exact() -> bool:
    """Return False for torch before 2.15, which has errors of 1e-10 there, unlike in batches (pytorch#196592)."""
    angle = 0.04
    turn = torch.linalg.matrix_exp(torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=torch.float64, device="cpu"))
    return abs(float(turn[0, 0]) - math.cos(angle)) < 1e-14


_ONE_EXPONENTIAL_IS_EXACT = _one_exponential_is_exact()


def newton_schulz(matrix: Tensor) -> Tensor:
    """Take one Newton–Schulz step towards the polar factor, which squares an orthogonality error near rounding."""
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return matrix @ (1.5 * identity - 0.5 * (matrix.mT @ matrix))


@dataclass(frozen=True)
class Stiefel(Manifold):
    r"""n×p matrices with orthonormal columns, $V(n, p) = \{X \in \mathbb{R}^{n \times p} : X^\top X = I\}$.

    Tangent vectors at X, the directions in which X can move without leaving the set, are the matrices r with
    $X^\top r$ skew-symmetric. p = 1 gives unit vectors, p = n the orthogonal matrices O(n).

    Source: Edelman, Arias & Smith 1998, SIAM Journal on Matrix Analysis and Applications 20, 303–353.

    Examples:
        >>> manifold = Stiefel()
        >>> X = manifold.random_point(5, 2)
        >>> r = manifold.tangent_projection(X, torch.randn(5, 2))
        >>> bool(manifold.contains(manifold.retraction(X, r)))
        True
    """

    event_dim = 2
    shape_in_words = "n×p with n ≥ p"

    def dimension(self, *shape: int) -> int:
        r"""Return $np - p(p+1)/2$."""
        n, p = shape
        return n * p - p * (p + 1) // 2

    def accepts_shape(self, *shape: int) -> bool:
        """Return whether the shape is (n, p) with 1 ≤ p ≤ n."""
        return len(shape) == 2 and 1 <= shape[1] <= shape[0]

    def components(self, *shape: int) -> int:
        """Return 2 for square matrices, by the sign of their determinant, else 1."""
        n, p = shape
        return 2 if n == p else 1

    def entry_scale(self, *shape: int) -> float:
        r"""Return $1/\sqrt{n}$."""
        return float(shape[0] ** -0.5)

    def random_point(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return matrices of shape ``(..., n, p)`` from the uniform distribution on the manifold (the Haar measure).

        Raises:
            ValueError: unless 1 ≤ p ≤ n.
        """
        check_shape(shape[-2], shape[-1], "Stiefel.random_point")
        # LAPACK returns column-major storage; users expect row-major.
        return positive_qr(torch.randn(*shape, dtype=dtype, device=device, generator=generator)).contiguous()

    def tangent_projection(self, point: Tensor, ambient: Tensor) -> Tensor:
        r"""Return $P_X(G) = G - X\,\mathrm{sym}(X^\top G)$ with $\mathrm{sym}(A) = (A + A^\top)/2$.

        It is orthogonal in the inner product $\operatorname{tr} A^\top B$.
        """
        inner = point.mT @ ambient
        return ambient - point @ ((inner + inner.mT) / 2)

    def projection(self, ambient: Tensor) -> Tensor:
        """Return the nearest matrix with orthonormal columns, the polar factor: see `polar_factor`."""
        check_shape(ambient.shape[-2], ambient.shape[-1], "Stiefel.projection")
        return polar_factor(ambient)

    def log_volume_of_projection(self, point: Tensor, tangent: Tensor) -> Tensor:
        """Return the log volume of the polar factor: see `log_volume_of_polar_retraction`."""
        return log_volume_of_polar_retraction(point, tangent)

    def retraction(self, point: Tensor, tangent: Tensor, method: RetractionMethod = "qr") -> Tensor:
        r"""Move along ``tangent`` and return to the manifold.

        ``"qr"`` takes the orthonormal factor Q of $X + r = QR$, ``"polar"`` its polar factor (the geodesic to
        second order), ``"cayley"`` rotates by the Cayley transform $(I - W/2)^{-1}(I + W/2)$ of
        $W = P r X^\top - X r^\top P$ with $P = I - XX^\top/2$, for which $WX = r$.

        Raises:
            ValueError: for another method.
        """
        if method == "qr":
            return positive_qr(point + tangent)
        if method == "polar":
            return polar_factor(point + tangent)
        if method == "cayley":
            halved = tangent - point @ (point.mT @ tangent) / 2
            return cayley_flow(point, halved, 1.0)[0]
        raise ValueError(f"Stiefel.retraction: method={method!r}, expected 'qr', 'polar' or 'cayley'.")

    def geodesic_flow(self, point: Tensor, tangent: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
        return geodesic_flow(point, tangent, time)

    def restoration(self, point: Tensor) -> Tensor:
        """Take one Newton–Schulz step towards the polar factor."""
        return newton_schulz(point)

    def membership_error(self, point: Tensor) -> Tensor:
        r"""Return $\max |X^\top X - I|$; infinite where X is not finite."""
        gram = point.mT @ point
        identity = torch.eye(point.shape[-1], dtype=point.dtype, device=point.device)
        return (gram - identity).abs().flatten(-2).amax(-1).nan_to_num(nan=torch.inf, posinf=torch.inf)
