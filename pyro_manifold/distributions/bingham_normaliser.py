r"""The Bingham normalising constant, $E\,e^{x^\top A x}$ for x uniform on the unit sphere, by a contour integral.

With the eigenvalues $\lambda_i$ of A (Kume and Wood 2005, Biometrika 92; Kume and Sei 2018, Stat. Comput. 28)

$$ E\,e^{x^\top A x} = \frac{\Gamma(n/2)}{2\pi i} \int e^s \prod_i (s - \lambda_i)^{-1/2}\, ds $$

along any path around the eigenvalues. The path here is a parabola through the saddle point of the integrand, on which
the integrand decays as a Gaussian; the trapezoidal rule then converges geometrically, however far apart the eigenvalues
are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DIGITS = 34.0  # minus the logarithm of what is cut off
_NEWTON_STEPS = 8


def log_bingham_normaliser(A: Tensor) -> Tensor:
    """Compute the log normalising constant of symmetric matrices.

    It has first derivatives in A everywhere, also where eigenvalues are equal.

    Args:
        A: ``(..., n, n)``, symmetric.

    Returns:
        ``(...)``, dtype of A; computed in float64. The error is at most 1e-13 of the larger of it and 1 for n ≤ 20, at
        eigenvalues up to 1e6, and 1e-10 for n ≤ 300. Time and memory grow as n².

    Examples:
        >>> log_bingham_normaliser(torch.zeros(3, 3)).abs().item() < 1e-6
        True
    """
    return log_normaliser_of_eigenvalues(torch.linalg.eigvalsh(A.double())).to(A.dtype)


def log_normaliser_of_eigenvalues(eigenvalues: Tensor) -> Tensor:
    """Compute the log normalising constant from eigenvalues ``(..., n)``, float64, in any order."""
    n = eigenvalues.shape[-1]
    top = eigenvalues.detach().amax(-1, keepdim=True)
    cost = top - eigenvalues
    saddle, y, bend, slope, step = _path(cost.detach())
    # Logarithms of the integrand less that at the saddle point: the largest one.
    real = (saddle - bend).unsqueeze(-1) + cost.unsqueeze(-2)
    imaginary = y.unsqueeze(-1).expand_as(real)
    at_saddle = (saddle + cost).log().sum(-1) / 2
    size = torch.exp(at_saddle.unsqueeze(-1) - bend - (real.square() + imaginary.square()).log().sum(-1) / 4)
    phase = y - torch.atan2(imaginary, real).sum(-1) / 2
    # By symmetry twice the real part of the upper half; the node on the axis counts once.
    integrand = size * (phase.cos() - slope * phase.sin())
    total = (integrand.sum(-1) - integrand[..., 0] / 2) * step.squeeze(-1) / math.pi
    return (top + saddle).squeeze(-1) - at_saddle + total.log() + math.lgamma(n / 2)


@torch.no_grad()
def _path(cost: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    r"""Return the saddle point s, and nodes y of $s - y^2/4L + iy$: y, $y^2/4L$, its slope and the step of y.

    L = s goes around the largest eigenvalue as tightly as is possible. Many eigenvalues at a distance where the path
    would bend towards them need a wider one.
    """
    n = cost.shape[-1]
    saddle = _saddle_point(cost)
    weights = saddle / (saddle + cost)
    others, squares = weights.sum(-1, keepdim=True) - 1, weights.square().sum(-1, keepdim=True) - 1
    tiny = torch.finfo(cost.dtype).tiny
    crowd = others / squares.clamp(min=tiny) * (1 - 0.5 / others.clamp(min=tiny)).clamp(min=0)
    width = saddle * (1 + crowd.clamp(max=n / 8))
    nodes = 72 + 2 * n
    step = (4 * _DIGITS * width).sqrt() / (nodes - 1)
    y = step * torch.arange(nodes, dtype=cost.dtype, device=cost.device)
    return saddle, y, y.square() / (4 * width), y / (2 * width), step


def _saddle_point(cost: Tensor) -> Tensor:
    r"""Solve $\sum_i 1/(s + c_i) = 2$ for s ``(..., 1)``: Newton's method for the reciprocal, which is concave."""
    s = torch.full_like(cost[..., :1], 0.5)
    for _ in range(_NEWTON_STEPS):
        inverse = 1 / (s + cost)
        half, slope = inverse.sum(-1, keepdim=True) / 2, inverse.square().sum(-1, keepdim=True) / 2
        s = s + (half - 1) * half / slope
    return s
