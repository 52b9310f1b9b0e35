r"""Loss of training: the Kullback–Leibler divergence of draws from the posterior.

Its gradient with respect to weights w, through draws x(w), is
$E[(\nabla U(x) + \nabla\log q(x)) \cdot \partial_w x]$, with ∇U on the minibatch and ∇ log q estimated by
`stein_scores` for standardised coordinates; both are held constant.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler.training.stein import stein_scores


class Loss(NamedTuple):
    """Value of one of the two losses.

    Attributes:
        surrogate: a scalar with the gradient of the divergence per coordinate, ``()``.
        residual: mean square of ∇U + ∇log q, which is 0 for draws from the posterior and full gradients, ``()``.
    """

    surrogate: Tensor
    residual: Tensor


def divergence(draws: Tensor, gradients: Tensor, constant: Tensor | None = None, *, marginal: bool = False) -> Loss:
    """Compute the divergence loss of sets of draws.

    Args:
        draws: ``(..., n, d)``, differentiable with respect to weights.
        gradients: ∇U at the draws.
        constant: ``(..., m, d)``, further draws of the same sets, not differentiated.
        marginal: whether to estimate scores of each coordinate separately. Joint scores cannot be estimated from few
            draws in high dimension: from ten draws of a standard normal in 10,000 dimensions they are 2,000 times too
            small.
    """
    fixed = draws.detach()
    together = fixed if constant is None else torch.cat([constant, fixed], -2)
    # Coordinates are standardised: with a common kernel width only the widest ones would matter.
    unit = together.std(-2, keepdim=True).clamp(min=torch.finfo(draws.dtype).tiny)
    standard = together / unit
    scores = stein_scores(standard.mT.unsqueeze(-1)).squeeze(-1).mT if marginal else stein_scores(standard)
    scores = (scores / unit)[..., -draws.shape[-2] :, :]
    residual = gradients + scores
    return Loss((residual * draws).mean(), residual.square().mean())
