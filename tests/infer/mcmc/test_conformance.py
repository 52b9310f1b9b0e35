"""Every kernel of `kernels.py`: its distribution, states that are saved, native code, dtypes, chains, bad input."""

import pickle

import pyro
import pytest
import torch

from problems.monte_carlo import standard_error
from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.infer import MCMC
from pyro_manifold.infer.mcmc.transitions import compilation
from tests.infer.mcmc.kernels import CONCENTRATION, DATA, KERNELS, NOISE, ROWS, OnParts, flat, matrix

MOMENTS = (1, 25, 60, 80, 85)
WARMUP = 80
ALL = pytest.mark.parametrize("name", KERNELS)
WITH_MINIBATCHES = pytest.mark.parametrize("name", [name for name, case in KERNELS.items() if case.minibatches])


def run_of(name, *, chains=4, seed=0, warmup_steps=WARMUP, minibatches=False):
    case = KERNELS[name]
    pyro.set_rng_seed(seed)
    return case.make(OnParts(case.model) if minibatches else case.model).prepare(chains, warmup_steps, None)


def advance(run, iterations):
    return [{name: value.clone() for name, value in run.advance().items()} for _ in range(iterations)]


def same(found, expected):
    pairs = zip(found, expected, strict=True)
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def assert_near(draws, truth, allowed):
    """The mean of draws is the truth, within the bias that a step may have and 4 standard errors."""
    error = abs(float(draws.mean()) - truth)
    assert error < allowed + 4 * standard_error(draws), (float(draws.mean()), truth, standard_error(draws))


# ---- distribution -----------------------------------------------------------------------------------------------


def check_distribution(name, minibatches):
    """Mean and variance of a conjugate posterior, and the mean of an orthonormal matrix."""
    case = KERNELS[name]
    # Chains that share their batches share the noise of these, and are not independent.
    kernel = case.make(OnParts(case.model), own_minibatches=True) if minibatches else case.make(case.model)
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


@ALL
def test_the_distribution_of_all_data(name):
    check_distribution(name, minibatches=False)


@WITH_MINIBATCHES
@pytest.mark.filterwarnings("ignore:The momenta of .* are at a temperature")
def test_the_distribution_of_minibatches(name):
    check_distribution(name, minibatches=True)


# ---- states -----------------------------------------------------------------------------------------------------


def check_saving(name, minibatches):
    """In warm-up, at its end, after it; into a run that began elsewhere."""
    run, saved = run_of(name, minibatches=minibatches), {}
    for moment in MOMENTS:
        advance(run, moment - run.iteration)
        saved[moment] = pickle.loads(pickle.dumps(run.state_dict()))
    expected = advance(run, 8)
    other = run_of(name, seed=1, minibatches=minibatches)
    for moment, state in saved.items():
        other.load_state_dict(state)
        torch.rand(3)  # random numbers of others change nothing
        advance(other, MOMENTS[-1] - moment)
        assert same(advance(other, 8), expected), moment


@ALL
def test_a_saved_run_goes_on_bit_for_bit(name):
    check_saving(name, minibatches=False)


@WITH_MINIBATCHES
def test_a_saved_run_on_minibatches_goes_on_bit_for_bit(name):
    check_saving(name, minibatches=True)


@ALL
def test_a_kernel_travels_with_its_run(name):
    case = KERNELS[name]
    pyro.set_rng_seed(0)
    kernel = case.make(case.model)
    kernel.setup(5)
    for _ in range(7):
        kernel.sample({})
    other = pickle.loads(pickle.dumps(kernel))
    for _ in range(3):
        found, expected = other.sample({}), kernel.sample({})
        assert all(torch.equal(found[site], expected[site]) for site in expected)


# ---- native code ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in KERNELS.items() if case.native])
def test_native_code_makes_the_iterations_of_eager_code(name, monkeypatch):
    found = run_of(name, warmup_steps=0)
    found.compilation.make(found.state)
    assert found._graphs[KERNELS[name].native].form == "native"
    native = advance(found, 12)
    monkeypatch.setattr(compilation, "_OPERATORS_WORTH_MAKING", float("inf"))
    eager = advance(run_of(name, warmup_steps=0), 12)
    for a, b in zip(native, eager, strict=True):
        for site in b:
            torch.testing.assert_close(a[site], b[site], rtol=1e-8, atol=1e-8)


# ---- dtypes and chains ------------------------------------------------------------------------------------------


@ALL
def test_float32(name):
    torch.set_default_dtype(torch.float32)
    case = KERNELS[name]
    run = case.make(case.model).prepare(3, 10, None)
    for _ in range(15):
        sites = run.advance()
    assert {value.dtype for value in sites.values()} == {torch.float32}
    assert all(bool(value.isfinite().all()) for value in sites.values())


@ALL
@pytest.mark.parametrize("chains", [1, 3, 64])
def test_any_number_of_chains(name, chains):
    run = run_of(name, chains=chains, warmup_steps=2)
    for _ in range(4):
        sites = run.advance()
    assert sites["mean"].shape == (chains, 2)
    assert run.statistics["lp"].shape == (chains,)
    if chains > 1:
        assert len(sites["mean"].unique(dim=0)) == chains


# ---- bad input --------------------------------------------------------------------------------------------------


BAD = {
    "no model": lambda make: make(None),
    "a number": lambda make: make(3),
    "starts of other sites": lambda make: make(flat).prepare(2, 0, {"other": torch.zeros(2, 2)}),
    "starts of another shape": lambda make: make(flat).prepare(2, 0, {"mean": torch.zeros(2, 3)}),
}


@ALL
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence(name, what):
    with pytest.raises(ValueError, match=r"\w") as error:
        BAD[what](KERNELS[name].make)
    assert "\n" not in str(error.value)
