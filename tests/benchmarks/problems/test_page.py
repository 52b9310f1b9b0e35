"""Problems of the headline benchmark: every peer has the same density, and truths are right."""

import itertools
from functools import cache

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model

from benchmarks.peers import mici_system
from benchmarks.problems.expansions import fastest
from benchmarks.problems.mixtures import entries_near_one_or_two, importance_truths, product_mixture
from benchmarks.problems.network import eigenmodel
from benchmarks.problems.page import PROBLEMS, langevin
from problems.gibbs import matrix_langevin, von_mises_fisher_cosines
from problems.importance import haar
from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from pyro_manifold.distributions import MatrixLangevin
from tests.benchmarks.requirements import needs


def links(nodes=9):
    upper = np.triu(np.random.default_rng(3).random((nodes, nodes)) < 0.3, 1)
    return (upper + upper.T).astype(float)


MIXTURES = [product_mixture(2), product_mixture(3), entries_near_one_or_two(2, 2), entries_near_one_or_two(3, 2)]
CASES = [*MIXTURES, langevin(10, 3), langevin(6, 1), eigenmodel("links of 9", links(), pairs=(0, 7))]
over_problems = pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.name)
with_gradients = [case for case in CASES if case.gradient]  # those that Mici samples
over_gradients = pytest.mark.parametrize("problem", with_gradients, ids=lambda problem: problem.name)
POINTS = 6


def points(problem):
    """Gaussian matrices Z, their polar factors X, and real coordinates v, of one case each."""
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((POINTS, *problem.shape))
    X = np.stack([scipy.linalg.polar(z)[0] for z in Z])
    return Z, X, rng.standard_normal((POINTS, problem.coordinates))


def by_pyro(problem, Z, X, v):
    """The model's density on the manifold: what kernels of this package sample."""
    values = {"X": torch.as_tensor(X)} | ({"v": torch.as_tensor(v)} if problem.coordinates else {})
    return float(poutine.trace(poutine.condition(problem.pyro_model, values)).get_trace().log_prob_sum())


def by_pyro_nuts(problem, Z, X, v):
    """The potential that Pyro's NUTS has in the polar chart, whose coordinates are Z with a normal prior."""
    _, potential, transforms, _ = initialize_model(problem.pyro_model)
    values = {"X": torch.as_tensor(Z)} | ({"v": torch.as_tensor(v)} if problem.coordinates else {})
    assert np.allclose(transforms["X"].inv(torch.as_tensor(Z)), X)
    return -float(potential(values)) + 0.5 * (Z**2).sum()


def by_numpyro(problem, Z, X, v):
    """The polar expansion, or at X itself any other, without the prior of Z."""
    import numpyro

    numpyro.enable_x64()
    Z = Z if fastest(problem.shape[1]) is fastest(1) else X
    values = {"Z": Z} | ({"v": v} if problem.coordinates else {})
    found, trace = numpyro.infer.util.log_density(problem.numpyro_model, (), {}, values)
    assert np.allclose(trace["X"]["value"], X)
    return float(found) + 0.5 * (Z**2).sum()


@cache
def pymc_density(name):
    """Compiled once for all points."""
    (problem,) = (case for case in CASES if case.name == name)
    return problem.pymc_model().compile_logp(mode="FAST_COMPILE")


def by_nutpie(problem, Z, X, v):
    """PyMC's model over the polar expansion, without the prior of Z."""
    values = {"Z": Z} | ({"v": v} if problem.coordinates else {})
    return float(pymc_density(problem.name)(values)) + 0.5 * (Z**2).sum()


def by_mici(problem, Z, X, v):
    from mici.states import ChainState

    system, _ = mici_system(problem)
    state = ChainState(pos=np.concatenate([X.ravel(), v]), mom=None, dir=1)
    assert np.allclose(system.constr(state), 0)
    return -system.neg_log_dens(state)


def langevin_parameter(n, p):
    return haar(np.random.default_rng(n), 1, n, p)[0] * np.linspace(2.0, 1.0, p) * n / 2


def sixteen_modes(n):
    """All 2×2 matrices with entries 1 or 2, for n = 3 over a row of ones."""
    return [np.vstack([np.reshape(top, (2, 2)), np.ones((n - 2, 2))]) for top in itertools.product((1, 2), repeat=4)]


def written_out(problem, X, v):
    """The density by its formula, in NumPy alone."""
    if problem.name.startswith("entries"):
        return np.log(sum(np.exp(-((X - centre) ** 2) / (2 * 0.3**2)) for centre in (1, 2))).sum()
    if problem.name.startswith("mixture"):
        R = np.array([[np.exp(v[0]), v[1]], [0.0, np.exp(v[2])]])
        density = sum(np.exp(-((X @ R - M) ** 2).sum() / (2 * 0.3**2)) for M in sixteen_modes(len(X)))
        # ∏ rᵢᵢ^(n-i), and dR = r₁₁ r₂₂ d log r₁₁ dr₁₂ d log r₂₂
        return np.log(density * R[0, 0] ** (len(X) - 1) * R[1, 1] ** (len(X) - 2) * R[0, 0] * R[1, 1])
    if problem.name.startswith("Langevin"):
        return np.trace(langevin_parameter(*problem.shape).T @ X)
    logits = v[3] + X @ np.diag(v[:3]) @ X.T
    probabilities, observed = 1 / (1 + np.exp(-logits)), links()
    likelihood = np.where(observed > 0, np.log(probabilities), np.log(1 - probabilities))
    return np.triu(likelihood, 1).sum() - (v[:3] ** 2).sum() / (2 * 16**2) - v[3] ** 2 / (2 * 10**2)


NEEDED = {by_numpyro: ("numpyro",), by_mici: ("mici",), by_nutpie: ("pymc",)}


def peers_of(problem):
    """Mici samples problems with a gradient, nutpie those of two columns."""
    small = problem.shape[1] == 2
    return [by_pyro, by_pyro_nuts, by_numpyro] + [by_mici] * (problem.gradient is not None) + [by_nutpie] * small


def marks(peer):
    return [pytest.mark.long, needs(*NEEDED[peer])] if peer in NEEDED else []


@pytest.mark.parametrize(
    ("problem", "peer"),
    [
        pytest.param(problem, peer, id=f"{problem.name}-{peer.__name__}", marks=marks(peer))
        for problem in CASES
        for peer in peers_of(problem)
    ],
)
def test_every_peer_has_the_density_up_to_a_constant(problem, peer):
    Z, X, v = points(problem)
    found = np.array([peer(problem, *point) for point in zip(Z, X, v, strict=True)])
    expected = np.array([written_out(problem, x, w) for x, w in zip(X, v, strict=True)])
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-8, atol=1e-8)


@over_gradients
def test_gradients_for_mici_are_those_of_autograd(problem):
    _, X, v = points(problem)
    for x, w in zip(X, v, strict=True):
        leaves = [torch.tensor(value, requires_grad=True) for value in ((x, w) if problem.coordinates else (x,))]
        expected = torch.autograd.grad(problem.log_density(*leaves, *([None] * (2 - len(leaves))), torch), leaves)
        for found, exact in zip(problem.gradient(x, w), expected, strict=False):
            np.testing.assert_allclose(found, exact.numpy(), rtol=1e-8, atol=1e-8)


@pytest.mark.long
@needs("mici")
@over_gradients
def test_the_jacobian_of_the_constraint_is_its_derivative(problem):
    from mici.states import ChainState

    system, _ = mici_system(problem)
    _, X, v = points(problem)
    rng, h = np.random.default_rng(1), 1e-6
    point = np.concatenate([X[0].ravel(), v[0]])
    direction = rng.standard_normal(len(point))
    ahead, behind = (system.constr(ChainState(pos=point + s * h * direction, mom=None, dir=1)) for s in (1, -1))
    jacobian = system.jacob_constr(ChainState(pos=point, mom=None, dir=1))
    np.testing.assert_allclose(jacobian @ direction, (ahead - behind) / (2 * h), atol=1e-8)


@over_problems
def test_values_are_those_of_each_draw(problem):
    _, X, v = points(problem)
    draws = {"X": X.reshape(2, 3, *problem.shape)} | ({"v": v.reshape(2, 3, -1)} if problem.coordinates else {})
    values = problem.values(draws)
    assert list(values) == list(problem.functionals)
    for name, value in values.items():
        single = [problem.functionals[name](x, w) for x, w in zip(X, v, strict=True)]
        np.testing.assert_allclose(value, np.reshape(single, (2, 3)))


def test_the_eigenmodel_does_not_name_its_eigenvalues():
    """Functionals do not change when columns are exchanged or turned: draws of all chains can be averaged."""
    problem = CASES[-1]
    _, X, v = points(problem)
    order, signs = [2, 0, 1], np.array([1.0, -1.0, -1.0])
    before = problem.values({"X": X[None], "v": v[None]})
    after = problem.values({"X": (X[..., order] * signs)[None], "v": v[None][..., [*order, 3]]})
    for name in before:
        np.testing.assert_allclose(before[name], after[name])


@pytest.mark.long
def test_the_headline_problems_have_truths_for_functionals_that_they_have():
    assert {problem.name for problem in MIXTURES} | {
        f"Langevin V({n},{p})" for n, p in ((10, 3), (50, 5), (200, 10))
    } <= set(PROBLEMS)
    for problem in CASES:
        if not problem.name.startswith("entries"):
            assert set(problem.truths()) <= set(problem.functionals)


def circle_and_mirror(points=4000):
    """O(2) as a grid: rotations, and rotations with the second column turned; the trapezoidal rule is exact."""
    angle = np.linspace(0, 2 * np.pi, points, endpoint=False)
    rotations = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], -1).reshape(-1, 2, 2)
    return np.concatenate([rotations, rotations * [1, -1]])


@pytest.mark.long
def test_the_truth_of_the_mixture_by_quadrature():
    """Four comparisons, a false alarm in 3 of 10,000 streams of the truth's numbers."""
    problem, grid = entries_near_one_or_two(2, 2), circle_and_mirror()
    log_weights = np.array([written_out(problem, X, None) for X in grid])
    weights = scipy.special.softmax(log_weights)
    truths = problem.truths()
    assert list(truths) == ["X[0,0]", "X[0,1]", "X[1,0]", "X[1,1]"]
    for (mean, error), exact in zip(truths.values(), (weights @ grid.reshape(-1, 4)), strict=True):
        assert abs(mean - exact) < STANDARD_ERRORS * error
        assert error < 0.01


def test_importance_sampling_of_a_uniform_density_gives_moments_of_uniform_matrices():
    """E X₁₁² = 1/n, E X₁₁ = 0."""
    functionals = {"first": lambda X, v: X[..., 0, 0], "square": lambda X, v: X[..., 0, 0] ** 2}
    truths = importance_truths(functionals, (5, 2), lambda X: np.zeros(len(X)), draws=200_000)
    for name, exact in (("first", 0.0), ("square", 0.2)):
        mean, error = truths[name]
        assert abs(mean - exact) < STANDARD_ERRORS * error
    # Of equal weights the error is that of a mean: E X₁₁⁴ = 3 / (n (n + 2)).
    assert truths["square"][1] == pytest.approx(((3 / 35 - 1 / 25) / 200_000) ** 0.5, rel=0.02)


@pytest.mark.long
def test_the_truth_of_langevin_by_its_normaliser():
    (problem,) = (case for case in CASES if case.name == "Langevin V(10,3)")  # whose truths are computed once
    mean = MatrixLangevin(torch.as_tensor(langevin_parameter(10, 3))).mean.numpy()
    truths = problem.truths()
    for name, functional in problem.functionals.items():
        found, error = truths[name]
        assert abs(found - functional(mean, None)) < STANDARD_ERRORS * error
        assert error < 0.05


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_cosines_have_the_means_of_bessel_functions(dimension):
    """E t = I_{m/2}(κ) / I_{m/2-1}(κ) on the unit sphere of m dimensions."""
    for kappa in (0.3, 4.0, 200.0):
        cosines = von_mises_fisher_cosines(np.random.default_rng(0), np.full(20_000, kappa), dimension)
        exact = scipy.special.ive(dimension / 2, kappa) / scipy.special.ive(dimension / 2 - 1, kappa)
        assert_mean(torch.as_tensor(cosines), exact)


def test_gibbs_sampling_starts_again_from_its_seed():
    F = np.eye(4, 2)
    first, again, other = (list(matrix_langevin(F, 3, 1, 2, seed=seed))[-1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    np.testing.assert_allclose(first.swapaxes(1, 2) @ first, np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-12)
