"""Trajectories in native code: the steps that torch makes; and what happens without. Draws: `test_conformance.py`."""

import pickle

import optree
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.compiled.native import compiler, operators
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, OHMC
from pyro_manifold.infer.mcmc.mechanics import Metric
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code

pytestmark = native_code
FIXED = {"step_size": 0.1, "num_steps": 7, "adapt_step_size": False, "adapt_mass_matrix": False}


def everything():
    """Matrices of two shapes, a direction, a dense and a diagonal group, a plate."""
    pyro.sample("U", StiefelUniform(5, 2))
    V = pyro.sample("V", StiefelUniform(3, 3))
    direction = pyro.sample("direction", dist.ProjectedNormal(torch.tensor([2.0, 0.0, 1.0])))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    pyro.sample("a", dist.Normal(0.0, scale).expand([2]).to_event(1))
    with pyro.plate("rows", 4):
        W = pyro.sample("W", StiefelUniform(4, 2))
    pyro.factor(
        "density", 3 * V[0, 0] + (W[..., 0, 0] * direction[0]).sum() - torch.logdet(2 * torch.eye(3) + V @ V.mT)
    )


def concentrated():
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("density", 4 * U[0, 0] + 2 * U[1, 1])


def transition_of(kernel, chains, *args):
    run = kernel.prepare(chains, 0, None, *args)
    transition = run.transitions[-1]
    inputs = run.state, run.tuning.settings(1), transition.transition.noise(run.state, run.random)
    return run, transition, inputs


def one_iteration(transition, state, settings, noise):
    """State and statistics, from random numbers that no other call overwrites."""
    settings = transition.transition.prepared(settings, state)
    noise = optree.tree_map(torch.Tensor.clone, noise)
    return transition.with_noise(state, settings, noise)


def leaves(tree):
    return optree.tree_leaves(tree)


def natively(run, transition):
    run.policy.make(run.state)
    assert transition.graph.backend == "native"


@pytest.mark.parametrize(
    ("kernel", "chains"), [pytest.param(*each, marks=pytest.mark.long) for each in ((GHMC, 16), (OHMC, 1), (OHMC, 5))]
)
def test_a_trajectory_agrees_with_its_steps(kernel, chains):
    options = {**FIXED, "full_mass": [("a",)]}
    run, transition, inputs = transition_of(kernel(everything, **options), chains)
    expected = one_iteration(transition, *inputs)
    natively(run, transition)
    for found, there in zip(leaves(one_iteration(transition, *inputs)), leaves(expected), strict=True):
        torch.testing.assert_close(found, there, rtol=1e-10, atol=1e-10)


def test_a_trajectory_in_float32():
    torch.set_default_dtype(torch.float32)
    run, transition, inputs = transition_of(OHMC(concentrated, **FIXED), 5)
    expected = one_iteration(transition, *inputs)
    natively(run, transition)
    for found, there in zip(leaves(one_iteration(transition, *inputs)), leaves(expected), strict=True):
        assert found.dtype == there.dtype != torch.float64
        torch.testing.assert_close(found, there, rtol=1e-4, atol=1e-4)


def test_masses_and_step_sizes_of_each_chain():
    run, transition, inputs = transition_of(OHMC(concentrated, **FIXED), 5)
    state, settings, noise = inputs
    lighter = torch.linspace(0.5, 2, 5)[:, None]
    metrics = {
        block: Metric(metric.inverse_mass * lighter, metric.mass_factor * lighter.rsqrt())
        for block, metric in settings.metrics.items()
    }
    inputs = state, settings._replace(step_size=torch.linspace(-0.1, 0.2, 5), metrics=metrics), noise
    expected = one_iteration(transition, *inputs)
    natively(run, transition)
    for found, there in zip(leaves(one_iteration(transition, *inputs)), leaves(expected), strict=True):
        torch.testing.assert_close(found, there, rtol=1e-10, atol=1e-10)


def test_chains_that_diverge_are_seen_and_stay():
    run, transition, inputs = transition_of(OHMC(lambda: pyro.sample("x", dist.Normal(0.0, 1e-3)), **FIXED), 3)
    state, settings, noise = inputs
    inputs = state, settings._replace(step_size=torch.tensor([1e-4, 1e30, torch.nan])), noise
    expected = one_iteration(transition, *inputs)
    natively(run, transition)
    found = one_iteration(transition, *inputs)
    for here, there in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(here, there, equal_nan=True)
    _, statistics = found
    assert statistics["diverging"].tolist() == [False, True, True]
    assert statistics["accepted"].tolist()[1:] == [False, False]


def test_a_kernel_with_native_code_can_be_pickled(monkeypatch):
    make_native_code_at_once(monkeypatch)
    kernel = OHMC(_picklable, **FIXED)
    kernel.run = kernel.prepare(2, 0, None)
    for _ in range(40):
        kernel.run.advance()
    copy = pickle.loads(pickle.dumps(kernel))
    assert copy.run.code.graphs["trajectory"].backend == "native"
    assert torch.equal(copy.run.advance()["U"], kernel.run.advance()["U"])


def _picklable():
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("density", 4 * U[0, 0])


class TestWithoutNativeCode:
    """What there is without it goes on, and a sentence says why."""

    def check_fallback(self, reason):
        run, transition, _ = transition_of(OHMC(concentrated, **FIXED), 3)
        with pytest.warns(UserWarning, match=reason):
            run.policy.make(run.state)
        assert transition.graph.backend == "steps"
        run.advance()

    def test_an_operator_that_is_not_in_the_table(self, monkeypatch):
        monkeypatch.delitem(operators.OPERATORS, "cat")
        self.check_fallback("No native code .* the operator cat")

    def test_no_compiler(self, monkeypatch):
        monkeypatch.setattr(compiler.shutil, "which", lambda _: None)
        compiler.path_of_compiler.cache_clear()
        compiler._signature.cache_clear()
        try:
            self.check_fallback("there is no C compiler")
        finally:
            compiler.path_of_compiler.cache_clear()

    def test_a_wrong_result(self, monkeypatch):
        wrong = operators.Operator(
            lambda *arguments, **options: operators.mapped(arguments[1], "{0} + {1}", *arguments[2:])
        )
        monkeypatch.setitem(operators.OPERATORS, "sub", wrong)
        self.check_fallback("instead of .* gives .* in native code")

    def test_switched_off(self, monkeypatch):
        monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
        run, transition, _ = transition_of(OHMC(concentrated, **FIXED), 3)
        run.policy.make(run.state)
        assert transition.graph.backend == "steps"

    @pytest.mark.parametrize(
        ("planned", "switches_at"),
        [pytest.param(0, range(200, 800), marks=pytest.mark.long), (60, range(0)), (5000, range(2, 3))],
    )
    def test_short_runs_compile_nothing(self, planned, switches_at):
        """Of unknown length until they have cost as much; where the length is known, long ones at once."""
        run, transition, _ = transition_of(OHMC(concentrated, **FIXED), 3)
        run.policy.planned = planned
        switched = 0
        for iteration in range(1, 1 + (planned if 0 < planned < 100 else 800)):
            run.advance()
            if transition.graph.backend == "native":
                switched = iteration
                break
        assert switched in switches_at or not (switched or switches_at)
