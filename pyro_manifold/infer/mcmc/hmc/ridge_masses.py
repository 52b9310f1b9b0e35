"""Estimation of directions with their own masses, from the states of warm-up."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.ridges import Planes, Ridges
from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks
from pyro_manifold.store.saving import Plain, Saved

DIRECTIONS_ACROSS = "directions across"
"""First entry of the key of the directions of a group, before the names of its sites."""

MOST_DIRECTIONS = 8
"""Largest number of directions of a group: each adds two flows to a drift."""

FAR_FROM_ONE = 2.0
"""Smallest ratio of inverse masses for which a direction is used."""

_FROM_THE_USUAL = 4.0  # ratio of a chain's eigenvalues, by rank, to their median over chains
_MANY_STEPS, _FEWER_STEPS = 8.0, 2.0
"""Smallest ratio of the largest to the smallest scale for which directions are used without being requested, and the
factor by which they must reduce it. Below it, trajectories are short, and compiling code for directions takes longer
than they save."""


class RidgeEstimator(Saved):
    r"""Directions of a group of blocks whose masses differ most from those of the blocks, in each chain.

    Coordinates of a chain are taken at an anchor $X_0$, its first position in the window: with an orthogonal
    $Q = (X_0, \cdot)$, generators $E_{ij} = q_j q_i^\top - q_i q_j^\top$ for each column i of $X_0$
    and each j > i, whose coordinate of X is the component of $Q^\top X$ and whose derivative of U is
    $\langle \nabla U, E_{ij} X \rangle$; unconstrained coordinates are used as they are. Scaled by the masses of the
    blocks, with covariances C of coordinates and G of derivatives, the inverse mass matrix is their geometric mean

    $$ N = G^{-1/2} (G^{1/2} C G^{1/2})^{1/2} G^{-1/2}, $$

    which is exact for a Gaussian, and which `DiagonalEstimator` uses for each coordinate separately. Directions are the
    eigenvectors whose eigenvalues η are furthest from 1 by at least a factor of 2, with weights $\lambda = \eta - 1$;
    only η > 1 if the columns of a matrix have separate masses, see `RidgeMechanics`.

    Each chain has its own directions: a change of signs of columns leaves generators unchanged but changes the shifts
    of the other sites. The flat inverse mass is ``(chains, k, 1 + size)``: weights, generators, shifts.

    Args:
        group: blocks of the group, orthonormal matrices first.
        position: positions of all blocks, used for their shapes.
        matrices: blocks of orthonormal matrices, ``(chains, n, p)``.
        optional: whether directions are left out if trajectories are already short or would not become much shorter.

    Attributes:
        optional: the argument; False once directions are in use, since they are then kept to avoid recompilation.

    Source: Seyboldt, Carlson & Carpenter, arXiv 2603.18845, for the geometric mean.
    """

    @property
    def from_the_start(self) -> bool:
        """True if code is compiled for directions before any are in use, which avoids recompilation."""
        return False

    def __init__(
        self,
        group: tuple[Block, ...],
        position: Blocks,
        matrices: Collection[Block],
        optional: bool,
    ) -> None:
        self._pairs = {key: _pairs(position[key]) for key in group if key in matrices}
        self._vectors = [key for key in group if key not in matrices]
        self._example = {key: position[key] for key in group}
        self.optional = optional
        self._states: list[tuple[Tensor, ...]] = []
        self._size_of_generators = sum(n * n for n in self._rows())
        self._numbers = [position[key].shape[1] for key in self._vectors]
        pairs = sum(pairs.shape[1] for pairs in self._pairs.values())
        self._count = min(MOST_DIRECTIONS, sum(self._numbers) + pairs)

    def initial(self) -> Tensor:
        """Return the flat inverse mass without directions."""
        like = next(iter(self._example.values()))
        return like.new_zeros(len(like), self._count, 1 + self._size_of_generators + sum(self._numbers))

    def fitted(self, flat: Tensor) -> Tensor:
        """Return a flat inverse mass of an earlier run for the chains of this one.

        Raises:
            ValueError: for another shape, and for weights of -1 or less.
        """
        like = self.initial()
        flat = flat.detach().to(like)
        if flat.shape[1:] != like.shape[1:]:
            raise ValueError(f"the shape {tuple(flat.shape)}, expected {tuple(like.shape)}")
        if not bool((flat[..., 0] > -1).all() & flat.isfinite().all()):
            raise ValueError("weights that are not finite and above -1")
        for part, n in zip(self._generators_of(flat), self._rows(), strict=True):
            generators = part.unflatten(-1, (n, n))
            if not torch.allclose(generators, -generators.mT, rtol=0, atol=1e-5 * float(generators.abs().max())):
                raise ValueError("generators that are not skew-symmetric")
        return flat if len(flat) == len(like) else self._for_other_chains(flat, like)

    def _for_other_chains(self, flat: Tensor, like: Tensor) -> Tensor:
        """Return a flat inverse mass for another number of chains: without directions, whose signs differ by chain."""
        return like

    def _rows(self) -> list[int]:
        return [self._example[key].shape[-2] for key in self._pairs]

    def _generators_of(self, flat: Tensor) -> list[Tensor]:
        return list(flat[..., 1 : 1 + self._size_of_generators].split([n * n for n in self._rows()], -1))

    def ridges(self, flat: Tensor) -> Ridges:
        """Return the directions of a flat inverse mass."""
        shifts = dict(
            zip(self._vectors, flat[..., 1 + self._size_of_generators :].split(self._numbers, -1), strict=True)
        )
        generators = {
            key: planes(part.unflatten(-1, (n, n)), self._example[key].shape[-1])
            for key, part, n in zip(self._pairs, self._generators_of(flat), self._rows(), strict=True)
        }
        return Ridges(flat[..., 0].contiguous(), generators, {key: part.contiguous() for key, part in shifts.items()})

    def update(self, position: Blocks, gradient: Blocks) -> None:
        """Add the states of one iteration, given for all blocks."""
        # States are stored and evaluated at the end, since small operations in each iteration would slow down warm-up.
        self._states.append(tuple(blocks[key] for blocks in (position, gradient) for key in self._example))

    def estimate(self, inverse_masses: Blocks) -> tuple[Tensor, Blocks]:
        """Return the flat inverse mass for the next window, and the inverse masses of blocks that change with it.

        Args:
            inverse_masses: inverse masses of the blocks, to which the flat inverse mass is relative.
        """
        scales = self._scales(inverse_masses)
        # Orthonormal matrices are first in the group, and so in each state.
        bases = dict(zip(self._pairs, map(_completed, self._states[0]), strict=False))
        coordinates, derivatives = self._coordinates(scales, bases)
        spread, curvature = (covariances(values, 1.0) for values in (coordinates, derivatives))
        values, vectors = torch.linalg.eigh(geometric_mean(spread, curvature))
        # A chain that hardly moved, or is still approaching the typical set, would estimate masses with which it gets
        # stuck.
        usual = values.median(0, keepdim=True).values
        values = values.clamp(usual / _FROM_THE_USUAL, usual * _FROM_THE_USUAL)
        either_way = all(inverse_masses[key].dim() == 1 for key in self._pairs)
        distance = values.log().abs() if either_way else values.log()
        order = distance.argsort(-1, descending=True)[:, : self._count]
        chosen = values.gather(-1, order)
        kept = vectors.gather(-1, order.unsqueeze(1).expand(-1, vectors.shape[1], -1))
        used = distance.gather(-1, order) > math.log(FAR_FROM_ONE)
        left = values.scatter(-1, order, torch.where(used, 1.0, chosen))
        if self.optional and not worthwhile(values, left, _FEWER_STEPS):
            return self.initial(), {}
        directions = (kept * scales.unsqueeze(-1)).mT * used.unsqueeze(-1)
        parts = [torch.where(used, chosen - 1, 0.0).unsqueeze(-1)]
        for key, pairs in self._pairs.items():
            amounts, directions = directions[..., : pairs.shape[1]], directions[..., pairs.shape[1] :]
            parts.append(_generators(bases[key], pairs, amounts).flatten(2))
        return torch.cat([*parts, directions], -1), {}

    def _scales(self, inverse_masses: Blocks) -> Tensor:
        """Return the root of the inverse mass of each coordinate, ``(1 or chains, size)``."""
        parts = [self._of_generators(key, inverse_masses[key]) for key in self._pairs]
        parts += [inverse_masses[key] for key in self._vectors]
        chains = max(len(part) for part in parts)
        return torch.cat([part.expand(chains, -1) for part in parts], -1).sqrt()

    def _of_generators(self, key: Block, inverse_mass: Tensor) -> Tensor:
        i, j = self._pairs[key]
        if inverse_mass.dim() == 1:  # one mass for the site
            return inverse_mass.unsqueeze(-1).expand(-1, len(i))
        p = self._example[key].shape[-1]
        return inverse_mass[:, torch.where(j < p, p, i)]

    def _coordinates(self, scales: Tensor, bases: Blocks) -> tuple[Tensor, Tensor]:
        """Return scaled coordinates and derivatives, ``(chains, iterations, size)``."""
        blocks = [torch.stack(values, 1) for values in zip(*self._states, strict=True)]
        position = dict(zip(self._example, blocks[: len(self._example)], strict=True))
        gradient = dict(zip(self._example, blocks[len(self._example) :], strict=True))
        coordinates, derivatives = [], []
        for key, (i, j) in self._pairs.items():
            basis = bases[key].mT.unsqueeze(1)
            inner, moment = basis @ position[key], (basis @ gradient[key]) @ (basis @ position[key]).mT
            p = inner.shape[-1]
            skew = (inner[..., :p, :] - inner[..., :p, :].mT) / 2
            coordinates.append(torch.cat([skew, inner[..., p:, :]], -2)[..., j, i])
            derivatives.append(moment[..., j, i] - moment[..., i, j])
        flat = torch.cat([*coordinates, *(position[key] for key in self._vectors)], -1)
        slopes = torch.cat([*derivatives, *(gradient[key] for key in self._vectors)], -1)
        return flat / scales.unsqueeze(1), slopes * scales.unsqueeze(1)

    def state_dict(self) -> dict[str, Plain]:
        """Return the states of the present window."""
        return {str(index): torch.stack(values) for index, values in enumerate(zip(*self._states, strict=True))}

    def load_state_dict(self, saved: dict[str, Plain]) -> None:
        """Restore the states of a window."""
        device = next(iter(self._example.values())).device
        self._states = [*zip(*(value.to(device) for value in saved.values()), strict=True)]


def _generators(basis: Tensor, pairs: Tensor, amounts: Tensor) -> Tensor:
    """Return the skew-symmetric matrices of amounts ``(chains, k, pairs)`` in a basis of each chain."""
    i, j = pairs
    inner = amounts.new_zeros(*amounts.shape[:-1], basis.shape[-1], basis.shape[-1])
    inner[..., j, i], inner[..., i, j] = amounts, -amounts
    return basis.unsqueeze(1) @ inner @ basis.mT.unsqueeze(1)


def worthwhile(values: Tensor, left: Tensor, factor: float) -> bool:
    """Return whether trajectories take fewer steps by a factor, by the eigenvalues and the remaining ones of chains."""
    before, after = (each.amax(-1) / each.amin(-1) for each in (values, left))
    return float(before.sqrt().median()) > _MANY_STEPS and float((before / after).sqrt().median()) > factor


def covariances(values: Tensor, weight: float) -> Tensor:
    """Compute covariances shrunk towards the identity, ``(..., size, size)``.

    Covariances that are not finite are replaced by the identity.

    Args:
        values: values of each iteration, ``(..., iterations, size)``.
        weight: weight of the identity, relative to that of one draw.
    """
    centred = values - values.mean(-2, keepdim=True)
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)
    found = (centred.mT @ centred + weight * identity) / (centred.shape[-2] + weight)
    finite = found.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)  # gradients overflow far away
    return torch.where(finite, found, identity)


def _pairs(position: Tensor) -> Tensor:
    """Return i and j of the generators at an anchor, ``(2, pairs)``."""
    n, p = position.shape[-2:]
    return torch.triu_indices(p, n, 1, device=position.device)


def _completed(matrices: Tensor) -> Tensor:
    """Return orthogonal matrices whose first columns are these."""
    left = torch.linalg.svd(matrices, full_matrices=True)[0]
    return torch.cat([matrices, left[..., matrices.shape[-1] :]], -1)


def geometric_mean(spread: Tensor, curvature: Tensor) -> Tensor:
    r"""Compute the symmetric positive N with $N G N = C$, for a covariance C and a curvature G.

    With $G = LL^\top$ and $L^\top C L = V \Lambda V^\top$, it is
    $L^{-\top} V \Lambda^{1/2} V^\top L^{-1}$; the identity where G is singular by rounding.
    """
    lower, failed = torch.linalg.cholesky_ex(curvature)
    identity = torch.eye(curvature.shape[-1], dtype=curvature.dtype, device=curvature.device)
    lower = torch.where((failed > 0)[..., None, None], identity, lower)
    values, vectors = torch.linalg.eigh(lower.mT @ spread @ lower)
    half = torch.linalg.solve_triangular(lower.mT, vectors * values.clamp(min=0).pow(0.25).unsqueeze(-2), upper=True)
    return torch.where((failed > 0)[..., None, None], identity, half @ half.mT)


def planes(generators: Tensor, columns: int) -> Planes:
    """Return the planes in which skew-symmetric matrices ``(..., n, n)`` turn, at most as many as ``columns``.

    A generator that moves p orthonormal columns and no direction orthogonal to their images has at most p planes.
    """
    values, vectors = torch.linalg.eigh(1j * generators)
    most = min(columns, math.floor(generators.shape[-1] / 2))
    speeds, vectors = values[..., -most:].clamp(min=0), vectors[..., -most:] * 2**0.5
    # A zero generator has arbitrary eigenvectors, some of them real: then any plane is used in their place.
    turning = (speeds > 0).unsqueeze(-2)
    return Planes(speeds, (vectors.imag * turning).contiguous(), (vectors.real * turning).contiguous())
