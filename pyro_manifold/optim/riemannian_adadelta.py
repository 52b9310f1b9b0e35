"""AdaDelta on manifolds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.optim.checks import check_at_least_zero, check_decay
from pyro_manifold.optim.mean_square import SecondMoment, accumulate, carry, check_kind, squared_gradient
from pyro_manifold.optim.riemannian import RiemannianOptimizer, State, entry_scale


class TorchRiemannianAdaDelta(RiemannianOptimizer):
    r"""`TorchRiemannianRMSProp` with the running mean square of past steps in place of a learning rate.

    $$
    V \leftarrow \rho V + (1 - \rho)\, g \circ g, \quad
    s = P_X\!\left(\sqrt{W + u^2 \delta} \oslash \sqrt{V + \delta} \circ g\right), \quad
    W \leftarrow \rho W + (1 - \rho)\, s \circ s, \quad X \leftarrow R_X(-\eta s) .
    $$

    g is the projected gradient, P and R are projection and retraction of `RiemannianOptimizer`, u is the size of an
    entry as in `TorchRiemannianRMSProp`. On Euclidean parameters this is `torch.optim.Adadelta`. With
    ``second_moment="transported"`` V is that of Zhou et al.; W is a matrix of mean squares in both cases.

    Args:
        params: tensors or groups; the group option ``manifold`` names their manifold.
        lr: η, a factor of the steps.
        rho: ρ in [0, 1).
        eps: δ; it sets the size of the first steps, about $u\sqrt{\delta}$.
        second_moment: see `SecondMoment`.

    Raises:
        ValueError: for options out of range, and as `RiemannianOptimizer`.

    Source: Zeiler 2012, arXiv 1212.5701; Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optimizer = TorchRiemannianAdaDelta([torch.zeros(3, requires_grad=True)], rho=0.95)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        second_moment: SecondMoment = "ambient",
    ) -> None:
        owner = type(self).__name__
        check_at_least_zero(owner, lr=lr, eps=eps)
        check_decay(owner, rho=rho)
        check_kind(second_moment, owner)
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "second_moment": second_moment})

    def initial_state(self, point: Tensor, options: dict[str, Any]) -> State:
        return {"mean_square": torch.zeros_like(point), "mean_square_step": torch.zeros_like(point)}

    def update(
        self, manifold: Manifold, point: Tensor, gradient: Tensor, state: State, options: dict[str, Any]
    ) -> tuple[Tensor, State]:
        rho, eps, kind = options["rho"], options["eps"], options["second_moment"]
        gradient = squared_gradient(manifold, point, gradient, kind)
        mean_square = accumulate(manifold, point, state["mean_square"], gradient, rho, kind)
        size = (state["mean_square_step"] + eps * entry_scale(manifold, point) ** 2).sqrt_()
        scaled = size.mul_(gradient).div_(_offset_root(mean_square, eps, kind))
        step = manifold.tangent_projection(point, scaled)
        end = manifold.retraction(point, -options["lr"] * step)
        return end, {
            "mean_square": carry(manifold, point, end, mean_square, kind),
            "mean_square_step": state["mean_square_step"].lerp(step * step, 1 - rho),
        }


def _offset_root(mean_square: Tensor, eps: float, kind: SecondMoment) -> Tensor:
    r"""Return $\sqrt{V + \delta}$, with the sign of V where V is transported and negative."""
    if kind == "ambient":
        return (mean_square + eps).sqrt_()
    size = (mean_square.abs() + eps).sqrt_()
    return torch.where(mean_square < 0, -size, size)
