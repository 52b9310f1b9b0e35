"""The von Mises–Fisher distribution of unit vectors, also the building block of draws of orthonormal matrices."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions import constraints as pyro_constraints
from torch import Size, Tensor
from torch.distributions import Beta, register_kl
from torch.distributions.constraints import Constraint

from pyro_manifold.compiled import broadcast_shapes
from pyro_manifold.distributions.constraints import uniform_sphere
from pyro_manifold.distributions.rejection import Proposals, sample_by_rejection
from pyro_manifold.distributions.repeated_rows import repeated_rows
from pyro_manifold.distributions.sphere_normaliser import (
    length_deficit,
    mean_resultant_length,
    scaled_log_normaliser,
)
from pyro_manifold.manifolds import rotate_rows


class VonMisesFisher(TorchDistribution):
    r"""Von Mises–Fisher distribution of unit vectors in $\mathbb{R}^n$.

    $$ p(x) = e^{\kappa \mu^\top x} / {}_0F_1(n/2; \kappa^2/4) $$

    The base measure is the **normalised** uniform distribution on the sphere, as everywhere in this package: at κ = 0
    the distribution is uniform and ``log_prob`` is 0. For the density with respect to surface area, as that of
    `scipy.stats.vonmises_fisher` and of Pyro's `ProjectedNormal`, subtract the logarithm of the area,
    $\log 2\pi^{n/2} - \log \Gamma(n/2)$. Posteriors are the same under both. ``entropy`` is relative to the same base
    measure, so 0 at κ = 0 and negative otherwise.

    ``log_prob`` has derivatives of every order in κ, μ and x, accurate from κ = 0 to 1e6 and for n up to 1e4. The
    linear part is evaluated as $\kappa - \kappa \|x - \mu\|^2/2$, which keeps its digits at large κ, also in
    float32. The constant is computed once for each distinct κ: copies by ``expand`` and by an index,
    ``concentration[group]``, share it.

    ``sample`` makes exact draws by rejection (Wood 1994, Communications in Statistics B 23). There is no ``rsample``.

    Args:
        mean_direction: μ, ``(..., n)``, unit vectors, n ≥ 2; gives dtype and device.
        concentration: κ ≥ 0, ``(...)``, a tensor or a number.

    Shapes: batch: that of κ and μ broadcast; event ``(n,)``.

    Raises:
        ValueError: if μ is not a floating-point tensor of unit vectors, κ is negative or of another dtype, or shapes do
            not broadcast.

    Examples:
        >>> d = VonMisesFisher(torch.tensor([0.0, 0.0, 1.0]), 1e6)
        >>> d.sample().abs().round().tolist(), d.mode.tolist()
        ([0.0, 0.0, 1.0], [0.0, 0.0, 1.0])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "mean_direction": pyro_constraints.sphere,
        "concentration": pyro_constraints.nonnegative,
    }
    support = uniform_sphere

    def __init__(
        self, mean_direction: Tensor, concentration: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        shape = tuple(getattr(mean_direction, "shape", ()))
        if not torch.is_tensor(mean_direction) or not shape or shape[-1] < 2:
            raise ValueError(
                f"VonMisesFisher: mean_direction has shape {shape}, expected a tensor (..., n) of unit vectors, n ≥ 2."
            )
        if mean_direction.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"VonMisesFisher: mean_direction has dtype {mean_direction.dtype}, expected float32 or float64."
            )
        if not torch.is_tensor(concentration):
            concentration = mean_direction.new_tensor(concentration)
        if concentration.dtype != mean_direction.dtype:
            raise ValueError(
                f"VonMisesFisher: concentration has dtype {concentration.dtype}, "
                f"expected {mean_direction.dtype} of mean_direction."
            )
        try:
            batch = broadcast_shapes(shape[:-1], concentration.shape)
        except ValueError:
            raise ValueError(
                f"VonMisesFisher: concentration has shape {tuple(concentration.shape)}, expected one that broadcasts "
                f"with the batch shape {shape[:-1]} of mean_direction."
            ) from None
        # Before the expansion, which hides an index that made copies.
        self._rows = repeated_rows(concentration, 0)
        self.mean_direction = mean_direction.expand(*batch, shape[-1])
        self.concentration = concentration.expand(batch)
        super().__init__(batch, Size(shape[-1:]), validate_args=validate_args)

    def expand(self, batch_shape: Size | tuple[int, ...], _instance: Any = None) -> VonMisesFisher:
        new: VonMisesFisher = self._get_checked_instance(VonMisesFisher, _instance)
        batch = Size(batch_shape)
        new.mean_direction = self.mean_direction.expand(*batch, *self.event_shape)
        new.concentration = self.concentration.expand(batch)
        new._rows = self._rows
        super(VonMisesFisher, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def n(self) -> int:
        """Length of the vectors."""
        return self.event_shape[0]

    @property
    def mean(self) -> Tensor:
        r"""The mean $A_n(\kappa)\, \mu$, inside the ball, not on the sphere."""
        return mean_resultant_length(self.concentration, self.n).unsqueeze(-1) * self.mean_direction

    @property
    def mode(self) -> Tensor:
        """The mean direction."""
        return self.mean_direction

    def log_prob(self, value: Tensor) -> Tensor:
        r"""Return $\kappa \mu^\top x - \log {}_0F_1(n/2; \kappa^2/4)$, shape ``sample + batch``."""
        if self._validate_args:
            self._validate_sample(value)
        distance = (value - self.mean_direction).square().sum(-1)
        return -self.concentration * distance / 2 - self._rows.spread(
            scaled_log_normaliser(self._rows.distinct, self.n)
        )

    def entropy(self) -> Tensor:
        r"""Return $-E \log p(x)$, shape ``batch``, relative to the uniform distribution."""
        kappa = self.concentration
        return scaled_log_normaliser(kappa, self.n) + kappa * length_deficit(kappa, self.n)

    @torch.no_grad()
    def sample(self, sample_shape: Size | tuple[int, ...] = ()) -> Tensor:
        shape = self._extended_shape(Size(sample_shape))
        if not torch.isfinite(self.concentration).all():
            raise ValueError("VonMisesFisher.sample: concentration has entries that are not finite.")
        direction = self.mean_direction.expand(shape)
        draws = _sample_around(direction, self.concentration.expand(shape[:-1]))
        return draws / draws.norm(dim=-1, keepdim=True)


@register_kl(VonMisesFisher, VonMisesFisher)
def _divergence(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """Return KL(p | q); q of concentration 0 is the uniform distribution."""
    deficit = length_deficit(p.concentration, p.n)
    apart = (p.mean_direction - q.mean_direction).square().sum(-1) / 2
    constants = scaled_log_normaliser(q.concentration, q.n) - scaled_log_normaliser(p.concentration, p.n)
    return constants + (q.concentration - p.concentration) * deficit + q.concentration * (1 - deficit) * apart


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
    return _sample_around(parameter, concentration)


def _sample_around(direction: Tensor, concentration: Tensor) -> Tensor:
    """Draw around directions ``(..., m)`` of any length, m ≥ 2."""
    deficit = _sample_deficit(concentration, direction.shape[-1]).unsqueeze(-1)
    sideways = torch.randn_like(direction[..., 1:])
    sideways = sideways / sideways.norm(dim=-1, keepdim=True)
    around_pole = torch.cat([1 - deficit, (deficit * (2 - deficit)).sqrt() * sideways], -1)
    return rotate_rows(around_pole.unsqueeze(-1), 0, direction).squeeze(-1)


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
