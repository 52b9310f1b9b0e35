"""Grouping of sites into blocks that move together, with packing and unpacking."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Size, Tensor

from pyro_manifold.infer.mcmc.transitions.states import Block, Blocks
from pyro_manifold.manifolds import Manifold


@dataclass(frozen=True)
class Layout:
    """Blocks of sites: one for each manifold site, and one vector for each group of sites that share a mass matrix.

    Attributes:
        manifold_sites: names of the sites on manifolds.
        groups: groups of unconstrained sites, each with one mass matrix.
        shapes: shape of each unconstrained site in one chain.
        dense: groups with a dense mass matrix.
    """

    manifold_sites: tuple[str, ...]
    groups: tuple[Block, ...]
    shapes: dict[str, Size]
    dense: frozenset[Block]

    @classmethod
    def build(cls, params: dict[str, Tensor], manifold_sites: Iterable[str], full_mass: bool | list[Block]) -> Layout:
        """Group the sites by Pyro's argument ``full_mass``: False, True, or a list of tuples of site names.

        Raises:
            ValueError: if ``full_mass`` is none of these, or names a site twice or an unknown one.
        """
        manifold_sites = tuple(manifold_sites)
        shapes = {name: value.shape for name, value in sorted(params.items()) if name not in manifold_sites}
        if full_mass is True:
            full_mass = [tuple(shapes)] if shapes else []
        elif full_mass is False:
            full_mass = []
        if not (isinstance(full_mass, list) and all(isinstance(group, tuple) and group for group in full_mass)):
            raise ValueError(
                f"full_mass={full_mass!r}, expected True, False or a list of tuples of site names like [('a', 'b')]."
            )
        named = [name for group in full_mass for name in group]
        misplaced = sorted({name for name in named if name not in params or named.count(name) > 1})
        if misplaced:
            raise ValueError(f"full_mass names {misplaced}, expected names among {sorted(params)}, each at most once.")
        for name in sorted(set(named) - set(shapes)):
            raise ValueError(
                f"full_mass names '{name}', which moves on a manifold with masses of its own: leave it out, or give it "
                f"unconstrained coordinates by transforms={{'{name}': HouseholderTransform(n, p).inv}}."
            )
        rest = tuple(name for name in shapes if name not in named)
        groups = tuple(group for group in (*full_mass, rest) if group)
        return cls(manifold_sites, groups, shapes, frozenset(full_mass))

    @property
    def blocks(self) -> list[Block]:
        """All blocks."""
        return [*((name,) for name in self.manifold_sites), *self.groups]

    def pack(self, sites: dict[str, Tensor]) -> Blocks:
        """Convert ``{site: (chains, ...)}`` to ``{block: (chains, ...)}``; an empty dictionary stays empty."""
        if not sites:
            return {}
        blocks: Blocks = {(name,): sites[name] for name in self.manifold_sites}
        for group in self.groups:
            # The number of chains is explicit, because a site may have no coordinates: a Dirichlet of one component.
            parts = [sites[name].reshape(len(sites[name]), self.shapes[name].numel()) for name in group]
            blocks[group] = torch.cat(parts, -1)
        return blocks

    def unpack(self, blocks: Blocks) -> dict[str, Tensor]:
        """Convert ``{block: (..., chains, ...)}`` to ``{site: (..., chains, ...)}``; a dictionary may be empty."""
        if not blocks:
            return {}
        sites = {name: blocks[(name,)] for name in self.manifold_sites}
        for group in self.groups:
            sizes = [self.shapes[name].numel() for name in group]
            for name, part in zip(group, blocks[group].split(sizes, -1), strict=True):
                sites[name] = part.reshape(*part.shape[:-1], *self.shapes[name])
        return sites


def refuse_manifold(name: str, manifold: Manifold, known: list[str]) -> NoReturn:
    """Raise the error for a site on a manifold that a kernel does not support."""
    where = f"on {sorted(known)}" if known else "in unconstrained space"
    raise ValueError(
        f"Site '{name}' is on {manifold!r}, but this kernel moves {where}: pass a transform to unconstrained space, "
        f"such as transforms={{'{name}': HouseholderTransform(n, p).inv}} for n×p orthonormal matrices; for a manifold "
        f"of your own, a subclass of the kernel with manifold_mechanics = {{{type(manifold).__name__}: "
        f"GeodesicMechanics({type(manifold).__name__}())}}."
    )
