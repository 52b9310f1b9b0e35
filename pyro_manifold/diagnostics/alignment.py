r"""Alignment of draws that agree only up to signs, permutations or rotations of columns.

The likelihood of factor models, PCA and latent space models does not change when loadings X become XT for a T in some
set of orthogonal matrices, such as all rotations. Draws then visit all XT, posterior means tend to zero, and R-hat and
effective sample size describe that set, not the loadings. Here each draw is multiplied by the T that brings it nearest
to a reference. If all draws are rotations, square matrices of determinant 1, T has determinant 1 as well.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled import by_matrix
from pyro_manifold.diagnostics.checks import are_rotations, check_draws, check_reference
from pyro_manifold.manifolds import SpecialOrthogonal, polar_factor

_MOST_ROUNDS = 200
_FEW_COLUMNS = 4  # all orders of which are tried


class Alignment(NamedTuple):
    r"""Aligned draws and the transformations that aligned them: ``aligned.draws = draws @ aligned.transformation``.

    Other parameters are transformed by the same T. Where $Y = Z X^\top$, scores become ``Z @ T``; where
    $Y = X A X^\top$, the core becomes ``T.mT @ A @ T``; one value for each column goes through `reorder`.

    Attributes:
        draws: ``(chains, draws, ..., n, p)``.
        transformation: orthogonal matrices T, ``(chains, draws, ..., p, p)``.
        reference: the matrix to which the draws were aligned, ``(..., n, p)``.
    """

    draws: Tensor
    transformation: Tensor
    reference: Tensor

    def reorder(self, values: Tensor) -> Tensor:
        """Reorder positive parameters of the columns (scales, eigenvalues) as the columns were reordered.

        Args:
            values: ``(chains, draws, ..., p)``.

        Returns:
            The same shape.

        Raises:
            ValueError: after a rotation, which mixes columns; for values of another shape.

        Examples:
            >>> draws = torch.eye(3, 2)[:, [1, 0]].expand(1, 1, 3, 2)
            >>> aligned = align_signs_and_permutations(draws, reference=torch.eye(3, 2))
            >>> aligned.reorder(torch.tensor([[[5.0, 7.0]]])).tolist()
            [[[7.0, 5.0]]]
        """
        order = self.transformation.abs()
        if not bool((order.amax(-1) == 1).all()):
            raise ValueError(
                "Alignment.reorder: transformation rotates columns into each other, for which values of single columns "
                "are undefined; use align_signs_and_permutations, or transform the p×p matrix as T.mT @ A @ T."
            )
        if values.shape != order.shape[:-1]:
            raise ValueError(
                f"Alignment.reorder: values has shape {tuple(values.shape)}, expected {tuple(order.shape[:-1])}, "
                "one value for each column of each draw."
            )
        return values.gather(-1, order.argmax(-2))


def align_signs(draws: Tensor, reference: Tensor | None = None) -> Alignment:
    r"""Choose the signs of columns: the diagonal T of ±1 that minimises $\lVert XT - R\rVert$.

    Column j keeps its sign if $x_j^\top r_j \ge 0$. Use it for models whose columns have an order, such as PCA with
    distinct eigenvalues.

    Args:
        draws: X, ``(chains, draws, ..., n, p)``, float32 or float64, orthonormal or not. Batch elements are aligned
            independently of each other. Rotations, square and of determinant 1, stay rotations.
        reference: R, ``(n, p)`` or ``(..., n, p)``. None aligns to the mean of the aligned draws, iterated from the
            first draw until it no longer changes (generalised Procrustes analysis, Gower 1975, Psychometrika 40). The
            first draw then keeps its orientation; give a reference to choose another.

    Returns:
        The aligned draws, T, and R, of the draws' dtype and detached from any graph.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries or shapes that do not match.

    Examples:
        >>> X = torch.eye(3, 2)
        >>> draws = torch.stack([X, -X, X * torch.tensor([1.0, -1.0])]).unsqueeze(0)
        >>> aligned = align_signs(draws)
        >>> bool((aligned.draws == X).all())
        True
        >>> aligned.transformation[0, 2].tolist()
        [[1.0, 0.0], [0.0, -1.0]]
    """
    return _align(draws, reference, nearest_signs, "align_signs")


def align_signs_and_permutations(draws: Tensor, reference: Tensor | None = None) -> Alignment:
    r"""Choose the signs and order of columns: the signed permutation T that minimises $\lVert XT - R\rVert$.

    Equivalently T maximises $\mathrm{tr}(R^\top X T)$: a linear assignment problem with the gains
    $|X^\top R|$, solved exactly. Use it for models whose columns are exchangeable, such as mixtures of directions,
    independent components, or factors after a varimax rotation (Papastamoulis & Ntzoufras 2022, Statistics and
    Computing 32:23). `Alignment.reorder` reorders scales or eigenvalues.

    Args:
        draws: X, ``(chains, draws, ..., n, p)``, float32 or float64, orthonormal or not. Batch elements are aligned
            independently of each other. Rotations, square and of determinant 1, stay rotations.
        reference: R, ``(n, p)`` or ``(..., n, p)``; the mean of the aligned draws if None, as for `align_signs`.

    Returns:
        The aligned draws, T, and R, of the draws' dtype and detached from any graph.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries or shapes that do not match.

    Examples:
        >>> X = torch.eye(3, 2)
        >>> draws = torch.stack([X, -X[:, [1, 0]]]).unsqueeze(0)
        >>> bool((align_signs_and_permutations(draws).draws == X).all())
        True
    """
    return _align(draws, reference, nearest_signed_permutations, "align_signs_and_permutations")


def align_rotations(draws: Tensor, reference: Tensor | None = None) -> Alignment:
    r"""Choose the orthogonal T that minimises $\lVert XT - R\rVert$, reflections included unless draws are rotations.

    T is the orthogonal matrix nearest to $X^\top R$ (orthogonal Procrustes; Schönemann 1966, Psychometrika 31).
    Use it for models that identify only the span of the columns, or only $XX^\top$: factor analysis, latent spaces.

    Args:
        draws: X, ``(chains, draws, ..., n, p)``, float32 or float64, orthonormal or not. Batch elements are aligned
            independently of each other. Rotations, square and of determinant 1, stay rotations.
        reference: R, ``(n, p)`` or ``(..., n, p)``; the mean of the aligned draws if None, as for `align_signs`.

    Returns:
        The aligned draws, T, and R, of the draws' dtype and detached from any graph.

    Raises:
        TypeError: for anything but a real floating point tensor.
        ValueError: for non-finite entries or shapes that do not match.

    Examples:
        >>> X = torch.eye(3, 2)
        >>> quarter_turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> aligned = align_rotations(torch.stack([X, X @ quarter_turn]).unsqueeze(0))
        >>> torch.allclose(aligned.draws, X.expand(1, 2, 3, 2))
        True
    """
    return _align(draws, reference, nearest_rotations, "align_rotations")


def _align(draws: Tensor, reference: Tensor | None, nearest: Callable[..., Tensor], owner: str) -> Alignment:
    """Align by ``nearest``, a function from inner products XᵀR to the allowed T with the largest tr(Rᵀ X T)."""
    check_draws(draws, owner)
    draws = draws.detach()
    if are_rotations(draws):
        nearest = partial(nearest, proper=True)
    if reference is None:
        reference = _common_reference(draws, nearest, owner)
    else:
        reference = check_reference(reference, draws, owner)
    transformation = nearest(draws.mT @ reference)
    return Alignment(draws @ transformation, transformation, reference)


def _common_reference(draws: Tensor, nearest: Callable[[Tensor], Tensor], owner: str) -> Tensor:
    """Return the mean of the draws aligned to it, oriented so that the first draw is unchanged.

    Each iteration increases the norm of the mean. Over signs and permutations the iteration therefore ends; over
    rotations it converges linearly, the faster the more concentrated the draws are.
    """
    tolerance = float(torch.finfo(draws.dtype).eps) ** 0.75
    reference = draws[0, 0]
    for _ in range(_MOST_ROUNDS):
        updated = (draws @ nearest(draws.mT @ reference)).mean((0, 1))
        change = float((updated - reference).norm())
        reference = updated
        if change <= tolerance * float(updated.norm()):
            break
    else:
        warnings.warn(
            f"{owner}: the common reference of draws has not converged after {_MOST_ROUNDS} iterations, since draws "
            "are dispersed; give a reference, or use invariants instead.",
            stacklevel=4,
        )
    return reference @ nearest(draws[0, 0].mT @ reference).mT


def nearest_signs(products: Tensor, *, proper: bool = False) -> Tensor:
    """Return the diagonal T of ±1 with the largest tr(Rᵀ X T), of determinant 1 if ``proper``.

    Args:
        products: XᵀR, ``(..., p, p)``.
        proper: whether T has determinant 1.
    """
    turns = torch.diag_embed(_signs(products.diagonal(dim1=-2, dim2=-1)))
    return without_reflections(turns, products) if proper else turns


def nearest_signed_permutations(products: Tensor, *, proper: bool = False) -> Tensor:
    """Return the signed permutation T with the largest tr(Rᵀ X T), of determinant 1 if ``proper``.

    Args:
        products: XᵀR, ``(..., p, p)``.
        proper: whether T has determinant 1; see `nearest_proper_permutations`.
    """
    if proper:
        return nearest_proper_permutations(products)
    return nearest_permutations(products.abs()) * _signs(products)


def without_reflections(turns: Tensor, products: Tensor) -> Tensor:
    """Return signed permutations ``(..., p, p)`` of determinant 1, by the change of sign that costs least."""
    gains = (turns * products).sum(-2)
    least = torch.nn.functional.one_hot(gains.abs().argmin(-1), gains.shape[-1]).to(turns)
    reflected = (by_matrix(torch.linalg.det, turns) < 0).unsqueeze(-1)
    return turns * torch.where(reflected, 1 - 2 * least, 1.0).unsqueeze(-2)


def nearest_proper_permutations(products: Tensor) -> Tensor:
    """Return the signed permutation of determinant 1 with the largest tr(Rᵀ X T), from products ``(..., p, p)``.

    It is exact for p ≤ 4; for larger p the best one without that condition is compared with those that differ from it
    by a sign, or by two columns and their signs.
    """
    p = products.shape[-1]
    best = nearest_signed_permutations(products)
    found = without_reflections(best, products)
    reflected = by_matrix(torch.linalg.det, best) < 0
    if not bool(reflected.any()):
        return found
    order, some = best.abs()[reflected], products[reflected]
    changes = itertools.permutations(range(p)) if p <= _FEW_COLUMNS else _exchanges(p)
    others = [order[..., list(change)] for change in changes]
    tried = torch.stack([without_reflections(other * _signs(some), some) for other in others])
    nearest = (tried * some).sum((-2, -1)).argmax(0)
    # Boolean places keep the shape in front, whatever it is.
    return found.index_put((reflected,), tried[nearest, torch.arange(len(some), device=some.device)])


def _exchanges(p: int) -> list[list[int]]:
    """Return the order of p columns, and all orders in which two of them have changed places."""
    found = [list(range(p))]
    for first, second in itertools.combinations(range(p), 2):
        order = list(range(p))
        order[first], order[second] = second, first
        found.append(order)
    return found


def nearest_permutations(all_gains: Tensor) -> Tensor:
    """Return the permutation with the largest sum of gains, ``(..., p, p)``, by an assignment problem for each."""
    p = all_gains.shape[-1]
    gains = all_gains.reshape(-1, p, p)
    # If the largest gains of all columns are in different places, they are the optimal assignment.
    places = gains.argmax(-1)
    ambiguous_fraction = (places.sort(-1).values != torch.arange(p, device=places.device)).any(-1).nonzero().squeeze(-1)
    if len(ambiguous_fraction):
        from scipy.optimize import linear_sum_assignment  # imported here, because it takes a third of a second

        solved = [
            linear_sum_assignment(gain, maximize=True)[1].tolist() for gain in gains[ambiguous_fraction].cpu().numpy()
        ]
        places[ambiguous_fraction] = torch.tensor(solved, device=places.device)
    return torch.nn.functional.one_hot(places, p).to(gains.dtype).reshape(all_gains.shape)


def nearest_rotations(products: Tensor, *, proper: bool = False) -> Tensor:
    """Return the orthogonal T with the largest tr(Rᵀ X T), of determinant 1 if ``proper``.

    Args:
        products: XᵀR, ``(..., p, p)``.
        proper: whether T has determinant 1.
    """
    return SpecialOrthogonal().projection(products) if proper else polar_factor(products)


def _signs(values: Tensor) -> Tensor:
    """Return signs that are never 0, so that a column orthogonal to its reference is not lost."""
    return torch.where(values < 0, -1.0, 1.0).to(values.dtype)
