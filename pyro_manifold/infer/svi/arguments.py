"""Density of a model on the arguments of a step, which may change between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import optree
import torch
from torch import Tensor
from torch.distributions import biject_to

from pyro_manifold.density import PREFIX, Batch, Batches, BatchProgram, Minibatch, ModelTarget, Sites, target_from_model
from pyro_manifold.distributions import manifold_of

_NUMBERS = bool, int, float, str, type(None)


class Arguments(NamedTuple):
    """Arguments of a step: tensors and other values, with their nesting.

    Attributes:
        leaves: all tensors and values.
        structure: nesting in positional and keyword arguments.
        versions: version of each tensor, which changes when its values do; 0 for other values.
    """

    leaves: list[Any]
    structure: Any
    versions: list[int]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Return the arguments of a call."""
        leaves, structure = _flat((args, dict(kwargs)))
        return cls(leaves, structure, [leaf._version if isinstance(leaf, Tensor) else 0 for leaf in leaves])

    def same(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call has identical and unmodified arguments."""
        leaves, structure = _flat((args, kwargs))
        if structure != self.structure:
            return False
        for own, other, version in zip(self.leaves, leaves, self.versions, strict=True):
            if own is not other:
                if isinstance(own, Tensor) or type(own) is not type(other) or type(own) not in _NUMBERS or own != other:
                    return False
            elif isinstance(own, Tensor) and own._version != version:
                return False
        return True

    @property
    def batch(self) -> Batch:
        """The tensors, by name."""
        return {f"{PREFIX}{k}": leaf for k, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)}

    def with_tensors(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return positional and keyword arguments, with the tensors of a batch as far as it has them."""
        leaves = [batch.get(f"{PREFIX}{k}", leaf) for k, leaf in enumerate(self.leaves)]
        return optree.tree_unflatten(self.structure, leaves)  # type: ignore[return-value]

    @property
    def key(self) -> Any:
        """Key of a graph with tensors as inputs: everything that it is specialised to."""
        each = [
            (leaf.shape, leaf.dtype, leaf.device)
            if isinstance(leaf, Tensor)
            else (type(leaf), leaf if isinstance(leaf, _NUMBERS) else id(leaf))
            for leaf in self.leaves
        ]
        return self.structure, tuple(each)


def _flat(tree: Any) -> tuple[list[Any], Any]:
    leaves: list[Any]
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=True)
    return leaves, structure


class ModelDensity:
    """Potential energy of a model in Pyro's unconstrained space, as a function of sites and of a batch.

    Args:
        model: a Pyro model.
        arguments: arguments of the model.
        sites: latent sites of the model, from a trace.
        inputs: whether the tensors among the arguments are part of each batch, or constants.
        device: device of the indices of plates.

    Attributes:
        target: the model's target.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        sites: Mapping[str, Any],
        *,
        inputs: bool,
        device: torch.device,
    ) -> None:
        program = BatchProgram(model, arguments.with_tensors, arguments.batch)
        transforms = {
            name: biject_to(site["fn"].support).inv
            for name, site in sites.items()
            if manifold_of(site["fn"].support) is not None
        }
        self.target: ModelTarget = target_from_model(program, transforms=transforms, subsample=True)
        minibatch = self.target.on({})
        self.potential_fn = partial(_on_arguments, program, minibatch)
        plates = minibatch.plates
        seed = int(torch.randint(2**31, ())) if plates else 0
        self._indices = Batches(lambda _: plates, device=device, seed=seed) if plates else None
        self._inputs = inputs

    def batch(self, arguments: Arguments, step: int) -> Batch:
        """Return the batch of a step: indices of plates, and tensors of the arguments if they are inputs."""
        indices = {} if self._indices is None else self._indices(step)
        return {**indices, **arguments.batch} if self._inputs else indices


def _on_arguments(program: BatchProgram, minibatch: Minibatch, sites: Sites, batch: Batch | None = None) -> Tensor:
    given = batch or {}
    own = {name: value for name, value in given.items() if not name.startswith(PREFIX)}
    with program.on(given):
        return minibatch.potential_fn(sites, own)
