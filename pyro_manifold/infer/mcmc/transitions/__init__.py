"""Transitions of all chains, and building blocks of kernels; see ``docs/how_to/extending.md``."""

from pyro_manifold.infer.mcmc.transitions.composition import (
    CompiledCode,
    CompiledPart,
    Composition,
    Fixed,
    Observer,
    Tuning,
    weyl_sequence,
)
from pyro_manifold.infer.mcmc.transitions.executable import Executable
from pyro_manifold.infer.mcmc.transitions.layout import Layout, refuse_manifold
from pyro_manifold.infer.mcmc.transitions.lookahead import BatchedIterations, Lookahead, Together
from pyro_manifold.infer.mcmc.transitions.metropolis import metropolis
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.pure import AdaptedStepSize, PlainTransition, StepSize, composition_of
from pyro_manifold.infer.mcmc.transitions.states import (
    Block,
    Blocks,
    ChainState,
    Noise,
    NotFiniteError,
    PositionState,
    Potential,
    S,
    Statistics,
    choose,
    coordinates,
    in_rows,
    normal_like,
    per_chain,
    unbound,
    uniform_like,
    with_step_sizes,
)
from pyro_manifold.infer.mcmc.transitions.step_graph import Density
from pyro_manifold.infer.mcmc.transitions.trees import of_tensors

__all__ = [
    "AdaptedStepSize",
    "Block",
    "Blocks",
    "CompiledCode",
    "CompiledPart",
    "Composition",
    "Executable",
    "Fixed",
    "Noise",
    "Observer",
    "PlainTransition",
    "PositionState",
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
