"""RMSProp on manifolds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.optim.checks import check_at_least_zero, check_decay
from pyro_manifold.optim.mean_square import SecondMoment, accumulate, carry, check_kind, root, squared_gradient
from pyro_manifold.optim.riemannian import RiemannianOptimizer, State, entry_scale


class TorchRiemannianRMSProp(RiemannianOptimizer):
    r"""RMSProp on manifolds: gradient steps in coordinates scaled by their running root mean square.

    $$
    V \leftarrow \rho V + (1 - \rho)\, g \circ g, \qquad
    X \leftarrow R_X\!\left(-\eta u\, P_X\!\left(g \oslash (\sqrt{V} + \delta)\right)\right), \qquad g = P_X(G) .
    $$

    G is the gradient, P and R are projection and retraction of `RiemannianOptimizer`, u is the size of an entry: 1/√n
    for orthonormal n×p matrices, so that columns turn by about η radians in a step for every n (the paper has u = 1),
    and 1 for Euclidean parameters, where this is `torch.optim.RMSprop`. See `SecondMoment` for the two
    definitions of V.

    Args:
        params: tensors or groups; the group option ``manifold`` names their manifold.
        lr: η.
        alpha: ρ in [0, 1).
        eps: δ.
        second_moment: ``"ambient"``, the formula above, or ``"transported"``, that of the source (see `SecondMoment`).

    Raises:
        ValueError: for options out of range, and as `RiemannianOptimizer`.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optimizer = TorchRiemannianRMSProp([torch.zeros(3, requires_grad=True)], lr=0.1)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        second_moment: SecondMoment = "ambient",
    ) -> None:
        owner = type(self).__name__
        check_at_least_zero(owner, lr=lr, eps=eps)
        check_decay(owner, alpha=alpha)
        check_kind(second_moment, owner)
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "second_moment": second_moment})

    def initial_state(self, point: Tensor, options: dict[str, Any]) -> State:
        return {"mean_square": torch.zeros_like(point)}

    def update(
        self, manifold: Manifold, point: Tensor, gradient: Tensor, state: State, options: dict[str, Any]
    ) -> tuple[Tensor, State]:
        kind = options["second_moment"]
        gradient = squared_gradient(manifold, point, gradient, kind)
        mean_square = accumulate(manifold, point, state["mean_square"], gradient, options["alpha"], kind)
        scaled = manifold.tangent_projection(point, gradient / root(mean_square, kind).add_(options["eps"]))
        end = manifold.retraction(point, -options["lr"] * entry_scale(manifold, point) * scaled)
        return end, {"mean_square": carry(manifold, point, end, mean_square, kind)}
