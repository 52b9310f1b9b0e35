"""Kernels of one pure transition: their step size, and torch.compile; `test_conformance.py` has all else."""

from typing import NamedTuple

import pyro
import pytest
import torch

from pyro_manifold.infer import MCMC
from pyro_manifold.infer.mcmc.transitions import (
    AdaptedStepSize,
    Executable,
    Fixed,
    Noise,
    PositionState,
    StepSize,
    composition_of,
)
from pyro_manifold.manifolds import Euclidean
from tests.infer.mcmc.compilers import native_code
from tests.infer.mcmc.random_walk import RandomWalk, RandomWalkTransition
from tests.infer.models import concentrated


@pytest.mark.parametrize(("first", "target"), [(30.0, 0.234), pytest.param(1e-3, 0.574, marks=pytest.mark.long)])
def test_the_step_size_finds_its_acceptance_probability(first, target):
    run = RandomWalk(concentrated, step_size=first, target=target).prepare(32, 300, None)
    rates = []
    for _ in range(600):
        run.advance()
        if not run.warming_up:
            rates.append(run.statistics["acceptance_rate"].mean())
            assert (run.statistics["step_size"] == run.tuning.step_size).all()
    assert abs(float(torch.stack(rates).mean()) - target) < 0.1


class Proposed(RandomWalkTransition):
    """The same with its noise in the carried tree."""

    def begin(self, state, settings, noise, density):
        return (state, noise.normal), state

    def step(self, carried, settings, noise, density):
        state, normal = carried
        return super().step(state, settings, Noise(normal), density), normal

    def finish(self, carried, state, settings, noise):
        return super().finish(carried[0], state, settings, noise)


class Compiled(RandomWalk):
    transition = Proposed

    def compose(self, problem, warmup_steps):
        manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
        walk = self.transition(manifolds, 1.0)
        return composition_of(
            problem, Executable(walk, problem.density), Fixed(StepSize(0.1)), compile_options={"backend": "eager"}
        )


def positions(kernel):
    pyro.set_rng_seed(0)
    run = kernel(concentrated).prepare(3, 0, None)
    return run, [run.advance()["U"].clone() for _ in range(5)]


def test_steps_are_compiled_on_request():
    compiled, found = positions(Compiled)
    _, expected = positions(RandomWalk)
    assert compiled.code.graphs["step"].backend == "compiled"
    torch.testing.assert_close(found, expected)


def test_a_step_that_uses_noise_is_not_compiled(monkeypatch):
    monkeypatch.setattr(Compiled, "transition", RandomWalkTransition)
    with pytest.warns(UserWarning, match="no effect"):
        run, _ = positions(Compiled)
    assert run.code.graphs["step"].backend == "eager"


class Count(NamedTuple):
    num_steps: int = 1


class Unscaled(RandomWalkTransition):
    """A transition whose settings have no step size."""

    def prepared(self, settings, state):
        return settings

    def step(self, state, settings, noise, density):
        return super().step(state, StepSize(0.3), noise, density)


class WithoutStepSize(RandomWalk):
    def compose(self, problem, warmup_steps):
        manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
        return composition_of(problem, Executable(Unscaled(manifolds, 1.0), problem.density), Fixed(Count()))


@native_code
def test_settings_need_no_step_size():
    run, eager = positions(WithoutStepSize)
    assert "step_size" not in run.statistics
    pyro.set_rng_seed(0)
    run = WithoutStepSize(concentrated).prepare(3, 0, None)
    run.policy.planned = 5
    run.policy.make(run.state)
    assert run.code.graphs["trajectory"].backend == "native"
    torch.testing.assert_close([run.advance()["U"].clone() for _ in range(5)], eager)
    assert set(run.statistics) >= {"n_steps", "lp"}


class WithoutAcceptance(RandomWalkTransition):
    """The same without the statistic that step sizes are adapted to."""

    def finish(self, proposal, state, settings, noise):
        state, statistics = super().finish(proposal, state, settings, noise)
        return state, {"lp": statistics["lp"]}


class AdaptedWithoutAcceptance(RandomWalk):
    def compose(self, problem, warmup_steps):
        manifolds = {block: problem.manifolds.get(block, Euclidean()) for block in problem.position}
        executable = Executable(WithoutAcceptance(manifolds, 1.0), problem.density)
        return composition_of(problem, executable, AdaptedStepSize(0.1, 0.3))


def test_adaptation_without_its_statistic_is_one_sentence():
    run = AdaptedWithoutAcceptance(concentrated).prepare(2, 5, None)
    with pytest.raises(ValueError, match=r"^AdaptedStepSize needs the statistic 'acceptance_rate'.*'lp'.*use Fixed\.$"):
        run.advance()


class Walk(NamedTuple):
    """A pair of trees that is no tuple."""

    carried: object
    kept: object


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [
        ("begin", lambda state, *_: Walk(state, state), "begin returned a Walk, expected a tuple of two trees"),
        ("begin", lambda state, *_: state, "begin returned a PositionState, expected a tuple of two trees"),
        ("step", lambda state, *_: state._asdict(), "step returned a dict, expected a PositionState, as begin does"),
        ("finish", lambda end, *_: end, "finish returned a PositionState, expected a tuple of the next state and"),
        ("finish", lambda end, *_: (end.position, {}), "finish returned a dict, expected a PositionState as the next"),
    ],
)
def test_what_a_function_returns_is_checked(monkeypatch, function, wrong, message):
    monkeypatch.setattr(RandomWalkTransition, function, lambda self, *arguments: wrong(*arguments))
    run = RandomWalk(concentrated).prepare(2, 0, None)
    with pytest.raises(ValueError, match=f"RandomWalkTransition.{message}"):
        run.advance()


def test_settings_without_a_number_of_steps_are_named():
    class Size(NamedTuple):
        step_size: float = 0.1

    class Unnumbered(RandomWalk):
        def compose(self, problem, warmup_steps):
            walk = RandomWalkTransition(dict.fromkeys(problem.position, Euclidean()), 1.0)
            return composition_of(problem, Executable(walk, problem.density), Fixed(Size()))

    with pytest.raises(ValueError, match="The settings Size have no entry num_steps"):
        Unnumbered(concentrated).prepare(2, 0, None).advance()


@pytest.mark.filterwarnings("ignore:.*moved in fewer than")
def test_draws_off_their_manifold_are_reported(monkeypatch):
    def straight(self, state, settings, noise, density):
        moved = {block: x + 0.01 * noise.normal[block] for block, x in state.position.items()}
        return PositionState(moved, *density(moved))

    monkeypatch.setattr(RandomWalkTransition, "step", straight)
    mcmc = MCMC(RandomWalk(concentrated), 20, 0, disable_progbar=True)
    with pytest.warns(UserWarning, match="off their manifold by up to .* must end on the manifold"):
        mcmc.run()
