"""Functionals of loadings that are invariant under signs, permutations or rotations of columns; their convergence."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from pyro_manifold.diagnostics.checks import check_draws, check_real
from pyro_manifold.diagnostics.convergence import convergence
from pyro_manifold.diagnostics.products import pivots, product_invariants, rows_at

Invariance = Literal["signs", "permutations", "rotations"]


class Convergence(NamedTuple):
    """R-hat and effective sample size of each entry of a functional; NaN for entries that do not vary.

    Attributes:
        rhat: rank-normalised split R-hat, ``(...)`` like one draw of the functional.
        ess: bulk effective sample size, of the same shape.
    """

    rhat: Tensor
    ess: Tensor


def invariants(
    draws: Tensor, kind: Invariance = "rotations", *, scales: Tensor | None = None, right: Tensor | None = None
) -> dict[str, Tensor]:
    r"""Compute functionals of loadings X that do not change when X becomes XT.

    For every ``kind``, with the p pivot rows K that span the most volume in the mean of $XX^\top$:

    - ``"squared row norms"`` $\sum_j x_{ij}^2$, ``(..., n)``: communalities of a factor model;
    - ``"row products"`` $X X_K^\top$, ``(..., n, p)``: they determine X up to a rotation.

    For ``"permutations"`` (signed ones) also

    - ``"quartic row sums"`` $\sum_j x_{ij}^4$, ``(..., n)``: the varimax criterion, changed by rotations.

    For ``"signs"`` also

    - ``"squared entries"`` $x_{ij}^2$, ``(..., n, p)``;
    - ``"column products"`` $x_{ij} x_{kj}$, ``(..., n, p)``, k the row with the largest mean square in column
      j: they determine each column up to its sign.

    With ``scales`` s or another matrix ``right`` V the model identifies the n×m matrix
    $M = X \operatorname{diag}(s) V^\top$, or $X \operatorname{diag}(s) X^\top$ without V, and the posterior
    is invariant under any change of X, s and V that does not change M. With r = min(n, m, p) pivot columns K, which
    span the most volume on average, and pivot rows L:

    - ``"pivot columns"`` $M_{:K}$, ``(..., n, r)``, and without symmetry ``"pivot rows"`` $M_{L:}^\top$,
      ``(..., m, r)``: they determine M;
    - ``"diagonal"`` $M_{ii}$ and ``"eigenvalues"`` of the symmetric M; ``"squared row norms"``,
      ``"squared column norms"`` and ``"singular values"`` of the others.

    Args:
        draws: X, ``(chains, draws, ..., n, p)``, float32 or float64, orthonormal or not.
        kind: the transformations T of the columns: ``"signs"``, ``"permutations"`` or ``"rotations"``; not with
            ``scales`` or ``right``, which imply them.
        scales: s, ``(chains, draws, ..., p)``, such as ``draws["scales"] ** 2`` where the model has
            $U \operatorname{diag}(s^2) U^\top$; ones if None.
        right: V, ``(chains, draws, ..., m, p)``; X itself if None.

    Returns:
        ``{name: (chains, draws, ...)}``. No functional has n×n or n×m entries.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries, shapes that do not match, another ``kind``, or ``kind`` together with
            ``scales`` or ``right``.

    Examples:
        >>> import torch
        >>> draws = torch.eye(3, 2).expand(4, 10, 3, 2)
        >>> found = invariants(draws, kind="signs")
        >>> all(torch.equal(found[name], value) for name, value in invariants(-draws, kind="signs").items())
        True
        >>> covariance = invariants(draws, scales=torch.ones(4, 10, 2))
        >>> bool(torch.allclose(covariance["eigenvalues"], torch.ones(4, 10, 2)))
        True
    """
    _check(draws, kind, scales, right, "invariants")
    draws = draws.detach()
    if scales is not None or right is not None:
        return product_invariants(draws, scales, right)
    squares = draws.square()
    rows = rows_at(draws, pivots(draws, draws.shape[-1]))
    found = {"squared row norms": squares.sum(-1), "row products": draws @ rows.mT}
    if kind == "permutations":
        found["quartic row sums"] = squares.square().sum(-1)
    if kind == "signs":
        largest = squares.mean((0, 1)).argmax(-2, keepdim=True).expand(*draws.shape[:-2], 1, -1)
        found["squared entries"] = squares
        found["column products"] = draws * draws.gather(-2, largest)
    return found


def summarise_invariants(
    draws: Tensor, kind: Invariance = "rotations", *, scales: Tensor | None = None, right: Tensor | None = None
) -> dict[str, Convergence]:
    r"""Compute R-hat and effective sample size of `invariants`, by ArviZ.

    They show whether chains agree and mix as far as the model identifies the loadings, without any alignment. (Vehtari,
    Gelman, Simpson, Carpenter & Bürkner 2021, Bayesian Analysis 16.)

    Args:
        draws: ``(chains, draws, ..., n, p)`` with at least 4 draws. With one chain R-hat compares its quarters.
        kind: as for `invariants`.
        scales: as for `invariants`, ``(chains, draws, ..., p)``.
        right: as for `invariants`, ``(chains, draws, ..., m, p)``.

    Returns:
        ``{name: Convergence(rhat, ess)}``.

    Raises:
        TypeError, ValueError: as `invariants`; for fewer than 4 draws.

    Examples:
        >>> import torch
        >>> signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(4, 1, 1, 1)
        >>> generator = torch.Generator().manual_seed(0)
        >>> draws = signs * (1 + 0.1 * torch.randn(4, 100, 3, 1, generator=generator))  # each chain in its own mode
        >>> summary = summarise_invariants(draws, kind="signs")
        >>> bool(summary["row products"].rhat.max() < 1.05)
        True
        >>> summary = summarise_invariants(draws, right=2 * draws)  # two sites, which change signs together
        >>> bool(summary["singular values"].rhat.max() < 1.05)
        True
    """
    _check(draws, kind, scales, right, "summarise_invariants")
    if draws.shape[1] < 4:
        raise ValueError(
            f"summarise_invariants: draws has shape {tuple(draws.shape)}, but R-hat needs 4 or more in each chain."
        )
    found = invariants(draws, kind, scales=scales, right=right)
    return {name: _convergence(values) for name, values in found.items()}


def _check(draws: Tensor, kind: str, scales: Tensor | None, right: Tensor | None, owner: str) -> None:
    check_draws(draws, owner)
    if kind not in ("signs", "permutations", "rotations"):
        raise ValueError(f"{owner}: kind={kind!r}, expected 'signs', 'permutations' or 'rotations'.")
    companions = {"scales": scales, "right": right}
    given = " and ".join(name for name, value in companions.items() if value is not None)
    if given and kind != "rotations":
        raise ValueError(
            f"{owner}: kind={kind!r} cannot be combined with {given}, with which the functionals are those of the "
            "product and invariant under all changes of columns: leave kind out."
        )
    for name, value in companions.items():
        if value is None:
            continue
        check_real(value, name, owner)
        rows = () if name == "scales" else (value.shape[-2] if value.dim() > 1 else "m",)
        expected = (*draws.shape[:-2], *rows, draws.shape[-1])
        if tuple(value.shape) != expected:
            shape = ", ".join(map(str, expected))
            raise ValueError(
                f"{owner}: {name} has shape {tuple(value.shape)}, expected ({shape}) to match draws of shape "
                f"{tuple(draws.shape)}."
            )


def _convergence(values: Tensor) -> Convergence:
    found = convergence(values, ("r_hat", "ess_bulk"))
    return Convergence(found["r_hat"].to(values.device), found["ess_bulk"].to(values.device))
