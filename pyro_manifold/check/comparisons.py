"""Comparisons of draws with distributions whose means are known exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_manifold.check.exact import langevin_moments, principal_component_moments
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC, GeodesicSlice
from pyro_manifold.infer.mcmc import Kernel

STANDARD_ERRORS = 4.0
"""Largest accepted distance. A correct estimate exceeds it with probability 6e-5."""
_CONCENTRATION = ((3.0, 0.0), (0.0, 1.0), (0.0, 0.0))
_CHAINS = 128
_NOISE, _PRIOR_SCALE = 1.0, 3.0


@dataclass(frozen=True)
class Comparison:
    """Estimate of an expectation next to its exact value.

    Attributes:
        name: distribution, sampler and expectation.
        estimate: mean of the draws.
        expected: exact value.
        error: Monte Carlo standard error of the estimate, or the error of rounding if there are no draws.
        largest_error: largest accepted error; chains that hardly move exceed it.
    """

    name: str
    estimate: float
    expected: float
    error: float
    largest_error: float

    @property
    def distance(self) -> float:
        """Distance between estimate and exact value in standard errors."""
        return abs(self.estimate - self.expected) / self.error if self.error else math.nan

    @property
    def passed(self) -> bool:
        """Agreement within `STANDARD_ERRORS` and the largest error; False if a number is NaN."""
        return self.distance <= STANDARD_ERRORS and self.error <= self.largest_error


def compare(name: str, draws: Tensor, expected: float, largest_error: float) -> Comparison:
    """Compare the mean of draws ``(n,)``, or of independent chains ``(chains, n)``, with its exact value."""
    means = draws if draws.dim() == 1 else draws.mean(1)
    error = float(means.std()) / math.sqrt(len(means))
    return Comparison(name, float(draws.mean()), expected, error, largest_error)


def uniform_draws(device: str = "cpu", dtype: torch.dtype = torch.float64) -> list[Comparison]:
    """Compare draws of the uniform distribution with its moments."""
    U = StiefelUniform(4, 2, device=device, dtype=dtype).sample(torch.Size([50_000])).double().cpu()
    minor = U[:, 0, 0] * U[:, 1, 1] - U[:, 0, 1] * U[:, 1, 0]
    name = f"StiefelUniform, {device}, {str(dtype).removeprefix('torch.')}"
    departure = float((U.mT @ U - torch.eye(2, dtype=U.dtype)).abs().max())
    return [
        compare(f"{name}: E U11²", U[:, 0, 0] ** 2, 1 / 4, 0.002),
        compare(f"{name}: E (U11 U22 − U12 U21)²", minor**2, 1 / 6, 0.002),
        Comparison(f"{name}: largest |UᵀU − I|", departure, 0.0, 10 * torch.finfo(dtype).eps, math.inf),
    ]


def uniform_draws_on_devices() -> list[Comparison]:
    """Compare uniform draws in float64, and in float32 on each CUDA device."""
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return uniform_draws() + [found for device in devices for found in uniform_draws(device, torch.float32)]


def langevin_draws() -> list[Comparison]:
    """Compare exact draws of the matrix Langevin distribution, and its constant, with integrals."""
    F = torch.tensor(_CONCENTRATION, dtype=torch.float64)[:, :2]
    distribution = MatrixLangevin(F)
    U = distribution.sample(torch.Size([20_000]))
    log_constant, *means = langevin_moments(3.0, 1.0)
    found = float((F * U[0]).sum() - distribution.log_prob(U[0]))
    return [
        Comparison("MatrixLangevin: log normalising constant", found, log_constant, 1e-10, math.inf),
        compare("MatrixLangevin, draws: E U11", U[:, 0, 0], means[0], 0.005),
        compare("MatrixLangevin, draws: E U22", U[:, 1, 1], means[1], 0.005),
    ]


def langevin_model() -> None:
    """Define the same matrix Langevin distribution as a Pyro model."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("density", 3.0 * U[..., 0, 0] + 1.0 * U[..., 1, 1])


def langevin_chains(kernel: Callable[..., Kernel], num_samples: int = 500) -> list[Comparison]:
    """Compare chains of a kernel with the same integrals."""
    U = _draws(kernel(langevin_model), num_samples)["U"]
    _, *means = langevin_moments(3.0, 1.0)
    name = f"matrix Langevin, {getattr(kernel, '__name__', 'kernel')}"
    return [
        compare(f"{name}: E U11", U[..., 0, 0], means[0], 0.01),
        compare(f"{name}: E U22", U[..., 1, 1], means[1], 0.01),
    ]


def langevin_by_ohmc() -> list[Comparison]:
    """Compare chains of `OHMC`."""
    return langevin_chains(OHMC)


def langevin_by_ghmc() -> list[Comparison]:
    """Compare chains of `GHMC`."""
    return langevin_chains(GHMC)


def langevin_by_slices() -> list[Comparison]:
    """Compare chains of `GeodesicSlice`."""
    return langevin_chains(GeodesicSlice)


def principal_component_model(data: Tensor) -> None:
    """Define probabilistic PCA with one component and known noise as a Pyro model."""
    U = pyro.sample("U", StiefelUniform(data.shape[-1], 1))
    scale = pyro.sample("scale", dist.HalfNormal(_PRIOR_SCALE))
    with pyro.plate("rows", len(data)):
        diagonal = torch.full((data.shape[-1],), _NOISE**2)
        likelihood = dist.LowRankMultivariateNormal(torch.zeros(data.shape[-1]), U * scale, diagonal)
        pyro.sample("y", likelihood, obs=data)


def principal_component_by_ohmc() -> list[Comparison]:
    """Compare the posterior of probabilistic PCA, of 20 measurements in the plane, by `OHMC`."""
    normal = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = normal * torch.tensor([2.0, 1.0], dtype=torch.float64)
    draws = _draws(OHMC(principal_component_model), 500, data)
    axis = torch.linalg.eigh(data.T @ data).eigenvectors[:, -1]
    squared_cosine = (draws["U"][..., 0] @ axis) ** 2
    scale, cosine = principal_component_moments(data, _NOISE, _PRIOR_SCALE)
    return [
        compare("PCA, OHMC: E scale", draws["scale"], scale, 0.02),
        compare("PCA, OHMC: E cos² of the angle to the axis", squared_cosine, cosine, 0.01),
    ]


def _draws(kernel: Kernel, num_samples: int, *args: Tensor) -> dict[str, Tensor]:
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=200, num_chains=_CHAINS, disable_progbar=True)
    mcmc.run(*args)
    return dict(mcmc.get_samples(group_by_chain=True))


COMPARISONS: tuple[Callable[[], list[Comparison]], ...] = (
    uniform_draws_on_devices,
    langevin_draws,
    langevin_by_ohmc,
    langevin_by_ghmc,
    langevin_by_slices,
    principal_component_by_ohmc,
)
