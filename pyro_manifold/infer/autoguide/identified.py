"""What a low-rank plus diagonal covariance says, freed from signs, order and rotations of its columns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class IdentifiedCovariance(NamedTuple):
    r"""A covariance :math:`B\,\mathrm{diag}(c^2)B^\top + \mathrm{diag}(d^2)` in a form that two fits can share.

    B, c and d follow from the covariance (up to what is fixed here) if, whichever row of B is taken out, the others
    hold two separate sets of ``rank`` linearly independent rows (Anderson & Rubin 1956), which needs m ≥ 2·rank + 1.

    Columns of B are in falling order and have their entry of largest modulus positive. All is in the unconstrained
    space of Pyro's guides, in the order in which the model's sites appear; ``directions`` has B cut into sites.

    Attributes:
        factor: B, ``(latent_dim, rank)``, orthonormal columns.
        factor_scale: c, ``(rank,)``, standard deviations along the columns.
        scale: d, ``(latent_dim,)``, standard deviations of what is left, independent in each coordinate.
        explained: :math:`c_j^2 / \mathrm{tr}\,\Sigma`, ``(rank,)``: the share of the guide's total variance that each
            column explains; what is missing to 1 is the diagonal's. How much of the posterior's variance the guide has
            found is another question.
        directions: ``{site: (rank, *unconstrained shape)}``.
    """

    factor: Tensor
    factor_scale: Tensor
    scale: Tensor
    explained: Tensor
    directions: dict[str, Tensor]


def canonical_form(scaled_factor: Tensor) -> tuple[Tensor, Tensor]:
    r"""B and c with :math:`WW^\top = B\,\mathrm{diag}(c^2)B^\top`, from the singular value decomposition of W.

    Args:
        scaled_factor: W, ``(m, rank)``.

    Returns:
        B, ``(m, rank)``, orthonormal columns, and c ≥ 0, ``(rank,)``, falling.
    """
    factor, factor_scale, _ = torch.linalg.svd(scaled_factor, full_matrices=False)
    return factor, factor_scale


def identify(
    factor: Tensor, factor_scale: Tensor, scale: Tensor, shapes: dict[str, tuple[int, ...]]
) -> IdentifiedCovariance:
    r"""Order the columns, fix their signs, and cut them into sites.

    Equal scales leave the basis of the span free. Then the columns are turned to those of the factor analyst, for
    which :math:`B^\top D^{-2} B` is diagonal: the first says most in units of what is left to each coordinate.

    Args:
        factor: ``(m, rank)``.
        factor_scale: ``(rank,)``, or a scalar where all columns share one scale.
        scale: ``(m,)``.
        shapes: unconstrained shape of each site, in order.

    Returns:
        Detached tensors.
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
