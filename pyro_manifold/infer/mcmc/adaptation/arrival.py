"""Chains that have not arrived where the others are, of which shared adaptation does not learn."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_manifold.diagnostics import named
from pyro_manifold.infer.mcmc.mechanics import State

_COLLAPSED = 1e-2
"""Share of the chosen trajectory length below which the step size has collapsed."""


def left_behind(energy: Tensor, coordinates: int) -> Tensor:
    """Return which chains are so far above the others that there is hardly any probability, ``(chains,)``.

    Energies of draws differ by about the root of the number of coordinates, in a funnel by more; a chain is left if its
    energy is above the median by more than ``coordinates + 50``.
    """
    left = ~(energy - energy.median() <= coordinates + 50)
    return left & ~left.all()  # of energies that are not finite nothing is known


def representatives(left: Tensor) -> Tensor:
    """Return for each chain the chain whose values count: itself, or in place of one that is left another in turn."""
    itself, arrived = torch.arange(len(left), device=left.device), (~left).nonzero().squeeze(1)
    return torch.where(left, arrived[itself % len(arrived)], itself)


def of_chains(state: State, chains: Tensor) -> State:
    """Return the state of the given chains."""
    parts = [
        {block: x[chains] for block, x in part.items()} for part in (state.position, state.momentum, state.gradient)
    ]
    return State(parts[0], parts[1], state.energy[chains], parts[2])


def warn_of_chains_left(energy: Tensor, coordinates: int) -> None:
    """Warn of chains that are left at the end of warm-up."""
    chains = left_behind(energy, coordinates).nonzero().flatten().tolist()
    if not chains:
        return
    below = float(energy[chains].min() - energy.median())
    is_left, whose = ("are", "their") if len(chains) > 1 else ("is", "its")
    warnings.warn(
        f"{named(chains).capitalize()} {is_left} left behind after warm-up, at log densities more than {below:.0f} "
        "below those of the others, where there is hardly any probability: run again with other initial values "
        f"(another seed, init_strategy, or initial_params), or leave {whose} draws out. The others are not affected.",
        stacklevel=2,
    )


def warn_of_collapse(step_size: float, num_steps: int, trajectory_length: float) -> None:
    """Warn if the step size at the end of warm-up allows only a small part of the trajectory length."""
    if num_steps * step_size < _COLLAPSED * trajectory_length:
        warnings.warn(
            f"The step size has collapsed to {step_size:.2g} in warm-up: {num_steps} steps are less than "
            f"{_COLLAPSED:.0%} of the trajectory length of {trajectory_length:.3g}, and the chains hardly move. "
            "Run again with other initial values (another seed, init_strategy, or initial_params), or write scales of "
            "very different size as parameters of their own.",
            stacklevel=2,
        )
