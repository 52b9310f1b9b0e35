"""Functionals of loadings that signs, permutations or rotations of columns do not change, and their convergence."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws

Invariance = Literal["signs", "permutations", "rotations"]


class Convergence(NamedTuple):
    """R-hat and effective sample size of each entry of a functional; NaN for entries that do not vary.

    Attributes:
        rhat: rank-normalised split R-hat, ``(...)`` like one draw of the functional.
        ess: bulk effective sample size, of the same shape.
    """

    rhat: Tensor
    ess: Tensor


def invariants(draws: Tensor, kind: Invariance = "rotations") -> dict[str, Tensor]:
    r"""Functionals of loadings X that do not change when X becomes XT.

    For every ``kind``, with the p pivot rows K that span the most volume in the mean of :math:`XX^\top`:

    - ``"squared row norms"`` :math:`\sum_j x_{ij}^2`, ``(..., n)``: communalities of a factor model;
    - ``"row products"`` :math:`X X_K^\top`, ``(..., n, p)``: they determine X up to a rotation.

    For ``"permutations"`` (signed ones) also

    - ``"quartic row sums"`` :math:`\sum_j x_{ij}^4`, ``(..., n)``: what varimax looks at, changed by rotations.

    For ``"signs"`` also

    - ``"squared entries"`` :math:`x_{ij}^2`, ``(..., n, p)``;
    - ``"column products"`` :math:`x_{ij} x_{kj}`, ``(..., n, p)``, k the row with the largest mean square in column
      j: they determine each column up to its sign.

    Args:
        draws: X, ``(chains, draws, ..., n, p)``, float32 or float64, orthonormal or not.
        kind: what the T may do to the columns: ``"signs"``, ``"permutations"`` or ``"rotations"``.

    Returns:
        ``{name: (chains, draws, ..., n) or (chains, draws, ..., n, p)}``. None is n×n.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries, a wrong shape or another ``kind``.

    Example:
        >>> draws = torch.eye(3, 2).expand(4, 10, 3, 2)
        >>> found = invariants(draws, kind="signs")
        >>> all(torch.equal(found[name], value) for name, value in invariants(-draws, kind="signs").items())
        True
    """
    check_draws(draws, "invariants")
    if kind not in ("signs", "permutations", "rotations"):
        raise ValueError(f"invariants: kind={kind!r}, expected 'signs', 'permutations' or 'rotations'.")
    draws = draws.detach()
    squares = draws.square()
    found = {"squared row norms": squares.sum(-1), "row products": draws @ _pivot_rows(draws).mT}
    if kind == "permutations":
        found["quartic row sums"] = squares.square().sum(-1)
    if kind == "signs":
        largest = squares.mean((0, 1)).argmax(-2, keepdim=True).expand(*draws.shape[:-2], 1, -1)
        found["squared entries"] = squares
        found["column products"] = draws * draws.gather(-2, largest)
    return found


def summarise_invariants(draws: Tensor, kind: Invariance = "rotations") -> dict[str, Convergence]:
    r"""R-hat and effective sample size of `invariants`, by ArviZ.

    They say whether chains agree and mix as far as the model can tell, without any alignment. (Vehtari, Gelman,
    Simpson, Carpenter & Bürkner 2021, Bayesian Analysis 16.)

    Args:
        draws: ``(chains, draws, ..., n, p)`` with at least 4 draws. With one chain R-hat compares its halves.
        kind: as for `invariants`.

    Returns:
        ``{name: Convergence(rhat, ess)}``.

    Raises:
        TypeError, ValueError: as `invariants`; for fewer than 4 draws.

    Example:
        >>> signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(4, 1, 1, 1)
        >>> generator = torch.Generator().manual_seed(0)
        >>> draws = signs * (1 + 0.1 * torch.randn(4, 100, 3, 1, generator=generator))  # each chain in its own mode
        >>> summary = summarise_invariants(draws, kind="signs")
        >>> bool(summary["row products"].rhat.max() < 1.05)
        True
    """
    check_draws(draws, "summarise_invariants")
    if draws.shape[1] < 4:
        raise ValueError(
            f"summarise_invariants: draws has shape {tuple(draws.shape)}, but R-hat needs 4 or more in each chain."
        )
    return {name: _convergence(values) for name, values in invariants(draws, kind).items()}


def _pivot_rows(draws: Tensor) -> Tensor:
    """The p rows of each draw that span the most volume on average: pivoted Cholesky of the mean of XXᵀ.

    Only its diagonal and p columns are formed.
    """
    p = draws.shape[-1]
    remaining = draws.square().sum(-1).mean((0, 1))  # (..., n)
    rows, factor = [], remaining.new_zeros(*remaining.shape, 0)
    for _ in range(p):
        pivot = remaining.argmax(-1, keepdim=True)
        row = draws.gather(-2, pivot.unsqueeze(-1).expand(*draws.shape[:-2], 1, p))
        rows.append(row)
        own = factor.gather(-2, pivot.unsqueeze(-1).expand(*factor.shape[:-2], 1, factor.shape[-1]))
        column = (draws @ row.mT).mean((0, 1)) - factor @ own.mT
        column = column / remaining.gather(-1, pivot).unsqueeze(-1).clamp(min=torch.finfo(draws.dtype).tiny).sqrt()
        factor = torch.cat([factor, column], -1)
        remaining = (remaining - column.squeeze(-1).square()).scatter(-1, pivot, 0.0)
    return torch.cat(rows, -2)


def _convergence(values: Tensor) -> Convergence:
    # ArviZ takes a second to import, and only this needs it.
    import arviz
    import xarray

    shape = values.shape[2:]
    flat = values.flatten(2).double()
    rhat = flat.new_full((flat.shape[-1],), torch.nan)
    ess = rhat.clone()
    # Row norms of a square orthonormal matrix are 1 up to rounding; the R-hat of rounding says nothing.
    scale = torch.finfo(values.dtype).eps * 100 * flat.abs().amax((0, 1))
    varying = flat.flatten(0, 1).std(0) > scale
    if bool(varying.any()):
        table = xarray.Dataset({"x": (("chain", "draw", "entry"), flat[..., varying].cpu().numpy())})
        rhat[varying] = torch.as_tensor(arviz.rhat(table)["x"].to_numpy()).to(rhat)
        ess[varying] = torch.as_tensor(arviz.ess(table)["x"].to_numpy()).to(ess)
    return Convergence(rhat.reshape(shape), ess.reshape(shape))
