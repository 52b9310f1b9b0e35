"""Canonical form of a low-rank plus diagonal covariance, without the ambiguity of signs, order and rotations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class IdentifiedCovariance(NamedTuple):
    r"""Covariance $B\,\mathrm{diag}(c^2)B^\top + \mathrm{diag}(d^2)$ in a form that is comparable between fits.

    B, c and d are identified by the covariance (up to the conventions below) if, whichever row of B is removed, the
    other rows contain two disjoint sets of ``rank`` linearly independent rows (Anderson & Rubin 1956); this requires
    m ≥ 2·rank + 1.

    Columns of B are in decreasing order of c, and the entry of largest modulus of each is positive. All tensors are in
    the unconstrained space of Pyro's guides, in the order in which the model's sites appear; ``directions`` is B
    split by site.

    Attributes:
        factor: B, ``(latent_dim, rank)``, with orthonormal columns.
        factor_scale: c, ``(rank,)``, standard deviations along the columns.
        scale: d, ``(latent_dim,)``, standard deviations of the residuals, independent in each coordinate.
        explained: $c_j^2 / \mathrm{tr}\,\Sigma$, ``(rank,)``: the share of the guide's total variance that each
            column explains; the rest is the share of the diagonal. The share of the posterior's variance that the
            guide captures is a separate question.
        directions: ``{site: (rank, *unconstrained shape)}``.
    """

    factor: Tensor
    factor_scale: Tensor
    scale: Tensor
    explained: Tensor
    directions: dict[str, Tensor]


def canonical_form(scaled_factor: Tensor) -> tuple[Tensor, Tensor]:
    r"""Compute B and c with $WW^\top = B\,\mathrm{diag}(c^2)B^\top$ by a singular value decomposition of W.

    Args:
        scaled_factor: W, ``(m, rank)``.

    Returns:
        B, ``(m, rank)``, with orthonormal columns, and c ≥ 0, ``(rank,)``, in decreasing order.
    """
    factor, factor_scale, _ = torch.linalg.svd(scaled_factor, full_matrices=False)
    return factor, factor_scale


def identify(
    factor: Tensor, factor_scale: Tensor, scale: Tensor, shapes: dict[str, tuple[int, ...]]
) -> IdentifiedCovariance:
    r"""Order the columns, fix their signs, and split them by site.

    If all columns share one scale, the basis of their span is not identified. The columns are then rotated to the
    convention of factor analysis, in which $B^\top D^{-2} B$ is diagonal: the first column has the largest norm
    in units of the residual standard deviations.

    Args:
        factor: ``(m, rank)``.
        factor_scale: ``(rank,)``, or a scalar where all columns share one scale.
        scale: ``(m,)``.
        shapes: unconstrained shape of each site, in order.

    Returns:
        The canonical form, as detached tensors.
    """
    factor, factor_scale, scale = factor.detach(), factor_scale.detach(), scale.detach()
    if factor_scale.ndim == 0:
        weighted = factor / scale.unsqueeze(-1)
        factor = factor @ torch.linalg.eigh(weighted.mT @ weighted)[1].flip(-1)
        factor_scale = factor_scale.expand(factor.shape[-1])
    order = factor_scale.argsort(descending=True, stable=True)
    factor, factor_scale = factor[:, order], factor_scale[order]
    if factor.shape[-1]:
        largest = factor.gather(0, factor.abs().argmax(0, keepdim=True))
        factor = torch.where(largest < 0, -factor, factor)
    variance = factor_scale.square()
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    parts = factor.mT.split(sizes, -1)
    directions = {
        name: part.reshape(part.shape[0], *shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    explained = variance / (variance.sum() + scale.square().sum())
    return IdentifiedCovariance(factor, factor_scale, scale, explained, directions)
