"""Every kernel of `kernels.py`: distribution, saved states, stored runs, native code, dtypes, chains, bad input."""

import contextlib
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from problems.monte_carlo import standard_error
from pyro_manifold.diagnostics import convergence
from pyro_manifold.distributions import MatrixLangevin, SpecialOrthogonalUniform, StiefelUniform
from pyro_manifold.infer import MCMC, MSD, OHMC, SGLD, GeodesicSlice, Store
from pyro_manifold.infer.mcmc.sgmcmc import StochasticSteps
from pyro_manifold.infer.mcmc.transitions import Executable
from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE, make_native_code_at_once, native_code
from tests.infer.mcmc.kernels import CONCENTRATION, DATA, KERNELS, NOISE, ROWS, OnParts, flat, matrix, over

MOMENTS = (1, 25, 60, 80, 85)
WARMUP = 80
ALL = pytest.mark.parametrize("name", KERNELS)
NATIVE = {"where": lambda case: case.native}
MINIBATCHES = {"where": lambda case: case.minibatches}
SHORT_RUNS = pytest.mark.filterwarnings("ignore:The momenta of .* are at a temperature")


def run_of(name, *, chains=4, seed=0, warmup_steps=WARMUP, minibatches=False):
    case = KERNELS[name]
    pyro.set_rng_seed(seed)
    return case.make_short(OnParts(case.model) if minibatches else case.model).prepare(chains, warmup_steps, None)


def advance(run, iterations):
    """All draws and statistics of the next iterations."""
    found = []
    for _ in range(iterations):
        sites = run.advance()
        found.append({**{name: value.clone() for name, value in sites.items()}, **run.statistics})
    return found


def same(found, expected):
    """Draws and statistics are the same, bit for bit."""
    pairs = zip(found, expected, strict=True)
    return all(a.keys() == b.keys() and all(_is_equal(name, a[name], b[name]) for name in a) for a, b in pairs)


def _is_equal(name, a, b):
    if name == "orthogonality_error":  # of as many iterations at once as are made in one call, which may be others
        return torch.allclose(a, b, rtol=0, atol=100 * torch.finfo(a.dtype).eps)
    return torch.equal(a, b)


def sampled(name, model=None, *args, chains=3, draws=40, warmup_steps=30, seed=1, short=True, options=None, **more):
    """A run of `MCMC`, on minibatches where the kernel takes them."""
    case = KERNELS[name]
    model = model or (OnParts(case.model) if case.minibatches else case.model)
    pyro.set_rng_seed(seed)
    kernel = (case.make_short if short else case.make)(model, **(options or {}))
    mcmc = MCMC(kernel, draws, warmup_steps, num_chains=chains, disable_progbar=True, **more)
    mcmc.run(*args)
    return mcmc


def contents(mcmc):
    return [mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)]


def assert_near(draws, truth, allowed):
    """The mean of draws is the truth, within the bias that a step may have and 4 standard errors."""
    error = abs(float(draws.mean()) - truth)
    assert error < allowed + 4 * standard_error(draws), (float(draws.mean()), truth, standard_error(draws))


# ---- distribution -----------------------------------------------------------------------------------------------


def check_distribution(name, minibatches):
    """Mean and variance of a conjugate posterior, and the mean of an orthonormal matrix."""
    case = KERNELS[name]
    # Chains that share their batches share the noise of these, and are not independent.
    kernel = case.make(OnParts(case.model), per_chain_minibatches=True) if minibatches else case.make(case.model)
    draws, chains = 150, 48
    mcmc = MCMC(kernel, draws * case.thinning, 150, num_chains=chains, thinning=case.thinning, disable_progbar=True)
    mcmc.run()
    found = {site: value.double() for site, value in mcmc.get_samples(group_by_chain=True).items()}
    precision = 1.0 + ROWS / NOISE**2
    mean, variance = DATA.sum(0) / NOISE**2 / precision, 1.0 / precision
    for k in range(2):
        x = found["mean"][..., k]
        assert_near(x, float(mean[k]), 0.1 * case.bias * variance**0.5)
        assert_near((x - mean[k]).square() / variance, 1.0, 2 * case.bias)
    if case.model is matrix:
        expected = MatrixLangevin(CONCENTRATION).mean  # `tests/distributions` have its proof
        for i in range(3):
            for j in range(2):
                assert_near(found["U"][..., i, j], float(expected[i, j]), 0.2 * case.bias)


@over("GHMC")
def test_the_distribution_of_all_data(name):
    check_distribution(name, minibatches=False)


@over(**MINIBATCHES)
@SHORT_RUNS
def test_the_distribution_of_minibatches(name):
    check_distribution(name, minibatches=True)


# ---- states -----------------------------------------------------------------------------------------------------


def is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    return type(value) in (Tensor, int, float, bool, str)


def is_same_state(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(is_same_state(found[key], expected[key]) for key in expected)
    return torch.equal(found, expected) if isinstance(expected, Tensor) else found == expected


def check_saving(name, minibatches):
    """In warm-up, at its end, after it; into a run that began elsewhere."""
    run, saved = run_of(name, minibatches=minibatches), {}
    for moment in MOMENTS:
        advance(run, moment - run.iteration)
        saved[moment] = pickle.loads(pickle.dumps(run.state_dict()))
        assert is_plain(saved[moment])
    expected = advance(run, 8)
    other = run_of(name, seed=1, minibatches=minibatches)
    for moment, state in saved.items():
        other.load_state_dict(state)
        torch.rand(3)  # random numbers of others change nothing
        advance(other, MOMENTS[-1] - moment)
        assert same(advance(other, 8), expected), moment


@over()
def test_a_saved_run_continues_bit_for_bit(name):
    check_saving(name, minibatches=False)


@over("SGNHT", **MINIBATCHES)
def test_a_saved_run_on_minibatches_continues_bit_for_bit(name):
    check_saving(name, minibatches=True)


@native_code
@over("GHMC", **NATIVE)
def test_a_run_with_native_code_continues_bit_for_bit(name):
    """The code belongs to the state: a run that goes on makes it where the first did."""
    run, other = run_of(name, warmup_steps=0), run_of(name, seed=1, warmup_steps=0)
    advance(run, 5)
    run.policy.make(run.state)
    advance(run, 2)
    other.load_state_dict(run.state_dict())
    assert other.code.graphs[KERNELS[name].native].backend == "native"
    assert same(advance(run, 8), advance(other, 8))


@over()
def test_what_is_left_out_would_be_missed(name):
    """Each part of a state matters, where it differs: without it the draws differ."""
    run = run_of(name, warmup_steps=20)
    advance(run, 12)
    saved = run.state_dict()
    expected = advance(run, 13)
    for part in ("state", "tuning", "random"):
        other = run_of(name, seed=1, warmup_steps=20)
        advance(other, 10)
        mine = other.state_dict()[part]
        assert part == "tuning" or not is_same_state(saved[part], mine)
        if (name, part) == ("NNSGHMC", "tuning"):
            continue  # positions to which chains return only if they leave: see test_guard.py
        if not is_same_state(saved[part], mine):
            other.load_state_dict({**saved, part: mine})
            assert not same(advance(other, 13), expected), part


def continue_in_another_process(path):
    """Continue each stored run, which `python -c` asks of a child."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    found = {}
    for name, state in torch.load(path, weights_only=True).items():
        run = run_of(name, seed=7)
        run.load_state_dict(state)
        found[name] = advance(run, 25)
    torch.save(found, path + ".found")


@pytest.mark.long
def test_another_process_continues_bit_for_bit(tmp_path):
    path, saved, expected = str(tmp_path / "states"), {}, {}
    for name in KERNELS:
        run = run_of(name)
        advance(run, 60)
        saved[name], expected[name] = run.state_dict(), advance(run, 25)
    torch.save(saved, path)
    command = f"from tests.infer.mcmc.test_conformance import continue_in_another_process as go; go({path!r})"
    subprocess.run([sys.executable, "-c", command], check=True, cwd=Path(__file__).parents[3], env=os.environ)
    found = torch.load(path + ".found", weights_only=True)
    assert [name for name in KERNELS if not same(found[name], expected[name])] == []


@over("OHMC", "SGLD")
def test_a_kernel_travels_with_its_run(name):
    case = KERNELS[name]
    pyro.set_rng_seed(0)
    kernel = case.make_short(case.model)
    kernel.setup(5)
    for _ in range(7):
        kernel.sample({})
    other = pickle.loads(pickle.dumps(kernel))
    for _ in range(3):
        found, expected = other.sample({}), kernel.sample({})
        assert all(torch.equal(found[site], expected[site]) for site in expected)


# ---- stored runs ------------------------------------------------------------------------------------------------


@over()
@SHORT_RUNS
def test_an_interrupted_run_is_resumed_bit_for_bit(name, tmp_path):
    """In warm-up, then among draws; each time with another seed, of which nothing may be seen."""
    for seed, moment in enumerate((("Warmup", 13), ("Sample", 21), None), 1):

        def stop(iteration, moment=moment):
            if (iteration.stage, iteration.index) == moment:
                raise KeyboardInterrupt

        store = Store(tmp_path, seconds=1e-6, draws=7)
        with contextlib.suppress(KeyboardInterrupt), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Interrupted")
            mcmc = sampled(name, seed=seed, store=store, resume=True, consumers=[stop])
    assert same(contents(mcmc), contents(sampled(name)))


@ALL
def test_settings_by_which_a_run_is_known_are_the_same_in_another_process(name):
    case = KERNELS[name]
    kernel = case.make(case.model, init_strategy=init_to_value(values={}))
    assert [setting for setting, words in kernel.configuration().items() if " at 0x" in words] == []


def in_units_of(unit):
    x = pyro.sample("x", dist.Uniform(0.0, unit))
    pyro.sample("y", dist.Normal(x / unit, 0.2), obs=torch.tensor(0.3).to(x))


# A kernel of each kind of state: with masses, with a metric, without gradients, with a step on minibatches.
@over("OHMC", where=lambda case: case.kernel in (OHMC, MSD, GeodesicSlice, SGLD))
def test_a_run_is_not_resumed_in_another_unit_or_by_another_kernel(name, tmp_path):
    options = {"chains": 2, "draws": 8, "warmup_steps": 6, "store": tmp_path}
    sampled(name, in_units_of, 1.0, **options)
    with pytest.raises(ValueError, match=r"another density \(at reference point 0, the value of 'x' was 0\.\d+ and is"):
        sampled(name, in_units_of, 1000.0, resume=True, **options)
    case = KERNELS[name]
    other = next(other for other, there in KERNELS.items() if there.kernel is not case.kernel)
    with pytest.raises(ValueError, match=r"holds another run: .*the kernel"):
        sampled(other, in_units_of, 1.0, resume=True, **options)
    assert sampled(name, in_units_of, 1.0, resume=True, **options).num_samples == 8


def rotation(prior):
    U = pyro.sample("U", prior)
    pyro.factor("pull", 2 * U[0, 0])


@over("OHMC", where=lambda case: case.kernel in (OHMC, GeodesicSlice, SGLD))
def test_a_run_is_not_resumed_on_another_manifold(name, tmp_path):
    start = init_to_value(values={"U": torch.eye(3)})
    options = {"chains": 2, "draws": 8, "warmup_steps": 6, "store": tmp_path, "options": {"init_strategy": start}}
    sampled(name, rotation, StiefelUniform(3, 3), **options)
    with pytest.raises(ValueError, match=r"the site 'U' was float64 \(3, 3\) on Stiefel\(\), and is float64"):
        sampled(name, rotation, SpecialOrthogonalUniform(3), resume=True, **options)
    assert sampled(name, rotation, StiefelUniform(3, 3), resume=True, **{**options, "draws": 12}).num_samples == 12


@over()
@SHORT_RUNS
def test_a_run_stops_at_its_goal(name, monkeypatch):
    make_native_code_at_once(monkeypatch)
    mcmc = sampled(name, chains=8, draws=20, warmup_steps=60, until={"ess": 100}, thinning=2, short=False)
    assert "with ess ≥ 100" in mcmc.stopped
    draws, fields = contents(mcmc)
    assert fields["lp"].shape == (8, mcmc.num_samples)
    for value in (*draws.values(), fields["lp"]):
        assert min(float(convergence(value)[size].min()) for size in ("ess_bulk", "ess_tail")) >= 100


# ---- native code ------------------------------------------------------------------------------------------------


def check_native(name, monkeypatch, minibatches):
    found = run_of(name, warmup_steps=0, minibatches=minibatches)
    found.policy.make(found.state)
    assert found.code.graphs[KERNELS[name].native].backend == "native"
    native = advance(found, 12)
    make_native_code_at_once(monkeypatch, float("inf"))
    eager = advance(run_of(name, warmup_steps=0, minibatches=minibatches), 12)
    for a, b in zip(native, eager, strict=True):
        for site in b:
            torch.testing.assert_close(a[site], b[site], rtol=1e-8, atol=1e-8)


@native_code
@over("OHMC", **NATIVE)
def test_native_code_makes_the_iterations_of_eager_code(name, monkeypatch):
    check_native(name, monkeypatch, minibatches=False)


@native_code
@over("SGLD", where=lambda case: case.native and case.minibatches)
def test_native_code_of_minibatches_makes_the_iterations_of_eager_code(name, monkeypatch):
    check_native(name, monkeypatch, minibatches=True)


@native_code
@over("OHMC", **NATIVE)
@SHORT_RUNS
def test_iterations_made_together_are_those_made_one_by_one(name, monkeypatch):
    make_native_code_at_once(monkeypatch)
    mcmc = sampled(name, draws=60, warmup_steps=10)
    together, state = contents(mcmc), mcmc.kernel.run.state_dict()["state"]
    for kind in (Executable, StochasticSteps):
        monkeypatch.setattr(kind, "iterations_per_call", lambda self, settings: 1)
    mcmc = sampled(name, draws=60, warmup_steps=10)
    assert same(together, contents(mcmc))
    assert is_same_state(state, mcmc.kernel.run.state_dict()["state"])


# ---- dtypes and chains ------------------------------------------------------------------------------------------


@over("OHMC")
def test_float32(name):
    torch.set_default_dtype(torch.float32)
    case = KERNELS[name]
    run = case.make_short(case.model).prepare(3, 10, None)
    advance(run, 12)
    if case.native and not WITHOUT_NATIVE_CODE:
        run.policy.make(run.state)
        assert run.code.graphs[case.native].backend == "native"
    sites = advance(run, 8)[-1]
    sites = {site: sites[site] for site in run.sites}
    assert {value.dtype for value in sites.values()} == {torch.float32}
    assert all(bool(value.isfinite().all()) for value in sites.values())
    if "U" in sites:
        assert (sites["U"].mT @ sites["U"] - torch.eye(2)).abs().max() < 1e-5


@over("OHMC", "MSD", "GeodesicSlice", "RandomWalk, of the tests", "SGLD", "NNSGHMC")
@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.long), 64])
def test_any_number_of_chains(name, chains):
    run = run_of(name, chains=chains, warmup_steps=2)
    for _ in range(4):
        sites = run.advance()
    assert sites["mean"].shape == (chains, 2)
    assert run.statistics["lp"].shape == (chains,)
    if chains > 1:
        assert len(sites["mean"].unique(dim=0)) == chains


# ---- bad input --------------------------------------------------------------------------------------------------


def nowhere():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("nothing_fits", -torch.inf + x)


BAD = {
    "no model": lambda make: make(None),
    "a number": lambda make: make(3),
    "starts of other sites": lambda make: make(flat).prepare(2, 0, {"other": torch.zeros(2, 2)}),
    "starts of another shape": lambda make: make(flat).prepare(2, 0, {"mean": torch.zeros(2, 3)}),
    "a density that is zero": lambda make: make(nowhere).prepare(2, 0, None),
}


@ALL
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(name, what):
    with pytest.raises(ValueError, match=r"\w") as error:
        BAD[what](KERNELS[name].make)
    assert "\n" not in str(error.value)
