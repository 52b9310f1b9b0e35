"""The normaliser of the matrix Langevin distribution against high precision, importance sampling and draws."""

import math

import mpmath
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.autograd import gradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from problems.importance import haar
from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import MatrixLangevin, log_langevin_normaliser, log_sphere_mean, scaled_log_sphere_mean
from pyro_manifold.infer import MCMC, OHMC
from tests.parameters import long_except


def diagonal(n, *singular_values):
    F = torch.zeros(n, len(singular_values))
    F[range(len(singular_values)), range(len(singular_values))] = torch.tensor(singular_values, dtype=F.dtype)
    return F


def series(n, d, e):
    """0F1 of a 2×2 matrix by its series in vector ones (Koev & Edelman 2006; Muirhead 1975), 30 digits."""
    with mpmath.workdps(30):
        a, x, y = mpmath.mpf(n) / 2, mpmath.mpf(d) ** 2 / 4, mpmath.mpf(e) ** 2 / 4
        total, term, k = mpmath.mpf(0), mpmath.mpf(1), 0
        while k < 4 or term > total * mpmath.mpf(10) ** -20:
            term = (x * y) ** k / (mpmath.rf(a, 2 * k) * mpmath.rf(a - 0.5, k) * mpmath.factorial(k))
            term *= mpmath.hyp0f1(a + 2 * k, x + y)
            total, k = total + term, k + 1
        return float(mpmath.log(total))


@pytest.mark.parametrize("m", [1, 2, 3, 7, 50, 200])
def test_mean_over_the_sphere_against_high_precision(m):
    for kappa in (0.0, 1e-3, 1.0, 50.0, 501.0, 3000.0, 1e6):
        with mpmath.workdps(30):
            value = mpmath.log(mpmath.hyp0f1(mpmath.mpf(m) / 2, mpmath.mpf(kappa) ** 2 / 4))
            exact, scaled = float(value), float(value - kappa)
        assert abs(float(log_sphere_mean(torch.tensor(kappa), m)) - exact) <= 1e-13 * max(1.0, exact)
        assert abs(float(scaled_log_sphere_mean(np.array(kappa), m)) - scaled) <= 3e-13 * max(1.0, abs(scaled))


@pytest.mark.parametrize("n", long_except([2, 3, 10, 300], 3, 10))
@pytest.mark.parametrize("d", [(0.0, 0.0), (1e-6, 0.0), (1.0, 0.5), (5.0, 5.0), (60.0, 2.0), (500.0, 500.0)])
def test_two_columns_against_high_precision(n, d):
    exact = series(n, *d)
    rotation = torch.as_tensor(haar(np.random.default_rng(4), 1, n, n)[0])
    found = log_langevin_normaliser(rotation @ diagonal(n, *d))
    assert abs(float(found) - exact) <= 1e-12 * max(1.0, exact)


@pytest.mark.parametrize("d", [(0.0, 0.0), (3.0, 3.0), (40.0, 1e-3), (1e4, 9e3), (1e6, 1e6), (1e9, 0.0)])
def test_two_and_three_rows_at_every_scale(d):
    """Square matrices have both determinants. V(3,2) is SO(3), whose constant is an integral of Bessel functions.

    Source of that: T. Lee 2018, IEEE Trans. Automatic Control 63, equation 13, the third singular value 0.
    """
    total, gap = mpmath.mpf(d[0]) + d[1], mpmath.mpf(d[0]) - d[1]
    with mpmath.workdps(30):
        exact = mpmath.log((bessel(total) + bessel(gap) * mpmath.exp(gap - total)) / 2) + total
        assert abs(float(log_langevin_normaliser(diagonal(2, *d))) - exact) <= 1e-12 * max(1.0, float(exact))
        ends = [0, *[mpmath.mpf(10) ** k / (total + 1) for k in range(-1, 3)], 2]

        def integrand(v):  # v = 1 - u
            decay = mpmath.exp((gap * v - total * v) / 2)
            return bessel(gap * v / 2) * bessel(total * (2 - v) / 2) * decay / 2

        exact = mpmath.log(mpmath.quad(integrand, sorted(end for end in ends if end <= 2))) + total
        assert abs(float(log_langevin_normaliser(diagonal(3, *d))) - exact) <= 1e-12 * max(1.0, float(exact))


def test_parallel_columns_are_as_one():
    """Known case log(sinh d / d) in three dimensions; a cancelling determinant would be wrong by 1e-5 here."""
    v = torch.randn(3, 1)
    F = 1e6 * torch.cat([v, 3 * v], 1)
    d = float(F.norm())
    assert math.isclose(log_langevin_normaliser(F), d - math.log(2 * d), rel_tol=1e-13)


def test_one_entry():
    """Two points, 1 and -1."""
    F = torch.tensor([[[2.0]], [[-1000.0]], [[torch.inf]]])
    assert torch.allclose(log_langevin_normaliser(F)[:2], torch.tensor([math.log(math.cosh(2)), 1000 - math.log(2)]))
    assert log_langevin_normaliser(F)[2].isnan()


def bessel(x):
    """I₀ without its growth."""
    return mpmath.besseli(0, x) * mpmath.exp(-x)


@pytest.mark.parametrize(
    ("n", "d", "allowed"),
    [
        (3, (2.0, 1.0), 0.0),
        (3, (1.0, 1.0, 1.0), 0.05),
        (3, (3.0, 2.0, 1.0), 0.05),
        (6, (4.0, 3.0, 2.0), 0.01),
        (10, (4.0, 3.0, 2.0, 1.0), 0.005),
        (12, (4.0,) * 6, 0.02),
    ],
)
def test_importance_sampling(n, d, allowed):
    """The weights' mean is the normaliser; ``allowed`` is the error that the docstring states for p ≥ 3."""
    X = haar(np.random.default_rng(6), 100_000, n, len(d))
    weights = np.exp(np.einsum("sii,i->s", X[:, : len(d)], d))
    error = weights.std() / weights.mean() / len(X) ** 0.5
    found = float(log_langevin_normaliser(diagonal(n, *d)))
    assert abs(found - np.log(weights.mean())) < 4 * error + allowed


@pytest.mark.parametrize(
    ("n", "d", "allowed"),
    [
        (3, (10.0, 10.0, 10.0), 0.05),
        (5, (10.0, 8.0, 5.0), 0.01),
        (8, (1000.0, 700.0, 30.0, 5.0), 0.02),
        (8, (30.0, 25.0, 20.0, 15.0), 0.02),
        pytest.param(10, (30.0,) * 5, 0.05, marks=pytest.mark.long),
    ],
)
def test_many_columns_when_concentrated(n, d, allowed):
    """E q(X)/p(X) = 1 over draws of p for any density q: here that of columns drawn one after the other."""
    distribution = MatrixLangevin(diagonal(n, *d))
    draws = distribution.sample((4000,))
    log_q = sequential_log_density(draws.numpy(), d)
    ratio = torch.exp(torch.as_tensor(log_q) - distribution.log_prob(draws))
    assert abs(math.log(ratio.mean())) < allowed + 4 * float(ratio.std()) / len(ratio) ** 0.5


def sequential_log_density(X, d):
    """Log density of columns that each follow, given those before, their own von Mises–Fisher distribution."""
    n, p = X.shape[1:]
    log_density = np.zeros(len(X))
    for k in range(p):
        before = X[:, :, :k]
        seen = 1 - (before[:, k] ** 2).sum(-1) if k else np.ones(len(X))
        kappa = torch.as_tensor(d[k] * np.sqrt(seen.clip(0)))
        log_density += d[k] * X[:, k, k] - log_sphere_mean(kappa, n - k).numpy()
    return log_density


GRADIENT_CASES = {
    "vector": lambda: torch.randn(4, 1),
    "two columns": lambda: 3 * torch.randn(2, 5, 2),
    "square": lambda: torch.randn(3, 3),
    "repeated": lambda: 2 * torch.eye(5, 4),
    "zero": lambda: torch.zeros(5, 3),
    "rank one": lambda: torch.randn(4, 1) @ torch.randn(1, 3),
    "concentrated": lambda: 300 * torch.randn(6, 3),
}


@pytest.mark.parametrize("name", GRADIENT_CASES)
def test_derivative(name):
    F = GRADIENT_CASES[name]().requires_grad_()
    assert gradcheck(log_langevin_normaliser, (F,), check_forward_ad=True)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_vectorised_and_traced(p):
    F = 3 * torch.randn(4, 5, p)
    value, gradient = torch.func.vmap(torch.func.grad_and_value(log_langevin_normaliser))(F)[::-1]
    leaf = F.clone().requires_grad_()
    expected = log_langevin_normaliser(leaf)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), leaf)
    assert torch.allclose(value, expected)
    assert torch.allclose(gradient, expected_gradient)
    traced = make_fx(torch.func.grad(lambda x: log_langevin_normaliser(x).sum()))(torch.randn(4, 5, p))
    assert torch.allclose(traced(F), expected_gradient)
    curvature = torch.func.vmap(torch.func.hessian(log_langevin_normaliser))(F)
    backwards_twice = torch.func.jacrev(torch.func.jacrev(log_langevin_normaliser))(F[0])
    assert torch.allclose(curvature[0], backwards_twice)


def test_not_finite_is_nan_and_single_precision_is_accurate():
    F = torch.stack([torch.eye(3, 2), torch.full((3, 2), torch.nan), torch.full((3, 2), torch.inf)])
    assert torch.isnan(log_langevin_normaliser(F)).tolist() == [False, True, True]
    single = log_langevin_normaliser(torch.eye(3, 2, dtype=torch.float32))
    assert single.dtype == torch.float32
    assert abs(float(single) - series(3, 1, 1)) < 1e-7


@pytest.mark.long
def test_concentrations_of_groups_are_inferred():
    """Posterior by quadrature over κ, with κ ~ Gamma and F = κF₀ and the series as normaliser."""
    F0, count = diagonal(3, 1.0, 0.5), 12
    group = torch.arange(2 * count) % 2
    observed = MatrixLangevin(torch.tensor([6.0, 12.0])[group, None, None] * F0).sample()

    def model():
        with pyro.plate("groups", 2):
            kappa = pyro.sample("kappa", dist.Gamma(2.0, 0.2))
        F = kappa[:, None, None] * F0
        with pyro.plate("data", 2 * count):
            pyro.sample("X", MatrixLangevin(F[group]), obs=observed)

    mcmc = MCMC(OHMC(model), num_samples=100, warmup_steps=200, num_chains=16, disable_progbar=True)
    mcmc.run()
    kappa = mcmc.get_samples(group_by_chain=True)["kappa"]
    grid = np.linspace(0.05, 60.0, 400)
    prior = np.log(grid) - 0.2 * grid - count * np.array([series(3, k, k / 2) for k in grid])
    for k in range(2):
        log_posterior = prior + grid * float((F0 * observed[group == k]).sum())
        posterior = np.exp(log_posterior - log_posterior.max())
        assert_mean(kappa[..., k], (posterior * grid).sum() / posterior.sum(), truth_error=1e-3)


def test_an_enumerated_mixture_is_summed_out():
    """Differences of its potential energy, with the series as normaliser."""
    observed, weights = MatrixLangevin(diagonal(3, 3.0, 1.0)).sample((6,)), torch.tensor([0.3, 0.7])

    def model():
        F = pyro.sample("F", dist.Normal(0.0, 1.0).expand([2, 3, 2]).to_event(3))
        with pyro.plate("data", len(observed)):
            z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
            pyro.sample("X", MatrixLangevin(F[z]), obs=observed)

    F = 2 * torch.randn(3, 2, 3, 2)
    constants = [[series(3, *torch.linalg.svdvals(f).tolist()) for f in pair] for pair in F]
    logits = torch.einsum("cknp,inp->cik", F, observed) - torch.tensor(constants).unsqueeze(1) + weights.log()
    expected = F.square().sum((1, 2, 3)) / 2 - logits.logsumexp(-1).sum(-1)
    found, _ = OHMC(model).prepare(3, 1, None).problem.batched({"F": F})
    assert torch.allclose(found - found[0], expected - expected[0], atol=1e-10)
