"""Draws of von Mises–Fisher unit vectors, from which matrices with orthonormal columns are drawn."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta

from pyro_manifold.distributions.rejection import Proposals, sample_by_rejection
from pyro_manifold.manifolds.reflector import rotate_rows


@torch.no_grad()
def sample_von_mises_fisher(parameter: Tensor) -> Tensor:
    r"""Draw exactly from $p(x) \propto e^{f^\top x}$ on the unit sphere, by rejection (Wood 1994).

    Args:
        parameter: f, ``(..., m)``: concentration $\|f\|$ times mean direction. m = 1 draws a sign.

    Returns:
        Unit vectors ``(..., m)``.

    Examples:
        >>> sample_von_mises_fisher(torch.tensor([1e8, 0.0, 0.0])).abs().round().tolist()
        [1.0, 0.0, 0.0]
    """
    concentration = parameter.norm(dim=-1)
    if parameter.shape[-1] == 1:
        positive = torch.rand_like(parameter) < torch.sigmoid(2 * parameter)
        return torch.where(positive, 1.0, -1.0).to(parameter.dtype)
    deficit = _sample_deficit(concentration, parameter.shape[-1]).unsqueeze(-1)
    sideways = torch.randn_like(parameter[..., 1:])
    sideways = sideways / sideways.norm(dim=-1, keepdim=True)
    around_pole = torch.cat([1 - deficit, (deficit * (2 - deficit)).sqrt() * sideways], -1)
    return rotate_rows(around_pole.unsqueeze(-1), 0, parameter).squeeze(-1)


def _sample_deficit(concentration: Tensor, m: int) -> Tensor:
    r"""Draw 1 - t, t the cosine of the angle to the mean direction, of density $e^{\kappa t}(1-t^2)^{(m-3)/2}$.

    Wood's formulas are in terms of $1 - t$, since cosines round to 1 at large concentrations.
    """
    shape, kappa = concentration.shape, concentration.flatten()
    # b = (-2κ + √(4κ² + (m-1)²)) / (m-1), written without the difference of large numbers.
    b = (m - 1) / (2 * kappa + torch.hypot(2 * kappa, kappa.new_tensor(m - 1.0)))
    mode, mode_deficit = (1 - b) / (1 + b), 2 * b / (1 + b)
    half = kappa.new_tensor((m - 1) / 2)
    envelope = Beta(half, half, validate_args=False)

    def propose(pending: Tensor, repeats: int) -> Proposals:
        z, b_, mode_deficit_ = envelope.sample(torch.Size((repeats, len(pending)))), b[pending], mode_deficit[pending]
        proposal = 2 * b_ * z / (1 - (1 - b_) * z)
        # 1 - mode·t over 1 - mode², both free of cancellation.
        spread = (mode_deficit_ + mode[pending] * proposal) * (1 + b_).square() / (4 * b_)
        log_ratio = kappa[pending] * (mode_deficit_ - proposal) + (m - 1) * spread.log()
        # A concentration that is not finite gives NaN; rejection would not terminate.
        return proposal, torch.where(torch.isfinite(kappa[pending]), log_ratio, 0.0)

    deficit, _ = sample_by_rejection(propose, torch.empty_like(kappa))
    return deficit.reshape(shape)
