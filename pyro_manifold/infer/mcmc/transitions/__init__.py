"""Transitions of all chains, and building blocks of kernels; see ``docs/how_to/extending.md``."""

from pyro_manifold.infer.mcmc.transitions.composition import Composition as Composition
from pyro_manifold.infer.mcmc.transitions.composition import Fixed as Fixed
from pyro_manifold.infer.mcmc.transitions.executable import Executable as Executable
from pyro_manifold.infer.mcmc.transitions.metropolis import metropolis as metropolis
from pyro_manifold.infer.mcmc.transitions.problem import Problem as Problem
from pyro_manifold.infer.mcmc.transitions.pure import AdaptedStepSize as AdaptedStepSize
from pyro_manifold.infer.mcmc.transitions.pure import PlainTransition as PlainTransition
from pyro_manifold.infer.mcmc.transitions.pure import StepSize as StepSize
from pyro_manifold.infer.mcmc.transitions.pure import composition_of as composition_of
from pyro_manifold.infer.mcmc.transitions.states import Block as Block
from pyro_manifold.infer.mcmc.transitions.states import Blocks as Blocks
from pyro_manifold.infer.mcmc.transitions.states import Noise as Noise
from pyro_manifold.infer.mcmc.transitions.states import PlainState as PlainState
from pyro_manifold.infer.mcmc.transitions.states import Potential as Potential
from pyro_manifold.infer.mcmc.transitions.states import Statistics as Statistics
from pyro_manifold.infer.mcmc.transitions.states import choose as choose
from pyro_manifold.infer.mcmc.transitions.states import normal_like as normal_like
from pyro_manifold.infer.mcmc.transitions.states import per_chain as per_chain
from pyro_manifold.infer.mcmc.transitions.states import uniform_like as uniform_like
