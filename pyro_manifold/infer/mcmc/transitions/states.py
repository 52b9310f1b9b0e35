"""Types shared by all kernels: blocks of sites, states of chains, transitions and their statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import optree
import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions.trees import of_tensors

Block = tuple[str, ...]
"""Names of the sites in one tensor: one manifold site, or a group of unconstrained sites."""

Blocks = dict[Block, Tensor]
"""Tensors by block; dimension 0 is that of chains."""

Potential = Callable[[Blocks], tuple[Tensor, Blocks]]
"""Function from positions to the potential energy ``(chains,)``, minus the log density, and its Euclidean gradient."""

Statistics = dict[str, Tensor]
"""Statistics of a transition, ``{name: (chains,)}``, with ArviZ's names where they exist."""


class ChainState(Protocol):
    """Protocol of a state of all chains, as used by adaptation and diagnostics; tensors are never modified in place."""

    @property
    def position(self) -> Blocks: ...

    @property
    def energy(self) -> Tensor: ...

    @property
    def gradient(self) -> Blocks: ...


class NotFiniteError(ArithmeticError):
    """Error of a transition to values that are not finite, if it has no rejection step."""


class PositionState(NamedTuple):
    """Position, energy and gradient of every chain: the state of kernels without momenta."""

    position: Blocks
    energy: Tensor
    gradient: Blocks


class Noise(NamedTuple):
    """Pre-drawn noise of one iteration.

    Attributes:
        normal: standard normal noise, a tree of tensors ``(chains, ...)``; may be overwritten.
        uniform: uniform random numbers in [0, 1) for the acceptance decisions, ``(chains,)``, or a tree of these; None
            without a decision.
    """

    normal: Any
    uniform: Any = None


S = TypeVar("S", bound=ChainState)
T_contra = TypeVar("T_contra", contravariant=True)
Q = TypeVar("Q")


class Transition(Protocol[S, T_contra]):
    """Protocol of a transition of all chains with the target as invariant distribution (nearly, if unadjusted).

    A transition is stateless: everything that it needs of the past is in the state, and of the adaptation in the
    settings.
    """

    def __call__(self, state: S, settings: T_contra, random: torch.Generator) -> tuple[S, Statistics]:
        """Return the next state and the statistics of the transition."""


class PureTransition(Protocol[S, Q]):
    """Protocol of a transition as pure functions of trees of tensors, each ``(chains, ...)`` or ``(1, ...)``.

    Settings have an entry ``num_steps``. Other entries that are not tensors are constants in native code. ``begin``
    returns a tree that is updated by steps, and one that is passed unchanged to ``finish``. Control flow does not
    depend on the values of tensors.
    """

    def prepared(self, settings: Q, state: S) -> Q:
        """Return the settings with tensors for all values that are inputs of native code."""

    def noise(self, state: S, random: torch.Generator) -> Noise: ...

    def begin(self, state: S, settings: Q, noise: Noise, density: Any) -> tuple[Any, Any]: ...

    def step(self, carried: Any, settings: Q, noise: Noise, density: Any) -> Any: ...

    def finish(self, carried: Any, kept: Any, settings: Q, noise: Noise) -> tuple[S, Statistics]: ...


def num_steps_of(settings: Any) -> int:
    """Return the number of steps of an iteration.

    Raises:
        ValueError: for settings without such an entry.
    """
    if not hasattr(settings, "num_steps"):
        raise ValueError(
            f"The settings {type(settings).__name__} have no entry num_steps, the number of times that step is called: "
            "take StepSize, or add num_steps: int = 1."
        )
    return int(settings.num_steps)


def with_step_sizes(settings: Any, energy: Tensor) -> Any:
    """Return settings with the step size, if any, as a tensor ``(chains,)``, in dtype and on device of energies."""
    if not hasattr(settings, "step_size"):
        return settings
    step_size = torch.as_tensor(settings.step_size, dtype=energy.dtype, device=energy.device)
    return settings._replace(step_size=step_size.expand(energy.shape))


class Unchanged:
    """Check that a function changes no tensor of a state in place, by the version counters of torch."""

    def __init__(self, state: Any) -> None:
        self._tensors = [x for x in optree.tree_leaves(state) if isinstance(x, Tensor) and not x.is_inference()]
        self._versions = [x._version for x in self._tensors]

    def check(self, transition: object, function: str) -> None:
        """Raise ValueError if a tensor was changed since the state was noted."""
        if [x._version for x in self._tensors] != self._versions:
            raise ValueError(
                f"{type(transition).__name__}.{function} changes a tensor of the state in place, as `x += y` does, "
                "expected new tensors: x = x + y."
            )


def check_returns(
    transition: object,
    function: str,
    value: Any,
    expected: str,
    like: Any = None,
    *,
    unchanged: Unchanged | None = None,
) -> None:
    """Raise an error unless a function of a transition returns a pair, or a tree of the same kind as another.

    Args:
        transition: the transition, for the message.
        function: name of the function.
        value: what it returned.
        expected: what it should return, in words.
        like: a tree of the expected kind; None for a pair.
        unchanged: the state, which the function must not have changed in place.

    Raises:
        ValueError: if it returns something else; the message names the function.
    """
    if unchanged is not None:
        unchanged.check(transition, function)
    fits = type(value) is tuple and len(value) == 2 if like is None else type(value) is type(like)
    if not fits:
        raise ValueError(
            f"{type(transition).__name__}.{function} returned a {type(value).__name__}, expected {expected}."
        )


# ---- helpers for tensors with a leading chain dimension ---------------------------------------------------------


def per_chain(value: Tensor | float, like: Tensor) -> Tensor | float:
    """Reshape a value for each chain (or one for all) such that it broadcasts against a block."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.reshape(-1, *[1] * (like.dim() - 1))


def choose(accepted: Tensor, new: Any, old: Any) -> Any:
    """Select the new value of each chain that accepted, else the old one, in trees of tensors."""
    return optree.tree_map(
        lambda here, there: torch.where(accepted.reshape(-1, *[1] * (here.dim() - 1)), here, there), new, old
    )


def in_rows(tree: Any) -> Any:
    """Return a tree with all tensors contiguous in memory.

    Rounding in matrix libraries depends on the memory layout. Without this, draws would differ between a run and one
    resumed from a checkpoint.
    """
    return of_tensors(Tensor.contiguous, tree)


def unbound(tree: Any, count: int) -> list[Any]:
    """Split a tree of tensors along their first dimension into a list of trees; other leaves are in each of them."""
    leaves, structure = optree.tree_flatten(tree)
    columns = [leaf.unbind(0) if isinstance(leaf, Tensor) else [leaf] * count for leaf in leaves]
    return [structure.unflatten(row) for row in zip(*columns, strict=True)] if columns else [tree] * count


def normal_like(tensor: Tensor, random: torch.Generator | None = None) -> Tensor:
    """Draw standard normal numbers of the shape, dtype and device of a tensor."""
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=random)


def uniform_like(tensor: Tensor, random: torch.Generator | None = None) -> Tensor:
    """Draw uniform numbers in [0, 1) of the shape, dtype and device of a tensor."""
    return torch.rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=random)


def coordinates(state: ChainState) -> Tensor:
    """Return all coordinates of each chain, ``(chains, coordinates)``."""
    # Sorted, since the order of a state's blocks after a transition differs from that of an initial or restored state.
    return torch.cat([state.position[block].flatten(1) for block in sorted(state.position)], 1)
