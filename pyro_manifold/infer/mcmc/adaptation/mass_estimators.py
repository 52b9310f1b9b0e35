"""Estimators of the inverse mass of one block from the states of a window of warm-up."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import Mechanics, Metric
from pyro_manifold.manifolds import Manifold, Stiefel
from pyro_manifold.store import Saved

_SHARE_OF_DRAWS = 1e-2


class InverseMassEstimator(Saved):
    """Estimator of an inverse mass, ``(1 or chains, ...)``, from the states of one warm-up window."""

    @abstractmethod
    def initial(self) -> Tensor:
        """Return the initial inverse mass."""

    @abstractmethod
    def update(self, position: Tensor, gradient: Tensor) -> None:
        """Add the states ``(chains, ...)`` of one iteration."""

    @abstractmethod
    def estimate(self) -> Tensor:
        """Return the inverse mass for the next window."""

    def metric(self, value: Tensor) -> Any:
        """Return the masses in the form that the block's mechanics use."""
        return Metric.from_inverse_mass(value)

    def reported(self, value: Tensor) -> Tensor:
        """Return an inverse mass as users see it: without a chain dimension if all chains share it."""
        return value[0] if len(value) == 1 else value

    def diagonal(self, value: Tensor) -> Tensor:
        """Return the inverse mass of each coordinate."""
        return value.diagonal(dim1=-2, dim2=-1) if value.dim() == 3 else value

    def fitted(self, given: Tensor) -> Tensor:
        """Return the inverse mass of an earlier run for the chains of this one.

        Raises:
            ValueError: for another shape, or for values that are not positive and finite; the message begins after
                "the inverse mass has".
        """
        like = self.initial()
        value, shape = given.detach().to(like), like.shape[1:]
        if value.dim() == 1 and len(shape) == 2:
            value = value.diag()
        if value.shape == shape:
            value = value.unsqueeze(0)
        if value.shape[1:] != shape or not len(value) or (len(like) == 1 and len(value) > 1 and shape):
            raise ValueError(
                f"the shape {tuple(value.shape)}, expected "
                f"{tuple(shape)}{', for each chain or for all chains' if len(like) > 1 else ''}"
            )
        if len(value) != len(like):
            value = (1 / (1 / value).mean(0, keepdim=True)).expand_as(like).contiguous()
        positive = torch.linalg.cholesky_ex(value)[1] == 0 if len(shape) == 2 else value > 0
        if not bool(positive.all() & value.isfinite().all()):
            raise ValueError("values that are not positive and finite, expected variances")
        return value


class CovarianceEstimator(InverseMassEstimator):
    """Posterior covariance within chains, with Stan's shrinkage towards a small constant.

    The covariance is computed within chains, because chains in different modes would inflate a pooled one.

    Args:
        position: positions ``(chains, size)``, used for their shape.
    """

    changing = ("_count", "_mean", "_squares")

    def __init__(self, position: Tensor) -> None:
        self._identity = torch.ones_like(position[0]).diag()
        self._count = 0
        self._mean = torch.zeros_like(position)
        self._squares = torch.zeros_like(self._identity)

    def initial(self) -> Tensor:
        return self._identity.unsqueeze(0)

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        before = position - self._mean
        self._mean = self._mean + before / self._count
        after = position - self._mean
        self._squares = self._squares + before.mT @ after / len(position)

    def estimate(self) -> Tensor:
        weight = self._count / (self._count + 5.0)
        variance = self._squares / max(self._count - 1, 1)
        return (weight * variance + 1e-3 * (1 - weight) * self._identity).unsqueeze(0)


def diagonal_inverse_mass(positions: Tensor, gradients: Tensor, count: int) -> Tensor:
    """Compute the root of the ratio of variances of x and ∇U, with the shrinkage of `DiagonalEstimator`."""
    weight = count / (count + 5.0)
    variance = weight * positions + 1e-3 * (1 - weight)
    precision = weight * gradients + _SHARE_OF_DRAWS * (1 - weight) / variance
    return (variance / precision).sqrt()


class DiagonalEstimator(InverseMassEstimator):
    r"""Diagonal inverse masses from the variances of draws and of gradients within chains.

    $$ m_i^{-1} = \sqrt{\mathrm{Var}\,x_i / \mathrm{Var}\,(\nabla U)_i} $$

    For a Gaussian with independent coordinates $\nabla U = (x - \mu)/\sigma^2$, so that a few points determine
    $\sigma^2$ without error, also if the chains have not reached the typical set. In general it is the diagonal metric
    with the smallest Fisher divergence from the posterior to a Gaussian.

    With a weight of 5/(count + 5), the variance of draws is shrunk towards a small constant as in Stan, and the
    variance of gradients slightly towards the inverse of the former, for directions without a gradient.

    Seyboldt, Carlson & Carpenter, Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence
    (arXiv 2603.18845), as in nutpie.

    Args:
        position: positions ``(chains, size)``, used for their shape.
    """

    changing = ("_count", "_means", "_squares")

    def __init__(self, position: Tensor) -> None:
        self._ones = torch.ones_like(position[0])
        self._count = 0
        self._means = position.new_zeros(2, *position.shape)
        self._squares = position.new_zeros(2, *position.shape[1:])

    def initial(self) -> Tensor:
        return self._ones.unsqueeze(0)

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        values = torch.stack([position, gradient])
        before = values - self._means
        self._means = self._means + before / self._count
        self._squares = self._squares + (before * (values - self._means)).mean(1)

    def estimate(self) -> Tensor:
        positions, gradients = self._squares / max(self._count - 1, 1)
        return diagonal_inverse_mass(positions, gradients, self._count).unsqueeze(0)


class CurvatureEstimator(InverseMassEstimator):
    r"""Scalar mass of a block on a manifold: mean curvature of the potential plus that of the manifold.

    In equilibrium $E[\nabla U\,\nabla U^\top] = E[\nabla^2 U]$, so the squared tangent gradient per degree
    of freedom d estimates the mean curvature:

    $$ m = \frac{E\,2K_1(X, P_X \nabla U)}{d} + \frac{d}{\mathrm{tr}\,X^\top X}, $$

    $K_1$ the kinetic energy at unit mass. The last term is the inverse variance of the uniform distribution,
    which keeps m positive for a flat potential. The variance of X is not a suitable alternative: for a site that jumps
    between symmetric modes it is that of the uniform distribution, however narrow each mode is.

    Args:
        position: positions ``(chains, ..., *event)``, used for their shape.
        mechanics: mechanics of the block, used for its kinetic energy.
        manifold: manifold of the block, used for its dimension.
    """

    changing = ("_count", "_curvature")

    def __init__(self, position: Tensor, mechanics: Mechanics, manifold: Manifold) -> None:
        event = position.shape[position.dim() - manifold.event_dim :]
        self._mechanics = mechanics
        self._degrees_of_freedom = max(1, manifold.dimension(*event) * (position[0].numel() // event.numel()))
        # tr XᵀX is the same at every point; a sum at this one would have a rounding error.
        squares = position[0].numel() * manifold.entry_scale(*event) ** 2
        self._own_curvature = position.new_full((1,), self._degrees_of_freedom / squares)
        self._count = 0
        self._curvature = torch.zeros_like(self._own_curvature)

    def initial(self) -> Tensor:
        return 1 / self._own_curvature

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        curvature = self.curvature(position, gradient).mean()
        self._curvature = self._curvature + (curvature - self._curvature) / self._count

    def curvature(self, position: Tensor, gradient: Tensor) -> Tensor:
        """Compute an estimate of m from each chain's gradient, ``(chains,)``."""
        unit = torch.ones_like(self._own_curvature)
        force = self._mechanics.kick(position, torch.zeros_like(position), gradient, 1.0)
        squares = 2 * self._mechanics.kinetic_energy(position, force, Metric(unit, unit))
        return squares / self._degrees_of_freedom + self._own_curvature

    def estimate(self) -> Tensor:
        return 1 / self._curvature if self._count else self.initial()


class ColumnEstimator(InverseMassEstimator):
    r"""Masses of the columns of each matrix and of rotations within their span, as in `CurvatureEstimator`.

    $$
    m_k = \frac{E\,\|b_k(\nabla U)\|^2}{n - p} + \frac{d}{p}, \quad
    m = \mathrm{mean}_{k<l}\, E\,(2 A_{kl}(\nabla U))^2 + \frac{d}{p},
    $$

    the mean curvature of the potential plus that of the manifold, as in `CurvatureEstimator`, but separately for each
    group of directions. Each chain has its own masses: if columns are exchangeable, their order differs between chains,
    and an average over chains would be a scalar mass again. Masses are shrunk towards their mean over chains with
    weight 5/(count + 5), count the number of iterations in which the chain has moved: a chain that stays at a point
    with a small gradient would otherwise estimate small masses there and never leave. No mass is less than half the
    median over chains of the column of the same rank: a chain adapted to a flat region of the posterior could
    otherwise not move in a steeper one.

    Args:
        position: positions ``(chains, ..., n, p)``, used for their shape.
    """

    changing = ("_count", "_curvature", "_moved", "_last")

    def __init__(self, position: Tensor) -> None:
        n, p = position.shape[-2:]
        self._outward_dimension, self._columns = n - p, p
        self._own_curvature = Stiefel().dimension(n, p) / p
        self._count = 0
        self._curvature = position.new_zeros(len(position), (p + 1) * position[0].numel() // (n * p))
        self._moved = position.new_zeros(len(position), 1)
        self._last = torch.zeros_like(position)

    def initial(self) -> Tensor:
        return torch.full_like(self._curvature, 1 / self._own_curvature)

    def update(self, position: Tensor, gradient: Tensor) -> None:
        self._count += 1
        self._moved = self._moved + (position != self._last).flatten(1).any(1, keepdim=True)
        self._last = position
        inner = position.mT @ gradient
        p = inner.shape[-1]
        columns = (gradient - position @ inner).square().sum(-2) / self._outward_dimension
        within = (inner - inner.mT).square().sum((-2, -1)).unsqueeze(-1) / (p * (p - 1))
        curvature = torch.cat([columns, within], -1).flatten(1)
        self._curvature = self._curvature + (curvature - self._curvature) / self._count

    def estimate(self) -> Tensor:
        weight = self._moved / (self._moved + 5.0)
        curvature = weight * self._curvature + (1 - weight) * self._curvature.mean(0)
        return 1 / (self._at_least_half_of_the_usual(curvature) + self._own_curvature)

    def _at_least_half_of_the_usual(self, curvature: Tensor) -> Tensor:
        """Bound curvatures below by half their median over chains, for sorted columns and for rotations in the span."""
        each = curvature.unflatten(1, (-1, self._columns + 1))
        columns, within = each[..., :-1], each[..., -1:]
        ordered, places = columns.sort(-1)
        usual = ordered.median(0, keepdim=True).values.expand_as(columns)
        least = torch.empty_like(columns).scatter(-1, places, usual)
        turns = within.median(0, keepdim=True).values.expand_as(within)
        return each.maximum(torch.cat([least, turns], -1) / 2).flatten(1)
