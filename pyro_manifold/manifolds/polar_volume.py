"""Volume element of the polar retraction, from a tangent space of the Stiefel manifold to the manifold."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.manifolds.polar import finite_or_zero


def log_volume_of_polar_retraction(point: Tensor, tangent: Tensor) -> Tensor:
    r"""Return the log of the factor by which $\delta \mapsto$ `polar_factor` $(X + \delta)$ changes volumes.

    With $A = X^\top \delta$, which is skew-symmetric, $C = I + A$ and $P = (I + \delta^\top \delta)^{1/2}$, whose
    eigenvalues are s, and with the eigenvalues g of $P C^{-1}$, it is

    $$ -n \log\det P + p \log\det C + \sum_{i<j} \log \frac{|g_i + g_j|}{s_i + s_j} . $$

    Derivation: let $Z = X + \delta = YP$. With $d\delta = X\,dA + X_\perp dB$ and $B = X_\perp^\top \delta$, the part
    of dY across the span of Y is that of $X_\perp (dB - B C^{-1} dA)\,P^{-1}$, and the part within it solves
    $PS + SP = GdA + dA\,G^\top$ with $G = PC^{-1}$, at $dB = BC^{-1} dA$. On skew-symmetric matrices these two maps
    have the eigenvalues $s_i + s_j$ and $g_i + g_j$. The map from δ is one to one: no other δ leads to the same Y.

    For horizontal δ, A = 0, it is the factor for subspaces, $-n \log\det P$.

    Args:
        point: X, ``(..., n, p)``.
        tangent: δ, tangent at X.

    Returns:
        ``(...)``; NaN where δ is not finite.

    Examples:
        >>> X = torch.eye(3, 1)
        >>> round(float(log_volume_of_polar_retraction(X, torch.tensor([[0.0], [1.0], [0.0]]))), 4)  # -3/2 log 2
        -1.0397
    """
    n, p = point.shape[-2:]
    tangent, mark = finite_or_zero(tangent)
    identity = torch.eye(p, dtype=point.dtype, device=point.device)
    squares, basis = torch.linalg.eigh(identity + tangent.mT @ tangent)
    s = squares.sqrt()
    found = mark.squeeze(-1).squeeze(-1) - 1 - n * s.log().sum(-1)
    if p == 1:
        return found
    inner = point.mT @ tangent
    C = identity + (inner - inner.mT) / 2
    P = (basis * s.unsqueeze(-2)) @ basis.mT
    g = torch.linalg.eigvals(by_matrix(torch.linalg.solve, C, P, left=False))
    row, column = torch.tril_indices(p, p, -1)
    ratios = (g[..., row] + g[..., column]).abs() / (s[..., row] + s[..., column])
    return found + p * by_matrix(torch.linalg.slogdet, C)[1] + ratios.log().sum(-1)
