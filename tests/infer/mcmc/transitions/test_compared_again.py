"""Code that is right where chains begin and wrong where they go is found, reported and left."""

import re
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.compiled.native import operators
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT, SMC
from pyro_manifold.infer.mcmc.running import CodeChecks, comparison_schedule
from pyro_manifold.infer.mcmc.transitions import step_graph
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code
from tests.infer.mcmc.kernels import KERNELS
from tests.infer.mcmc.random_walk import RandomWalk
from tests.infer.models import concentrated

pytestmark = native_code
THRESHOLD = 3


@pytest.fixture(autouse=True)
def _native_code_from_the_start(monkeypatch):
    make_native_code_at_once(monkeypatch)


@pytest.fixture
def _broken_exponential(monkeypatch):
    """Right up to the threshold, at which chains begin, and constant beyond it."""
    broken = operators._elementwise(f"v_exp(v_min({{0}}, spread({THRESHOLD})))")
    monkeypatch.setitem(operators.OPERATORS, "exp", operators.Operator(broken, reads_once=True))


def wide():
    """A third of the mass is beyond the threshold; chains begin far below it."""
    x = pyro.sample("x", dist.Normal(0.0, 4.0))
    pyro.factor("bound", -0.01 * x.exp())


def metric(sites):
    return torch.stack([sites["x"] / 2, 0.1 * sites["x"]])


FIXED = {"step_size": 0.5, "num_steps": 3, "adapt_step_size": False, "adapt_mass_matrix": False}
# With steps so long that chains pass the threshold, which those of `kernels.py` are not.
LONG_STEPS = {
    "OHMC": lambda: OHMC(wide, **FIXED),
    "GHMC": lambda: GHMC(wide, persistence=0.5, **FIXED),
    "SGLD": lambda: SGLD(wide, step_size=0.1, num_steps=5),
    "PSGLD": lambda: PSGLD(wide, step_size=0.01, num_steps=5),
    "SGHMC": lambda: SGHMC(wide, step_size=0.2, friction=0.3, num_steps=5),
    "OSGHMC": lambda: OSGHMC(wide, step_size=0.2, friction=0.3, num_steps=5),
    "SGNHT": lambda: SGNHT(wide, step_size=0.2, friction=0.3, num_steps=5),
    "RandomWalk, of the tests": lambda: RandomWalk(wide, step_size=0.7),
    "MSD": lambda: MSD(wide, metric=metric, step_size=0.1, num_steps=3),
    "MSD with a decision": lambda: MSD(wide, metric=metric, step_size=0.1, num_steps=3, metropolis=True),
}


def test_no_kernel_with_native_code_is_left_out():
    native = {case.kernel for case in KERNELS.values() if case.native}
    assert {type(make()) for make in LONG_STEPS.values()} == native


def natively(kernel, warmup_steps=0):
    """A run whose chains are far below the threshold, with native code."""
    pyro.set_rng_seed(0)
    run = kernel.prepare(16, warmup_steps, {"x": torch.full((16,), -4.0)})
    run.policy.make(run.state)
    assert "native" in forms(run)
    return run


def forms(run):
    return {graph.backend for graph in run.code.graphs.values()}


def said_in(run, iterations, at_the_end=True):
    """What is reported of code that is wrong."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(iterations):
            run.advance()
        if at_the_end:
            run.code.at_the_end()
    return [str(warning.message) for warning in caught if " is wrong at " in str(warning.message)]


@pytest.mark.usefixtures("_broken_exponential")
@pytest.mark.parametrize(
    "name", [name if name == "SGLD" else pytest.param(name, marks=pytest.mark.long) for name in LONG_STEPS]
)
def test_a_broken_operator_is_found_where_chains_go(name):
    run = natively(LONG_STEPS[name]())
    (said,) = said_in(run, 300)  # compared three times and at the end, sixteen chains each time
    assert re.match(r"The native code of the (steps|trajectory) is wrong at iteration \d+ \(in sampling\): the ", said)
    assert re.search(r"; the operator exp of ([3-9]|\d\d)\.\d+ gives 20\.08554 in native code and ", said)
    assert "branch" not in said
    assert "PYRO_MANIFOLD_NATIVE=0" in said
    assert "native" not in forms(run)


@pytest.mark.usefixtures("_broken_exponential")
def test_the_warning_counts_the_iterations_that_may_be_wrong(monkeypatch):
    """Compared at the end alone: all iterations since the code was made, of which there are draws of some."""
    monkeypatch.setattr(comparison_schedule, "code_is_compared", lambda _: False)
    run = natively(SGLD(wide, step_size=0.3, num_steps=5), warmup_steps=20)
    assert not said_in(run, 50, at_the_end=False)
    run.move_to({"x": torch.full((16,), THRESHOLD + 1.0)})
    (said,) = said_in(run, 0)
    assert "at iteration 50 (in sampling)" in said
    assert "The 50 iterations (30 of sampling) since it was built may be wrong" in said


@pytest.mark.long
def test_a_chain_that_is_sent_back_at_the_threshold(monkeypatch):
    """Energies beyond are so high that no chain gets there; the ends of trajectories are compared."""
    high = operators._elementwise(f"(v_exp({{0}}) + spread(1e9) * truth({{0}} > spread({THRESHOLD})))")
    monkeypatch.setitem(operators.OPERATORS, "exp", operators.Operator(high, reads_once=True))
    monkeypatch.setattr(comparison_schedule, "code_is_compared", lambda iteration: iteration % 8 == 1)
    run = natively(OHMC(wide, **FIXED))
    highest, said = [], []
    for _ in range(10):
        said += said_in(run, 60, at_the_end=False)
        highest.append(float(run.sites["x"].max()))
        assert said or highest[-1] <= THRESHOLD
    (said,) = said
    assert "the operator exp of " in said
    assert max(highest) > THRESHOLD


@pytest.mark.long
@pytest.mark.usefixtures("_broken_exponential")
def test_of_particles_too():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x.exp(), 10.0), obs=torch.tensor(90.0))

    pyro.set_rng_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SMC(OHMC(model), 64, num_runs=2, disable_progbar=True).run()
    said = [str(warning.message) for warning in caught]
    assert any("the operator exp of " in sentence for sentence in said), said


def with_a_frozen_branch():
    """A trace takes the side on which chains begin, for NumPy's numbers are constants of a graph."""
    x = pyro.sample("x", dist.Normal(0.0, 4.0))
    beyond = float(x.detach().numpy()) > THRESHOLD
    pyro.factor("bound", -2.0 * x if beyond else -0.01 * x)


def test_a_frozen_branch_is_looked_for_with_the_code():
    """After 64 iterations, not after 256: chains have been moved, so far that they are still on the other side."""
    kernel = SGLD(with_a_frozen_branch, step_size=0.1, num_steps=5)
    run = kernel.prepare(8, 0, {"x": torch.full((8,), -100.0)})
    for _ in range(64):
        run.advance()  # warnings are errors
    run.move_to({"x": torch.full((8,), 100.0)})
    with pytest.warns(UserWarning, match="The traced density differs from the model at iteration 65"):
        run.advance()
    assert run.code.graphs["density"].backend == "loop"


def test_comparisons_change_no_draw(monkeypatch):
    draws = []
    for compared in (True, False):
        if not compared:
            monkeypatch.setattr(CodeChecks, "compare_code", lambda *_, **__: None)
        pyro.set_rng_seed(3)
        mcmc = MCMC(OHMC(concentrated), 150, 50, num_chains=2, disable_progbar=True)
        mcmc.run()
        draws.append(mcmc.get_samples()["U"])
    assert torch.equal(*draws)


@pytest.mark.usefixtures("_broken_exponential")
@pytest.mark.long
def test_a_resumed_run_leaves_the_code_at_the_same_iteration():
    run, other = (natively(SGLD(wide, step_size=0.3, num_steps=5)) for _ in range(2))
    assert not said_in(run, 3, at_the_end=False)
    other.load_state_dict(run.state_dict())
    (said,), (again,) = (said_in(each, 100, at_the_end=False) for each in (run, other))
    assert said == again
    assert torch.equal(run.sites["x"], other.sites["x"])


def test_learned_steps_are_compared_where_coordinates_are(monkeypatch):
    """Of NNSGHMC, with tanh wrong where the networks' inputs were not when it was compared first."""
    from pyro_manifold.contrib.learned_sampler import coordinate_update
    from pyro_manifold.infer import NNSGHMC

    monkeypatch.setattr(coordinate_update, "_LEAST_TO_COMPILE", 1)

    def model():
        pyro.sample("x", dist.Normal(torch.zeros(20), 1.0).to_event(1))

    kernel = NNSGHMC(model, sampler="gaussian", step_size=0.02, num_steps=2)
    run = kernel.prepare(16, 0, None)
    (name,) = (name for name in run.code.graphs if name.startswith("coordinate update"))
    assert run.code.graphs[name].backend == "native"
    for _ in range(3):
        run.advance()
    run.code.compare_code()
    assert run.code.graphs[name].backend == "native"
    right = run.code.graphs[name]._fastest
    monkeypatch.setattr(
        run.code.graphs[name], "_fastest", lambda *values: tuple(1.01 * value for value in right(*values))
    )
    with pytest.warns(UserWarning, match=r"native code of the coordinate update .*, where 'coordinate' is "):
        run.code.compare_code()
    assert run.code.graphs[name].backend == "steps"
    run.advance()


def test_a_compiled_step_is_compared_too(monkeypatch):
    monkeypatch.setattr(step_graph, "compiled", lambda graph, options: graph)
    run = OHMC(concentrated, step_size=0.1, num_steps=2, jit_compile=True).prepare(2, 0, None)
    graph = run.code.graphs["step"]
    assert graph.backend == "compiled"
    monkeypatch.setattr(graph, "_fastest", lambda *values: tuple(1.01 * value for value in graph._function(*values)))
    with pytest.warns(UserWarning, match=r"compiled code of the step is wrong .*jit_compile=False"):
        run.code.compare_code()
    assert graph.backend == "eager"


@pytest.mark.long
def test_the_step_of_a_metric_is_compared_at_the_end(monkeypatch):
    run = MSD(wide, metric=metric, step_size=0.1).prepare(2, 0, None)
    graph = run.code.graphs["step"]
    assert graph.backend == "traced"
    right = graph._fastest
    monkeypatch.setattr(graph, "_fastest", lambda *values: tuple(1.01 * value for value in right(*values)))
    run.code.compare_code()
    assert graph.is_graph
    with pytest.warns(UserWarning, match="traced code of the step is wrong"):
        run.code.at_the_end()
    assert not graph.is_graph


def test_iterations_made_together_end_where_something_is_compared():
    compared = [
        n for n in range(10_000)
        if comparison_schedule.graph_is_compared(n, "sampling") or comparison_schedule.code_is_compared(n)
    ]  # fmt: skip
    assert compared[:6] == [1, 65, 129, 257, 513, 769]
    for done in range(1, compared[-1]):
        assert comparison_schedule.next_comparison(done) == next(n for n in compared if n > done)


@pytest.mark.parametrize(("operators", "every", "chains"), [(0, 8, 4), (1_999, 8, 4), (2_000, 16, 2), (19_000, 64, 1)])
def test_long_models_are_compared_less_often_in_early_warm_up(operators, every, chains):
    compared = [n for n in range(300) if comparison_schedule.graph_is_compared(n, "warm-up", operators)]
    assert compared == [*range(1, 257, every), 257]
    assert comparison_schedule.fewer(4, operators) == chains


def test_when_code_is_compared():
    compared = [n for n in range(10_000) if comparison_schedule.code_is_compared(n)]
    assert compared == [65, 129, 257, 513, 1025, 2049, 4097, 8193]
    assert [comparison_schedule.previous_comparison_of_code(n) for n in compared] == [0, *compared[:-1]]
    assert comparison_schedule.previous_comparison_of_code(100) == 65


# ---- what is no difference, and what is no branch -----------------------------------------------------------------


def probit_network():
    """Two layers, with weights so wide that most probabilities are 0 or 1 to the last bit at draws from the prior."""
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    y = (x[:, 0] * x[:, 1] > 0).to(x)

    def model():
        inner = pyro.sample("inner", dist.Normal(torch.zeros(3, 5), 1.0).to_event(2))
        outer = pyro.sample("outer", dist.Normal(torch.zeros(5), 4.0).to_event(1))
        with pyro.plate("rows", 40):
            pyro.sample("y", dist.Bernoulli(dist.Normal(0.0, 1.0).cdf(torch.tanh(x @ inner) @ outer)), obs=y)

    return model


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_particles_of_a_probit_network_are_silent(dtype):
    torch.set_default_dtype(dtype)
    SMC(OHMC(probit_network()), 256, num_runs=2, disable_progbar=True).run()  # warnings are errors


def test_trajectories_through_a_place_where_a_factorisation_fails():
    """Positive definite but for 1 < x < 2, over which long steps go."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 3.0))
        torch.linalg.cholesky(torch.eye(2) * (x - 1) * (x - 2))
        pyro.factor("density", -torch.linalg.cholesky(torch.eye(2) * (x - 1) * (x - 2)).diagonal().log().sum() / 9)

    fixed = {"step_size": 0.9, "num_steps": 3, "adapt_step_size": False, "adapt_mass_matrix": False}
    run = OHMC(model, **fixed).prepare(32, 0, {"x": torch.full((32,), 0.4)})
    run.policy.make(run.state)  # warnings are errors
    assert run.code.graphs["trajectory"].backend == "native"


def test_a_branch_is_named_and_nothing_else_is():
    def hidden():
        x = pyro.sample("x", dist.Normal(0.0, 30.0))
        if x.tolist() > 20:
            pyro.factor("wall", -x.exp())

    run = OHMC(hidden, step_size=0.1, num_steps=1).prepare(2, 0, {"x": torch.tensor([0.0, 1.0])})
    run.move_to({"x": torch.tensor([1.0, 25.0])})
    with pytest.warns(UserWarning, match="The traced density differs from the model") as caught:
        run.code.compare_density(2)
    (warning,) = caught
    assert "in chain 1, where 'x' is 25; the model has a branch on values of sites" in str(warning.message)
