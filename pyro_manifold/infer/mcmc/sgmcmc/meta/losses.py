r"""What training makes small: the Kullback–Leibler divergence of draws from the posterior.

Its gradient by weights w, through draws x(w), is :math:`E[(\nabla U(x) + \nabla\log q(x)) \cdot \partial_w x]`, ∇U of
the minibatch and ∇ log q of `stein_scores` for standardised coordinates; both are held constant.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.sgmcmc.meta.stein import stein_scores


class Loss(NamedTuple):
    """One of the two losses.

    Attributes:
        surrogate: a number with the gradient of the divergence for each coordinate, ``()``.
        residual: mean square of ∇U + ∇log q, which is 0 for draws of the posterior and full gradients, ``()``.
    """

    surrogate: Tensor
    residual: Tensor


def divergence(draws: Tensor, gradients: Tensor, constant: Tensor | None = None, *, marginal: bool = False) -> Loss:
    """The divergence of sets of draws.

    Args:
        draws: ``(..., n, d)``, differentiable by weights.
        gradients: ∇U there.
        constant: ``(..., m, d)``, more draws of the same sets, which depend on no weights any more.
        marginal: scores of each coordinate by itself. Of all coordinates together few draws say next to nothing where
            there are many: ten draws of a standard normal in 10,000 dimensions have scores 2,000 times too small.
    """
    fixed = draws.detach()
    together = fixed if constant is None else torch.cat([constant, fixed], -2)
    # In the unit of each coordinate: one width of a kernel for narrow and wide ones sees the wide ones alone.
    unit = together.std(-2, keepdim=True).clamp(min=torch.finfo(draws.dtype).tiny)
    standard = together / unit
    scores = stein_scores(standard.mT.unsqueeze(-1)).squeeze(-1).mT if marginal else stein_scores(standard)
    scores = (scores / unit)[..., -draws.shape[-2] :, :]
    residual = gradients + scores
    return Loss((residual * draws).mean(), residual.square().mean())
