"""Adam on manifolds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.optim.checks import check_at_least_zero, check_decay
from pyro_manifold.optim.mean_square import SecondMoment, accumulate, carry, check_kind, root
from pyro_manifold.optim.riemannian import RiemannianOptimizer, State, entry_scale


class TorchRiemannianAdam(RiemannianOptimizer):
    r"""Adam on manifolds: momentum and running mean squares, both with bias correction.

    $$
    m \leftarrow P_X(\beta_1 m + (1 - \beta_1) G), \quad V \leftarrow \beta_2 V + (1 - \beta_2)\, G \circ G, \quad
    X \leftarrow R_X\!\left(-\eta u\, P_X\!\left(
    \frac{m}{1 - \beta_1^t} \oslash \Big(\sqrt{\tfrac{V}{1 - \beta_2^t}} + \delta\Big)\right)\right) .
    $$

    G is the gradient, P and R are projection and retraction of `RiemannianOptimizer`, u is the size of an entry as in
    `TorchRiemannianRMSProp`. On Euclidean parameters this is `torch.optim.Adam`. The geometry is that of
    `TorchRiemannianSGD`, the mean square that of `TorchRiemannianRMSProp`.

    Args:
        params: tensors or groups; the group option ``manifold`` names their manifold.
        lr: η.
        betas: β₁, β₂ in [0, 1).
        eps: δ.
        second_moment: see `SecondMoment`.

    Raises:
        ValueError: for options out of range, and as `RiemannianOptimizer`.

    Source: Kingma & Ba 2015, arXiv 1412.6980.

    Examples:
        >>> optimizer = TorchRiemannianAdam([torch.zeros(3, requires_grad=True)], lr=0.01)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        second_moment: SecondMoment = "ambient",
    ) -> None:
        owner = type(self).__name__
        check_at_least_zero(owner, lr=lr, eps=eps)
        check_decay(owner, **{"betas[0]": betas[0], "betas[1]": betas[1]})
        check_kind(second_moment, owner)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "second_moment": second_moment})

    def initial_state(self, point: Tensor, options: dict[str, Any]) -> State:
        # The step count stays on the CPU, where reading it needs no synchronisation.
        return {"momentum": torch.zeros_like(point), "mean_square": torch.zeros_like(point), "step": torch.tensor(0.0)}

    def update(
        self, manifold: Manifold, point: Tensor, gradient: Tensor, state: State, options: dict[str, Any]
    ) -> tuple[Tensor, State]:
        (beta1, beta2), kind = options["betas"], options["second_moment"]
        count = state["step"] + 1
        momentum = manifold.tangent_projection(point, state["momentum"].lerp(gradient, 1 - beta1))
        mean_square = accumulate(manifold, point, state["mean_square"], gradient, beta2, kind)
        scale = root(mean_square, kind).div_(float(1 - beta2**count) ** 0.5).add_(options["eps"])
        direction = manifold.tangent_projection(point, momentum / scale)
        rate = options["lr"] * entry_scale(manifold, point) / float(1 - beta1**count)
        end = manifold.retraction(point, -rate * direction)
        return end, {
            "momentum": momentum,
            "mean_square": carry(manifold, point, end, mean_square, kind),
            "step": count,
        }
