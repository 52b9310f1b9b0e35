"""Linear layer parametrised by the singular value decomposition of its weight."""

from __future__ import annotations

import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyro_manifold.nn.checks import check_counts, check_positive
from pyro_manifold.nn.priors import NormalPrior, OrderedHalfNormalPrior, StiefelPrior, remember_placement


class LowRankLinear(PyroModule):
    r"""`torch.nn.Linear` whose weight has rank r, parametrised by its singular vectors and values.

    $$
    y = U \operatorname{diag}(\sigma) V^\top x + b, \quad U^\top U = V^\top V = I, \quad
    \sigma_1 \ge \dots \ge \sigma_r > 0 .
    $$

    U and V are uniform on the matrices with orthonormal columns, σ the order statistics of r half-normal numbers of
    scale s, whose density on the ordered cone is $r! \prod_i \tfrac{2}{s} \varphi(\sigma_i / s)$, and
    $b_i \sim N(0, t^2)$ independent. W is never formed: an input costs r(in + out) products, not in·out.

    The sites are ``left`` (U), ``singular_values`` (σ) and ``right`` (V). The order identifies the columns, but the
    density is the same with the signs of a column of U and of V changed together: compare draws by U diag(σ) Vᵀ
    (`pyro_manifold.diagnostics.invariants` with ``scales=`` and ``right=``).

    Args:
        in_features: size of each input.
        out_features: size of each output.
        rank: r, at most the smaller of the two.
        bias: whether the layer has a bias.
        scale: s; √(out / r) if None. The mean of ‖W‖² is rs², so that it is that of independent entries of variance
            1/in: inputs of variance 1 have outputs of variance 1 + t².
        bias_scale: t.
        device: as in `torch.nn.Linear`.
        dtype: as in `torch.nn.Linear`; both follow ``.to(...)``.

    Shapes: ``(..., in)`` to ``(..., out)``; U ``(out, r)``, V ``(in, r)``, σ ``(r,)``.

    Raises:
        ValueError: for sizes that are not positive integers, a rank above them, or scales that are not positive.

    Examples:
        >>> layer = LowRankLinear(6, 5, rank=2)
        >>> layer(torch.randn(7, 6)).shape, int(torch.linalg.matrix_rank(layer.weight))
        (torch.Size([7, 5]), 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        bias: bool = True,
        *,
        scale: float | None = None,
        bias_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts("LowRankLinear", in_features=in_features, out_features=out_features, rank=rank)
        if rank > min(in_features, out_features):
            raise ValueError(
                f"LowRankLinear: rank={rank}, expected at most {min(in_features, out_features)}, the smaller of "
                f"in_features={in_features} and out_features={out_features}."
            )
        scale = (out_features / rank) ** 0.5 if scale is None else scale
        check_positive("LowRankLinear", scale=scale, bias_scale=bias_scale)
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        remember_placement(self, dtype, device)
        self.left = PyroSample(StiefelPrior(out_features, rank))
        self.singular_values = PyroSample(OrderedHalfNormalPrior(rank, float(scale)))
        self.right = PyroSample(StiefelPrior(in_features, rank))
        self.bias = PyroSample(NormalPrior((out_features,), float(bias_scale))) if bias else None

    @property
    def weight(self) -> Tensor:
        """The weight W, ``(out, in)``, computed at each access; outside of `forward` each access is a new draw."""
        left, scales, right = self.left, self.singular_values, self.right
        return left * scales @ right.mT

    def forward(self, input: Tensor) -> Tensor:
        scaled = input @ self.right * self.singular_values
        output: Tensor = scaled @ self.left.mT
        bias = self.bias
        return output if bias is None else output + bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, bias={'bias' in self._pyro_samples}"
