"""All distributions, one line each: `test_conformance.py` asks the same of every one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_manifold.distributions import (
    Bingham,
    GrassmannLangevin,
    GrassmannUniform,
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamVonMisesFisher,
    MatrixFisher,
    MatrixLangevin,
    NormalSingularValues,
    Ordered,
    OrderedHalfNormal,
    SpecialOrthogonalUniform,
    StiefelUniform,
    VonMisesFisher,
)


@dataclass(frozen=True)
class Case:
    """A distribution and what it can do.

    Attributes:
        make: from normal numbers ``batch + (4, 4)``, which its parameters are made of, and whose dtype is theirs.
        event: the shape of a draw.
        normalised: whether its density is.
        parameters: whether its density has derivatives in parameters.
        reference: draws from another distribution on its support, against which its density varies little, and their
            log density; None where there is no such distribution.
    """

    make: Callable[..., Any]
    event: tuple[int, ...] = (4, 2)
    normalised: bool = True
    parameters: bool = True
    reference: Callable[[], Any] | None = lambda: StiefelUniform(4, 2)


def covariance(z: Tensor) -> Tensor:
    return z @ z.mT / 4 + torch.eye(4).to(z)


def uniform(kind: Any, *size: int, **options: Any) -> Callable[..., Any]:
    return lambda z, **more: kind(*size, z.shape[:-2], dtype=z.dtype, device=z.device, **options, **more)


def fisher(z: Tensor, **options: Any) -> MatrixBinghamVonMisesFisher:
    return MatrixBinghamVonMisesFisher(z, torch.eye(2).to(z), z[..., :2], **options)


def bingham(z: Tensor, **options: Any) -> MatrixBingham:
    return MatrixBingham(covariance(z), torch.diag(torch.tensor([2.0, 1.0])).to(z), **options)


def gamma(z: Tensor, **options: Any) -> Ordered:
    return Ordered(dist.Gamma(3.0, (z[..., 0, 0] / 4).exp(), **options), 3, **options)


def unit_vectors() -> VonMisesFisher:
    return VonMisesFisher(torch.eye(4)[0], 0.3)


def directions(z: Tensor, **options: Any) -> VonMisesFisher:
    mean = z[..., 0] / z[..., 0].norm(dim=-1, keepdim=True)
    return VonMisesFisher(mean, (z[..., 0, 1] / 2).exp(), **options)


def spread() -> MatrixAngularCentralGaussian:
    return MatrixAngularCentralGaussian(torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0])), 2)


def numbers() -> Ordered:
    return Ordered(dist.Exponential(0.3), 3)


DISTRIBUTIONS = {
    "uniform": Case(uniform(StiefelUniform, 4, 2), parameters=False, reference=spread),
    "uniform, Householder": Case(uniform(StiefelUniform, 4, 2, chart="householder"), parameters=False, reference=None),
    "rotations": Case(uniform(SpecialOrthogonalUniform, 4), (4, 4), parameters=False, reference=None),
    "Langevin": Case(lambda z, **o: MatrixLangevin(z[..., :2], **o)),
    "Langevin, Householder": Case(lambda z, **o: MatrixLangevin(z[..., :2], chart="householder", **o)),
    "angular central Gaussian": Case(lambda z, **o: MatrixAngularCentralGaussian(covariance(z), 2, **o)),
    "Bingham, p": Case(lambda z, **o: MatrixBingham(covariance(z), p=2, **o), normalised=False, parameters=False),
    "Bingham": Case(bingham, normalised=False, parameters=False),
    "Bingham–von Mises–Fisher": Case(fisher, normalised=False, parameters=False),
    "von Mises–Fisher": Case(directions, (4,), reference=unit_vectors),
    "Bingham of unit vectors": Case(lambda z, **o: Bingham(z, **o), (4,), reference=unit_vectors),
    "matrix Fisher": Case(
        lambda z, **o: MatrixFisher(z[..., :3, :3] / 2, **o), (3, 3), reference=lambda: SpecialOrthogonalUniform(3)
    ),
    "subspaces": Case(uniform(GrassmannUniform, 4, 2), parameters=False, reference=spread),
    "subspaces, Langevin": Case(lambda z, **o: GrassmannLangevin(z, 2, **o), normalised=False, parameters=False),
    "singular values": Case(
        lambda z, **o: NormalSingularValues(4, 3, (z[..., 0, 0] / 4).exp(), **o), (3,), reference=numbers
    ),
    "ordered": Case(gamma, (3,), reference=numbers),
    "ordered half-normal": Case(
        lambda z, **o: OrderedHalfNormal(3, (z[..., 0, 0] / 4).exp(), **o), (3,), reference=numbers
    ),
}
