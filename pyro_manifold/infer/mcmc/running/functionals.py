"""Functionals of the state of a chain that the posterior identifies, cheap enough to evaluate in each iteration."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pyro_manifold.density import Sites
from pyro_manifold.diagnostics import Symmetry, symmetries
from pyro_manifold.infer.mcmc.transitions import ChainState, Problem, coordinates

_DIRECTIONS = 2


class IdentifiedQuantities:
    r"""Functionals of a state: all coordinates, except that those with a symmetry are replaced by invariants.

    If the posterior identifies the columns of X and Y only up to signs, order or rotations that both share, with scales
    s in the same order, the functionals are the entries of $X \operatorname{diag}(s) Y^\top w$ for two fixed random
    vectors w, where Y is the next of the sites that are transformed jointly, or X itself. If only signs are not
    identified, they are the columns of this product, $x_j (y_j^\top w)$; if X is the only such site, and the order of
    its columns is not identified, the sum of $x_j (x_j^\top w)^3$. The scales s are sorted, which makes them
    functionals themselves.

    Symmetries are those that `diagnostics.symmetries` finds at the initial values: signs, order and rotations of sites
    with orthonormal columns. Other symmetries, such as labels of a mixture, are not detected.

    Args:
        problem: target with initial values.
    """

    def __init__(self, problem: Problem) -> None:
        self._unpack, self._transforms = problem.layout.unpack, problem.target.transforms
        self._found: list[Symmetry] = []
        if problem.manifolds and not problem.is_subsampled:
            try:
                self._found = symmetries(
                    problem.target.as_written, problem.target.values(problem.initial_values), loadings=False
                )
            except Exception:  # a model can fail in any way; coordinates are then used unchanged
                self._found = []
        self._changed = {name for symmetry in self._found for name in symmetry.names}
        first = problem.initial_values
        self._directions = {
            name: _directions(symmetry.rows(name, first[name], 1))
            for symmetry in self._found
            for name in symmetry.sites
        }
        try:
            self._of_sites(first)
        except (RuntimeError, ValueError, IndexError) as error:
            # The choice of a length is better with invariants, and possible without them.
            names = ", ".join(f"'{name}'" for name in sorted(self._changed))
            warnings.warn(
                f"Trajectory lengths are chosen by the coordinates of {names}, not by what the posterior identifies of "
                f"them, since this cannot be computed for their shapes ({error}).",
                stacklevel=2,
            )
            self._found = []

    def __call__(self, state: ChainState) -> Tensor:
        """Return the functionals of each chain, ``(chains, functionals)``."""
        return self._of_sites(self._unpack(state.position)) if self._found else coordinates(state)

    def _of_sites(self, sites: Sites) -> Tensor:
        chains = len(next(iter(sites.values())))
        values = [x.reshape(chains, -1) for name, x in sorted(sites.items()) if name not in self._changed]
        for symmetry in self._found:
            scales = [symmetry.columns_last(name, self._value(sites, name)) for name in symmetry.scales]
            alone = {name for name, *others in symmetry.positive if not others}  # their signs change with nothing
            scales = [x.abs() if name in alone else x for name, x in zip(symmetry.scales, scales, strict=True)]
            values += [value.reshape(chains, -1) for value in self._invariant(sites, symmetry, scales)]
            positive = {name for name, *_ in symmetry.positive}
            numbers = {name: sites[name].abs() if name in positive else sites[name] for name in symmetry.scales}
            numbers = {name: symmetry.columns_last(name, x) for name, x in numbers.items()}
            values += [
                (x.sort(-1).values if name in symmetry.reordered else x).reshape(chains, -1)
                for name, x in numbers.items()
            ]
        return torch.cat(values, 1)

    def _value(self, sites: Sites, name: str) -> Tensor:
        """Return a constrained value; on the log scale a scale near 0 would outweigh all others."""
        return self._transforms[name].inv(sites[name]) if name in self._transforms else sites[name]

    def _invariant(self, sites: Sites, symmetry: Symmetry, scales: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield functionals of the columns of sites that a symmetry does not change, with scales in the same order."""
        names = symmetry.sites
        for name, other in zip(names, (*names[1:], names[0]), strict=True):
            left, right = (symmetry.rows(each, sites[each], 1) for each in (name, other))
            along = right.mT @ self._directions[other]  # (..., p, directions)
            for each in scales:
                each = _without_plates(each, along.dim() - 1)
                # A scale outside of the plates of the columns is shared by their elements.
                common = (1,) * (along.dim() - 1 - each.dim())
                along = along * each.reshape(*each.shape[:1], *common, *each.shape[1:], 1)
            if symmetry.kind == "signs":
                yield left.unsqueeze(-1) * along.unsqueeze(-3)
            elif symmetry.kind == "permutations" and len(names) == 1 and not scales:
                yield left @ along**3
            else:
                yield left @ along


def _without_plates(scale: Tensor, dims: int) -> Tensor:
    """Return random combinations over the plates that a scale has and its columns do not, the same ones in each run.

    Several groups may have columns in common and scales of their own: ``(chains, groups, ..., columns)``. The
    columns of all groups change together, so that a combination of their scales is a scale again.
    """
    while scale.dim() > dims:
        weights = torch.randn(scale.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        scale = torch.einsum("cg...,g->c...", scale, weights.to(scale) / scale.shape[1] ** 0.5)
    return scale


def _directions(like: Tensor) -> Tensor:
    """Return random vectors, ``(n, directions)``; the same ones for each run."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape[-2], _DIRECTIONS, generator=generator, dtype=torch.float64).to(like)
