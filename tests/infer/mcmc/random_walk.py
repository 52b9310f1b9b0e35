"""A kernel of another kind in one short file: random-walk Metropolis on Stiefel and unconstrained sites."""

from functools import partial

from pyro_manifold.infer.mcmc import Kernel
from pyro_manifold.infer.mcmc.transitions.composition import Composition, Fixed
from pyro_manifold.infer.mcmc.transitions.metropolis import metropolis
from pyro_manifold.infer.mcmc.transitions.states import PlainState, choose, normal_like, uniform_like
from pyro_manifold.manifolds import Euclidean


class RandomWalk(Kernel):
    """Proposes the end of a geodesic with a normal velocity, which is as likely as the way back."""

    temperature = 1.0

    def __init__(self, model=None, potential_fn=None, step_size=0.1, **options):
        super().__init__(model, potential_fn, **options)
        self._step_size = step_size

    def compose(self, problem, warmup_steps):
        at = partial(state_at, problem.potential)
        manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}

        def transition(state, step_size, random):
            position = state.position
            proposal = at({block: moved(manifolds[block], x, step_size, random) for block, x in position.items()})
            decision = metropolis(
                state.energy / self.temperature, proposal.energy / self.temperature, uniform_like(state.energy, random)
            )
            state = choose(decision.accepted, proposal, state)
            return state, {**decision.statistics, "lp": -state.energy}

        return Composition(at(problem.position), [transition], Fixed(self._step_size), lambda _, position: at(position))


def moved(manifold, x, step_size, random):
    return manifold.exponential(x, step_size * manifold.tangent_projection(x, normal_like(x, random)))


def state_at(potential, position):
    return PlainState(position, *potential(position))
