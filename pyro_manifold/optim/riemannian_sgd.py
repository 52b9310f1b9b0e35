"""Gradient descent on manifolds, plain and with momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.manifolds import Manifold
from pyro_manifold.optim.checks import check_at_least_zero, check_decay
from pyro_manifold.optim.riemannian import RiemannianOptimizer, State


class TorchRiemannianSGD(RiemannianOptimizer):
    r"""Gradient descent on manifolds, with projection P, retraction R and transport T of `RiemannianOptimizer`.

    $$ v \leftarrow \gamma\, T(v) + P_X(G), \qquad X \leftarrow R_X(-\eta v) . $$

    On Euclidean parameters this is `torch.optim.SGD`. Zhou et al. have η inside v, which is equivalent at a constant η.

    Args:
        params: tensors or groups; the group option ``manifold`` names their manifold.
        lr: η.
        momentum: γ in [0, 1); 0 for plain gradient descent.

    Raises:
        ValueError: for options out of range, and as `RiemannianOptimizer`.

    Source: Bonnabel 2013, arXiv 1111.5280; Zhou, Gao, Tran & Gerlach, arXiv 1902.03718, for momentum.

    Examples:
        >>> from pyro_manifold.manifolds import Stiefel
        >>> target = torch.eye(4, 2)
        >>> X = Stiefel().random_point(4, 2).requires_grad_()
        >>> optimizer = TorchRiemannianSGD([{"params": [X], "manifold": Stiefel()}], lr=0.3)
        >>> for _ in range(200):
        ...     optimizer.zero_grad()
        ...     (X - target).square().sum().backward()
        ...     _ = optimizer.step()
        >>> bool((X - target).abs().max() < 1e-3)
        True
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0) -> None:
        check_at_least_zero(type(self).__name__, lr=lr)
        check_decay(type(self).__name__, momentum=momentum)
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def initial_state(self, point: Tensor, options: dict[str, Any]) -> State:
        return {"velocity": torch.zeros_like(point)} if options["momentum"] else {}

    def update(
        self, manifold: Manifold, point: Tensor, gradient: Tensor, state: State, options: dict[str, Any]
    ) -> tuple[Tensor, State]:
        if state:
            gradient = options["momentum"] * state["velocity"] + gradient
        velocity = manifold.tangent_projection(point, gradient)
        end = manifold.retraction(point, -options["lr"] * velocity)
        return end, {"velocity": velocity} if state else {}


class TorchRiemannianMomentum(TorchRiemannianSGD):
    """`TorchRiemannianSGD` with a default momentum of 0.9.

    Args:
        params: tensors or groups; the group option ``manifold`` names their manifold.
        lr: η.
        momentum: γ in [0, 1).

    Raises:
        ValueError: for options out of range, and as `RiemannianOptimizer`.

    Source: Zhou, Gao, Tran & Gerlach, arXiv 1902.03718.

    Examples:
        >>> optimizer = TorchRiemannianMomentum([torch.zeros(3, requires_grad=True)], lr=0.1)
        >>> optimizer.param_groups[0]["momentum"]
        0.9
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.9) -> None:
        super().__init__(params, lr, momentum)
