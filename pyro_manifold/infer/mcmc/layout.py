"""Which sites move together: packing of sites into blocks and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Size, Tensor

from pyro_manifold.infer.mcmc.states import Block, Blocks
from pyro_manifold.manifolds import Manifold


@dataclass(frozen=True)
class Layout:
    """Blocks of sites. A manifold site is a block of its own; other sites are vectors joined by mass matrix.

    Attributes:
        manifold_sites: names of the sites that stay whole.
        groups: the groups of unconstrained sites, each with one mass matrix.
        shapes: shape of each unconstrained site in one chain.
        dense: the groups whose mass matrix is dense.
    """

    manifold_sites: tuple[str, ...]
    groups: tuple[Block, ...]
    shapes: dict[str, Size]
    dense: frozenset[Block]

    @classmethod
    def build(cls, params: dict[str, Tensor], manifold_sites: Iterable[str], full_mass: bool | list[Block]) -> Layout:
        """Group the sites as Pyro's ``full_mass`` says: False, True, or a list of tuples of site names.

        Raises:
            ValueError: if ``full_mass`` is none of these, or names a site twice, a manifold site or an unknown one.
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
        misplaced = sorted({name for name in named if name not in shapes or named.count(name) > 1})
        if misplaced:
            raise ValueError(
                f"full_mass names {misplaced}, expected unconstrained sites (here {list(shapes)}), each at most once; "
                "a manifold site has masses of its own and belongs in no group."
            )
        rest = tuple(name for name in shapes if name not in named)
        groups = (*full_mass, rest) if rest else tuple(full_mass)
        return cls(manifold_sites, groups, shapes, frozenset(full_mass))

    def pack(self, sites: dict[str, Tensor]) -> Blocks:
        """``{site: (chains, ...)}`` to ``{block: (chains, ...)}``."""
        blocks: Blocks = {(name,): sites[name] for name in self.manifold_sites}
        for group in self.groups:
            # The number of chains is said, because a site may have no coordinates: a Dirichlet of one component.
            parts = [sites[name].reshape(len(sites[name]), self.shapes[name].numel()) for name in group]
            blocks[group] = torch.cat(parts, -1)
        return blocks

    def unpack(self, blocks: Blocks) -> dict[str, Tensor]:
        """``{block: (chains, ...)}`` to ``{site: (chains, ...)}``."""
        sites = {name: blocks[(name,)] for name in self.manifold_sites}
        for group in self.groups:
            sizes = [self.shapes[name].numel() for name in group]
            for name, part in zip(group, blocks[group].split(sizes, -1), strict=True):
                sites[name] = part.reshape(len(part), *self.shapes[name])
        return sites


def refuse_manifold(name: str, manifold: Manifold, known: list[str]) -> NoReturn:
    """Raise the sentence for a site on a manifold that a kernel cannot move on."""
    where = f"on {sorted(known)}" if known else "in unconstrained space"
    raise ValueError(
        f"Site '{name}': this kernel moves {where}, not on {manifold!r}; give the site a transform to unconstrained "
        f"space, such as transforms={{'{name}': HouseholderTransform(n, p).inv}} for n×p orthonormal matrices."
    )
