"""Transitions of all chains, and building blocks of kernels; see ``docs/how_to/extending.md``."""

from pyro_manifold.infer.mcmc.transitions.composition import Composition, Fixed
from pyro_manifold.infer.mcmc.transitions.executable import Executable
from pyro_manifold.infer.mcmc.transitions.metropolis import metropolis
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.pure import AdaptedStepSize, PlainTransition, StepSize, composition_of
from pyro_manifold.infer.mcmc.transitions.states import (
    Block,
    Blocks,
    Noise,
    PlainState,
    Potential,
    Statistics,
    choose,
    normal_like,
    per_chain,
    uniform_like,
)

__all__ = [
    "AdaptedStepSize",
    "Block",
    "Blocks",
    "Composition",
    "Executable",
    "Fixed",
    "Noise",
    "PlainState",
    "PlainTransition",
    "Potential",
    "Problem",
    "Statistics",
    "StepSize",
    "choose",
    "composition_of",
    "metropolis",
    "normal_like",
    "per_chain",
    "uniform_like",
]
