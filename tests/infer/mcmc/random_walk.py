"""A Metropolis kernel in one short file: a random walk on Stiefel and unconstrained sites."""

from pyro_manifold.infer.mcmc import Kernel
from pyro_manifold.infer.mcmc.transitions import (
    AdaptedStepSize,
    Executable,
    Fixed,
    PlainTransition,
    PositionState,
    StepSize,
    choose,
    composition_of,
    metropolis,
    per_chain,
)
from pyro_manifold.manifolds import Euclidean


class RandomWalkTransition(PlainTransition):
    """Proposes the end of a geodesic with a normal velocity, which is as likely as the way back."""

    def __init__(self, manifolds, temperature):
        self._manifolds, self._temperature = manifolds, temperature

    def begin(self, state, settings, noise, density):
        return state, state

    def step(self, state, settings, noise, density):
        moved = {}
        for block, x in state.position.items():
            manifold = self._manifolds[block]
            velocity = per_chain(settings.step_size, x) * manifold.tangent_projection(x, noise.normal[block])
            moved[block] = manifold.exponential(x, velocity)
        return PositionState(moved, *density(moved))

    def finish(self, proposal, state, settings, noise):
        decision = metropolis(state.energy / self._temperature, proposal.energy / self._temperature, noise.uniform)
        state = choose(decision.accepted, proposal, state)
        return state, {**decision.statistics, "lp": -state.energy}


class RandomWalk(Kernel):
    """Metropolis with geodesics as proposals; the step size is adapted to a target acceptance probability, if given."""

    temperature = 1.0

    def __init__(self, model=None, potential_fn=None, step_size=0.1, target=None, **options):
        super().__init__(model, potential_fn, **options)
        self._step_size, self._target = step_size, target

    def compose(self, problem, warmup_steps):
        manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
        walk = RandomWalkTransition(manifolds, self.temperature)
        adapted = self._target is not None
        tuning = AdaptedStepSize(self._step_size, self._target) if adapted else Fixed(StepSize(self._step_size))
        return composition_of(problem, Executable(walk, problem.density), tuning)
