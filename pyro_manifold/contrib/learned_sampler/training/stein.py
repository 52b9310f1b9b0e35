r"""Score estimation: the gradient of a log density from draws, by Stein's identity.

For draws $x_i$ of a density q, $E_q[k(x, x') \nabla \log q(x') + \nabla_{x'} k(x, x')] = 0$ for every x;
over the draws this is a linear system for the gradients at them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def stein_scores(draws: Tensor, regularisation: float = 0.03) -> Tensor:
    r"""Estimate $\nabla \log q$ at draws from q.

    $$
    \hat G = -(K + \lambda I)^{-1} \langle \nabla, K \rangle, \qquad
    \langle \nabla, K \rangle_i = \sum_j \nabla_{x_j} k(x_i, x_j), \qquad
    k(x, x') = e^{-\|x - x'\|^2 / m},
    $$

    with m the median of squared distances between different draws.

    Args:
        draws: ``(..., n, d)``; each batch element is a separate set of draws.
        regularisation: λ.

    Returns:
        The estimated scores, ``(..., n, d)``.

    Raises:
        ValueError: for fewer than two draws.

    Source: Li & Turner, Gradient estimators for implicit models, ICLR 2018, equation 8.

    Examples:
        >>> draws = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        >>> scores = stein_scores(draws)  # those of a standard normal are -x
        >>> bool(torch.corrcoef(torch.cat([draws, scores], 1).mT)[0, 1] < -0.9)
        True
    """
    if draws.dim() < 2 or draws.shape[-2] < 2:
        raise ValueError(f"draws have the shape {tuple(draws.shape)}, expected (..., n, d) with at least two draws.")
    n = draws.shape[-2]
    squares = torch.cdist(draws, draws).square()
    pairs = torch.triu_indices(n, n, 1, device=draws.device)
    median = squares[..., pairs[0], pairs[1]].median(-1).values[..., None, None]
    median = median.clamp(min=torch.finfo(draws.dtype).tiny)
    kernel = torch.exp(-squares / median)
    slopes = (2 / median) * (kernel.sum(-1, keepdim=True) * draws - kernel @ draws)
    identity = torch.eye(n, dtype=draws.dtype, device=draws.device)
    # cholesky_ex does not raise: draws that are not finite have scores that are not.
    factor, failed = torch.linalg.cholesky_ex(kernel + regularisation * identity)
    return -torch.cholesky_solve(slopes, torch.where(failed[..., None, None] > 0, torch.nan, factor))
