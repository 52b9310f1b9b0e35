"""States of warm-ups, densities and forms, and states that do not fit; of all kernels: `test_conformance.py`."""

import copy

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, OHMC
from tests.infer.mcmc.compilers import compiled_code
from tests.infer.mcmc.test_conformance import advance, is_plain, is_same_state, same
from tests.infer.models import concentrated

WARMUP = 170  # masses are new after 25, 63 and 120; lengths are tried from 63 on, and chosen after 88 and 113
CHAINS = 8  # enough for lengths to be chosen that often


def square():
    """Both signs of the determinant, and a group of sites with a dense mass."""
    Q = pyro.sample("Q", StiefelUniform(3, 3))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("pull", 2 * Q[0, 0] + w[0] * Q[1, 1] + 0.5 * torch.linalg.det(Q))


def mixture():
    """The component of each datum is summed out."""
    U = pyro.sample("U", StiefelUniform(3, 1))
    with pyro.plate("data", 6):
        z = pyro.sample("z", dist.Categorical(torch.tensor([0.3, 0.7])), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(U[0, 0] + 2.0 * z, 0.5), obs=torch.linspace(-1, 3, 6))


# What a state of OHMC has to hold besides positions; low-rank masses are in `test_low_rank_masses.py`.
CONFIGURATIONS = {
    "masses and lengths": lambda: OHMC(concentrated),
    "dense masses": lambda: OHMC(square, full_mass=True),
    "enumerated sites": lambda: OHMC(mixture),
    "momenta that persist": lambda: OHMC(square, persistence=0.8, num_steps=3, step_size=0.3),
    "a compiled step": lambda: OHMC(concentrated, jit_compile=True),
}


def run_of(name="masses and lengths", *, chains=CHAINS, seed=0, warmup_steps=WARMUP):
    pyro.set_rng_seed(seed)
    return CONFIGURATIONS[name]().prepare(chains, warmup_steps, None)


MOMENTS = (25, 95, 125, WARMUP, WARMUP + 3)


@pytest.mark.parametrize(
    "name",
    [
        "masses and lengths",
        *(pytest.param(name, marks=pytest.mark.long) for name in list(CONFIGURATIONS)[1:-1]),
        pytest.param("a compiled step", marks=[pytest.mark.long, compiled_code]),
    ],
)
def test_a_restored_run_continues_bit_for_bit(name):
    """At the end of a window, inside one, after the last, at the end of warm-up, after it; into one begun elsewhere."""
    run, saved = run_of(name), {}
    for moment in MOMENTS:
        advance(run, moment - run.iteration)
        saved[moment] = run.state_dict()
        assert is_plain(saved[moment])
    expected = advance(run, 20)
    other = run_of(name, seed=1)
    for moment, state in saved.items():
        other.load_state_dict(state)
        assert other.iteration == moment
        if moment == MOMENTS[-1]:
            assert same(advance(other, 20), expected)
        else:
            advance(other, MOMENTS[-1] - moment)
            assert same(advance(other, 20), expected), moment


def test_a_short_warm_up_is_restored_too():
    """Its last window has two iterations, after which the step size is settled by what the search had found."""
    run, other = run_of(warmup_steps=25), run_of(seed=1, warmup_steps=25)
    advance(run, 24)
    other.load_state_dict(run.state_dict())
    assert same(advance(run, 10), advance(other, 10))


def test_nothing_else_in_the_process_changes_the_draws():
    found = []
    for disturbed in (False, True):
        run = run_of()
        if disturbed:
            torch.rand(7)
        advance(run, 5)
        if disturbed:
            pyro.set_rng_seed(99)
        found.append(advance(run, 5))
    assert same(*found)


def test_what_does_not_fit_is_named():
    saved = run_of().state_dict()
    for other, words in (
        (run_of(chains=4), "run has chains=8, this one chains=4"),
        (GHMC(square).prepare(CHAINS, WARMUP, None), "run has kernel='OHMC', this one kernel='GHMC'"),
        (
            OHMC(concentrated, persistence=0.5).prepare(CHAINS, WARMUP, None),
            "persistence=0.0, this one persistence=0.5",
        ),
        (OHMC(concentrated).prepare(CHAINS, 100, None), "run has warmup_steps=170, this one warmup_steps=100"),
        (
            OHMC(concentrated).prepare(CHAINS, WARMUP, None, 5, 2),
            r"'U' was float64 \(4, 2\) on Stiefel\(\), and is .*\(5, 2\)",
        ),
        (
            OHMC(lambda: concentrated(pull=5.0)).prepare(CHAINS, WARMUP, None),
            r"another density \(at reference point 0, the log density was .* of the same model and data",
        ),
    ):
        before = other.state_dict()
        with pytest.raises(ValueError, match=words):
            other.load_state_dict(saved)
        assert is_same_state(other.state_dict(), before), "nothing is half loaded"
    run = run_of()
    advance(run, 3)
    expected = run.state_dict()
    for broken, words in (
        ({name: value for name, value in saved.items() if name != "random"}, r"lacks \['random'\]"),
        ({**saved, "iteration": "7"}, "'Run.iteration' is '7', expected int"),
        ({**saved, "tuning": {}}, "of WarmUp lacks"),
        ({**saved, "random": torch.zeros(3)}, "'random' is torch.float64"),
        ({**saved, "state": None}, "of Run.state is None, expected a dictionary"),
        ({**saved, "forms": {}}, "of the run's graphs lacks"),
        ({**saved, "reference": {}}, r"of the reference points lacks \['manifolds', 'position', 'values'\]"),
        (
            {**saved, "reference": {**saved["reference"], "values": {"a": 1}}},
            "The saved values of the reference points",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            run.load_state_dict(broken)
        assert is_same_state(run.state_dict(), expected), "nothing is half loaded"


@compiled_code
@pytest.mark.long
def test_a_backend_that_is_unavailable_is_reported(monkeypatch):
    run = run_of("a compiled step")
    saved = run.state_dict()
    assert saved["forms"] == {"density": "traced", "step": "compiled", "trajectory": "steps"}

    def fail(*args, **kwargs):
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        other = run_of("a compiled step")
    with pytest.warns(UserWarning, match="The saved run had its step compiled, which is not possible here"):
        other.load_state_dict(saved)


def test_a_run_whose_trace_was_dropped_continues_without():
    run = run_of()
    run.problem.batched.graph.use_reference()
    other = run_of()
    other.load_state_dict(run.state_dict())
    assert other.problem.batched.graph.backend == "loop"
    assert same(advance(run, 3), advance(other, 3))


@pytest.mark.parametrize(
    "options",
    [
        {"step_size": 2, "trajectory_length": 1},
        pytest.param({"step_size": 2, "max_stepsize": 1}, marks=pytest.mark.long),
        pytest.param({"step_size": np.float32(0.5), "num_steps": 2}, marks=pytest.mark.long),
        {"trajectory_length": np.float32(1.5), "max_stepsize": np.float64(0.5)},
    ],
)
def test_numbers_of_any_kind_are_saved(options):
    """A step size that was an integer once came back as zero."""
    run, other = (OHMC(concentrated, **options).prepare(2, 20, None) for _ in range(2))
    advance(run, 30)
    saved = run.state_dict()
    assert is_plain(saved)
    other.load_state_dict(saved)
    assert same(advance(run, 3), advance(other, 3))


def test_looking_at_a_copy_changes_no_other_draws():
    kernel = OHMC(concentrated)
    kernel.setup(5)
    before = torch.get_rng_state()
    copy.deepcopy(kernel)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_interrupt_inside_an_iteration_leaves_the_run_where_it_was():
    run = run_of("dense masses")
    advance(run, 5)
    before = run.state_dict()

    def interrupted(*_):
        raise KeyboardInterrupt

    run.transitions.append(interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.advance()
    after = run.state_dict()
    for entry in ("iteration", "state"):
        assert is_same_state(after[entry], before[entry])


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("iteration",), -1, "'iteration' is -1, expected at least 0"),
        (
            ("tuning", "adapters", "step_sizes", "rule", "value"),
            float("nan"),
            "'DualAveragingStepSize.value' is nan, expected a finite number",
        ),
        (("tuning", "adapters", "lengths", "choice", "_window", "jumps"), None, "of the jumps of lengths is None"),
        (("forms", "density"), None, "form of the density is None"),
        (
            ("state", "gradient", "('U',)"),
            torch.zeros((CHAINS, 4, 2), dtype=torch.float64),
            "where chain 0 is, the gradient of 'U' differs by up to",
        ),
        (
            ("state", "position", "('U',)"),
            torch.full((CHAINS, 4, 2), torch.nan, dtype=torch.float64),
            r"where chain 0 is, the log density was .* and is nan\)",
        ),
    ],
)
def test_damage_is_refused_in_a_sentence(path, value, words):
    run = run_of()
    saved = run.state_dict()
    part = saved
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    expected = run.state_dict()
    with pytest.raises(ValueError, match=words):
        run.load_state_dict(saved)
    assert is_same_state(run.state_dict(), expected)
