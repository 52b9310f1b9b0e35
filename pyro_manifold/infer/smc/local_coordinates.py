r"""Local coordinates about points, as many as there are degrees of freedom, with their volume elements.

On a manifold the volume is that of its uniform distribution, 1 in total; `Target.log_measure` is the total of the base
measures of a model.

For an unconstrained site they are differences to the centre, divided by given units. For a matrix with orthonormal
columns they are those of the Cayley transform about a centre M whose orthogonal complement has the basis
$M_\perp$: a skew-symmetric p×p matrix B and an (n-p)×p matrix A,

$$
X = M\,(2 S^{-1} - I) + 2 M_\perp A S^{-1}, \quad S = I - B + A^\top A, \qquad
dX = 2^d\,|\det S|^{-(n-1)}\,dA\,dB,
$$

with d the number of coordinates and dX the volume element with total volume $2^p \pi^{np/2} / \Gamma_p(n/2)$. They
exist for every X except those for which $I + M^\top X$ is singular; X = M has coordinates 0. For p = 1 this is the
stereographic projection.
Source: Jauch, Hoff & Dunson, Random orthogonal matrices and the Cayley transform, Bernoulli 26 (2020).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Size, Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.density import Sites
from pyro_manifold.manifolds import Grassmann, Manifold, Sphere, Stiefel

_FAR = 1e6


class LocalCoordinates:
    """Local coordinates about each of k points.

    Args:
        centres: the points, ``{site: (k, ...)}``.
        manifolds: manifolds of the sites that have one.
        units: scales of the differences of other sites, ``{site: (...)}``; 1 for sites that are not given.

    Attributes:
        size: d, the number of coordinates.

    Raises:
        ValueError: for a site on a manifold for which there are no such coordinates.
    """

    def __init__(self, centres: Sites, manifolds: Mapping[str, Manifold], units: Sites | None = None) -> None:
        units = units or {}
        self._sites = {
            name: _coordinates_of(name, x, manifolds.get(name), units.get(name)) for name, x in centres.items()
        }
        self.size = sum(site.size for site in self._sites.values())

    def coordinates(self, sites: Sites) -> tuple[Tensor, Tensor]:
        """Compute the coordinates of one point about each centre, ``(k, d)``, and log volume elements ``(k,)``."""
        found = [site.coordinates(sites[name]) for name, site in self._sites.items()]
        return torch.cat([x for x, _ in found], -1), sum((v for _, v in found), torch.zeros(()))

    def sites(self, coordinates: Tensor) -> tuple[Sites, Tensor]:
        """Map coordinates ``(..., k, d)`` to points ``{site: (..., k, ...)}``, and return log volume elements."""
        parts = coordinates.split([site.size for site in self._sites.values()], -1)
        found = {name: site.points(x) for (name, site), x in zip(self._sites.items(), parts, strict=True)}
        volumes = sum((v for _, v in found.values()), coordinates.new_zeros(()))
        return {name: x for name, (x, _) in found.items()}, volumes

    @property
    def flat(self) -> tuple[Sites, Tensor, Tensor]:
        """Centres of Euclidean sites, the indices of their coordinates, and the units of these."""
        first = itertools.accumulate([0, *[site.size for site in self._sites.values()]])
        places = [(name, site, begin) for (name, site), begin in zip(self._sites.items(), first, strict=False)]
        flat = [(name, site, begin) for name, site, begin in places if isinstance(site, _Flat)]
        found = [k for _, site, begin in flat for k in range(begin, begin + site.size)]
        units = [site.unit.flatten() for _, site, _ in flat]
        centres = {name: site.centres for name, site, _ in flat}
        return centres, torch.tensor(found, dtype=torch.long), torch.cat(units) if units else torch.empty(0)

    def at(self, rows: Tensor) -> LocalCoordinates:
        """Return the coordinates about some of the centres."""
        other = object.__new__(LocalCoordinates)
        other._sites = {name: site.at(rows) for name, site in self._sites.items()}
        other.size = self.size
        return other


class _Flat:
    """Coordinates of a Euclidean site: differences to the centres."""

    def __init__(self, centres: Tensor, unit: Tensor) -> None:
        self.centres, self.unit = centres, unit
        self.size = centres[0].numel()
        self._log_volume = unit.log().sum()

    def at(self, rows: Tensor) -> _Flat:
        return _Flat(self.centres[rows], self.unit)

    def coordinates(self, point: Tensor) -> tuple[Tensor, Tensor]:
        difference = ((point - self.centres) / self.unit).reshape(len(self.centres), -1)
        return difference, self._log_volume.expand(len(difference))

    def points(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        shape = Size([*coordinates.shape[:-1], *self.centres.shape[1:]])
        return self.centres + self.unit * coordinates.reshape(shape), self._log_volume.expand(coordinates.shape[:-1])


class _Cayley:
    """Cayley coordinates of matrices with orthonormal columns; a site with batch dimensions has several matrices.

    Args:
        centres: centres, ``(k, ..., n, p)``.
        log_total: log volume of the manifold, by which volume elements are normalised.
        shape: shape of the site.
    """

    def __init__(self, centres: Tensor, log_total: float, shape: Size) -> None:
        self._centres, self._log_total, self._shape = centres, log_total, shape
        *_, n, p = centres.shape
        self._complements = torch.linalg.qr(centres, mode="complete")[0][..., p:]
        self._skew = _skew_basis(p).to(centres)
        self._matrices = centres[0].numel() // (n * p)
        self._degrees = Stiefel().dimension(n, p)
        self.size = self._matrices * self._degrees

    def at(self, rows: Tensor) -> _Cayley:
        return _Cayley(self._centres[rows], self._log_total, self._shape)

    def coordinates(self, point: Tensor) -> tuple[Tensor, Tensor]:
        p = self._centres.shape[-1]
        point = point.reshape(self._centres.shape[1:])
        along, across = self._centres.mT @ point, self._complements.mT @ point
        identity = torch.eye(p, dtype=point.dtype, device=point.device)
        # solve_ex: an X without coordinates gets coordinates that are far away.
        elsewhere = self._on_another_component(along)
        along = torch.where(elsewhere[..., None, None], identity, along)
        S = by_matrix(torch.linalg.solve_ex, identity + along, 2 * identity.expand_as(along))[0]
        # A product instead of an index, since native code supports it.
        skew = (S.mT - S).flatten(-2) @ self._skew.mT / 4
        found = torch.cat([skew, (across @ S / 2).flatten(-2)], -1)
        found = torch.where(elsewhere.unsqueeze(-1), _FAR, found)
        return found.flatten(1), self._log_volume(S).reshape(len(found), self._centres.shape[1:-2].numel()).sum(1)

    def _on_another_component(self, along: Tensor) -> Tensor:
        """Return whether square matrices differ from the centre in the sign of their determinant."""
        if self._complements.shape[-1]:
            return torch.zeros_like(along[..., 0, 0], dtype=torch.bool)
        return by_matrix(torch.linalg.det, along.detach()) < 0

    def points(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        *_, n, p = self._centres.shape
        batch = self._centres.shape[1:-2]
        x = coordinates.reshape(*coordinates.shape[:-1], *batch, self._degrees)
        turns = len(self._skew)
        A = x[..., turns:].reshape(*x.shape[:-1], n - p, p)
        B = (x[..., :turns] @ self._skew).reshape(*x.shape[:-1], p, p)
        identity = torch.eye(p, dtype=x.dtype, device=x.device)
        S = identity - B + A.mT @ A
        inverse = by_matrix(torch.linalg.inv, S)
        X = self._centres @ (2 * inverse - identity) + self._complements @ (2 * A @ inverse)
        leading = coordinates.shape[:-1]
        return X.reshape(*leading, *self._shape), self._log_volume(S).reshape(*leading, batch.numel()).sum(-1)

    def _log_volume(self, S: Tensor) -> Tensor:
        """Compute the log volume element of each matrix."""
        n = self._centres.shape[-2]
        return self._degrees * math.log(2) - (n - 1) * by_matrix(torch.linalg.slogdet, S)[1] - self._log_total


def have_local_coordinates(manifolds: Mapping[str, Manifold]) -> bool:
    """Return whether there are local coordinates for all of these manifolds."""
    return all(isinstance(each, Sphere | Stiefel) and not isinstance(each, Grassmann) for each in manifolds.values())


def _coordinates_of(name: str, centres: Tensor, manifold: Manifold | None, unit: Tensor | None) -> _Flat | _Cayley:
    if manifold is None:
        return _Flat(centres, torch.ones_like(centres[0]) if unit is None else unit)
    if isinstance(manifold, Sphere):
        return _Cayley(centres.unsqueeze(-1), _log_total(Stiefel(), centres.shape[-1], 1), centres.shape[1:])
    if isinstance(manifold, Stiefel) and not isinstance(manifold, Grassmann):
        return _Cayley(centres, _log_total(manifold, *centres.shape[-2:]), centres.shape[1:])
    raise ValueError(f"Site '{name}' is on {manifold!r}, which has no local coordinates about modes: use init='prior'.")


def _skew_basis(p: int) -> Tensor:
    """Return a basis of skew-symmetric matrices as rows: 1 below the diagonal and -1 at the mirrored entry."""
    row, column = torch.tril_indices(p, p, -1)
    basis = torch.zeros(len(row), p, p)
    basis[torch.arange(len(row)), row, column] = 1.0
    return (basis - basis.mT).flatten(1)


def _log_total(manifold: Manifold, n: int, p: int) -> float:
    """Compute the log volume of a Stiefel manifold, or of one component if it has only one of two (square matrices)."""
    gamma = float(torch.mvlgamma(torch.tensor(n / 2, dtype=torch.float64), p))
    total = p * math.log(2) + n * p / 2 * math.log(math.pi) - gamma
    flipped = torch.eye(n, p, dtype=torch.float64)
    flipped[0, 0] = -1
    return total if bool(manifold.contains(flipped)) else total - math.log(2)
