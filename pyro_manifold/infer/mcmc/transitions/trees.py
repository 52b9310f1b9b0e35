"""Conversion of trees of tensors (named tuples, dictionaries, tuples) to flat lists and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Structure of a tree: the positions of its tensors, and all other leaves.

    Args:
        example: tree with this structure.
    """

    def __init__(self, example: Any) -> None:
        leaves, self._structure = optree.tree_flatten(example)
        self._places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._dtypes = [leaves[k].dtype for k in self._places]
        accessors = optree.tree_accessors(example)
        self.names = [_name(accessors[k]) for k in self._places]

    def __len__(self) -> int:
        return len(self._places)

    def tensors(self, tree: Any) -> list[Tensor]:
        """Return the tensors of a tree as a list."""
        leaves: list[Any] = optree.tree_leaves(tree)
        return leaves if len(self._places) == len(leaves) else [leaves[k] for k in self._places]

    def fits(self, tree: Any) -> bool:
        """Return whether all leaves that are not tensors equal those of the example."""
        leaves = optree.tree_leaves(tree)
        return len(leaves) == len(self._rest) and all(
            rest is None or leaf == rest for leaf, rest in zip(leaves, self._rest, strict=True)
        )

    def tree(self, tensors: Sequence[Tensor]) -> Any:
        """Rebuild the tree from other tensors; entries that are boolean in the example are converted to booleans."""
        leaves = list(self._rest)
        for place, dtype, value in zip(self._places, self._dtypes, tensors, strict=True):
            leaves[place] = value.bool() if dtype is torch.bool else value
        return self._structure.unflatten(leaves)


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
