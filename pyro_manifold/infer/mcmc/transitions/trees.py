"""Conversion of trees of tensors (named tuples, dictionaries, tuples) to flat lists and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import optree
import torch
from torch import Tensor

Tree = TypeVar("Tree")


def of_tensors(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply a function to each tensor of a tree."""
    leaves: Any = tree
    found: Any = optree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, leaves)
    return found


class Structure:
    """Structure of a tree: the positions and dtypes of its tensors, and all other leaves.

    Args:
        example: tree with this structure.
        dtype: dtype of all tensors in lists, from which trees restore their own; None for lists of several dtypes.
    """

    def __init__(self, example: Any, dtype: torch.dtype | None = None) -> None:
        leaves, self._structure = optree.tree_flatten(example)
        self._places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        dtypes = {number: leaves[k].dtype for number, k in enumerate(self._places)}
        self._dtype, self._converted = dtype, {k: own for k, own in dtypes.items() if dtype not in (None, own)}
        accessors = optree.tree_accessors(example)
        self.names = [_name(accessors[k]) for k in self._places]

    def __len__(self) -> int:
        return len(self._places)

    def tensors(self, tree: Any) -> list[Tensor]:
        """Return the tensors of a tree as a list."""
        leaves: list[Any] = optree.tree_leaves(tree)
        found = leaves if len(self._places) == len(leaves) else [leaves[k] for k in self._places]
        for number in self._converted:
            found[number] = found[number].to(self._dtype)
        return found

    def fits(self, tree: Any) -> bool:
        """Return whether all leaves that are not tensors equal those of the example."""
        leaves = optree.tree_leaves(tree)
        return len(leaves) == len(self._rest) and all(
            rest is None or leaf == rest for leaf, rest in zip(leaves, self._rest, strict=True)
        )

    def is_like(self, tree: Any) -> bool:
        """Return whether a tree has as many leaves as the example."""
        return len(optree.tree_leaves(tree)) == len(self._rest)

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        """Rebuild the tree from other tensors."""
        leaves = list(self._rest)
        for number, (place, value) in enumerate(zip(self._places, tensors, strict=True)):
            leaves[place] = value.to(self._converted[number]) if number in self._converted else value
        return self._structure.unflatten(leaves)


def trees(structures: Sequence[Structure], tensors: Sequence[Tensor]) -> list[Any]:
    """Rebuild one tree after another from a list of the tensors of all."""
    remaining = iter(tensors)
    return [structure.tree(list(islice(remaining, len(structure)))) for structure in structures]


def _name(accessor: optree.PyTreeAccessor) -> str:
    """Describe a tensor by the field of the state and the block that it belongs to."""
    noun, block = "", ""
    for entry in accessor:
        if isinstance(entry, optree.NamedTupleEntry):
            noun = str(entry.field)
        elif isinstance(entry, optree.MappingEntry):
            noun, block = (noun, ", ".join(entry.key)) if isinstance(entry.key, tuple) else (entry.key, block)
    noun = "potential energy" if noun == "energy" else noun.replace("_", " ")
    return f"the {noun} of '{block}'" if block else f"the {noun}"
