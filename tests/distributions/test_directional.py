"""Directional distributions against quadrature, series of many digits, exact posteriors and other implementations."""

import warnings

import mpmath
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from pyro.ops.indexing import Vindex
from torch.distributions import kl_divergence

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import (
    Bingham,
    GrassmannLangevin,
    GrassmannUniform,
    MatrixFisher,
    SpecialOrthogonalUniform,
    VonMisesFisher,
    log_bingham_normaliser,
    mean_resultant_length,
    quaternion_form,
    rotation_of,
    scaled_log_normaliser,
)
from pyro_manifold.infer import MCMC, OHMC
from tests.infer.mcmc.compilers import native_code

# ---- von Mises–Fisher -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 10, 100, 1000, 10_000])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 30.0, 1e3, 1e6])
def test_normaliser_against_fifty_digits(n, kappa):
    with mpmath.workdps(50):
        order, exact = mpmath.mpf(n) / 2 - 1, mpmath.mpf(kappa)
        bessel = mpmath.besseli(order, exact)
        value = mpmath.log(bessel) + mpmath.loggamma(order + 1) - order * mpmath.log(exact / 2) - exact
        length = mpmath.besseli(order + 1, exact) / bessel
        curvature = 1 - length**2 - (n - 1) / exact * length
    leaf = torch.tensor(kappa, requires_grad=True)
    found = scaled_log_normaliser(leaf, n)
    (slope,) = torch.autograd.grad(found, leaf, create_graph=True)
    (second,) = torch.autograd.grad(slope, leaf)
    assert float(found.detach()) == pytest.approx(float(value), rel=1e-11, abs=1e-11)
    assert float(slope.detach()) == pytest.approx(float(length - 1), rel=1e-10)
    assert float(second) == pytest.approx(float(curvature), rel=1e-10)
    assert float(mean_resultant_length(leaf.detach(), n)) == pytest.approx(float(length), rel=1e-10)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_density_is_that_of_scipy_less_the_area(n):
    mean = torch.eye(n)[0]
    x = torch.randn(20, n)
    x = x / x.norm(dim=-1, keepdim=True)
    area = np.log(2) + n / 2 * np.log(np.pi) - scipy.special.gammaln(n / 2)
    expected = scipy.stats.vonmises_fisher(mean.numpy(), 7.0).logpdf(x.numpy()) + area
    np.testing.assert_allclose(VonMisesFisher(mean, 7.0).log_prob(x), expected, rtol=1e-10)


def test_uniform_at_concentration_zero():
    uniform = VonMisesFisher(torch.eye(5)[0], 0.0)
    assert abs(uniform.log_prob(uniform.sample((10,)))).max() < 1e-14
    assert_mean(uniform.sample((4000,))[:, 0] ** 2, 0.2)
    assert abs(float(uniform.entropy())) < 1e-14


@pytest.mark.parametrize(("n", "kappa"), [(2, 3.0), (3, 1e5), (50, 20.0), (2000, 600.0)])
def test_draws_have_the_mean(n, kappa):
    law = VonMisesFisher(torch.eye(n)[1], kappa)
    x = law.sample((2000 if n < 1000 else 100,))
    assert_mean(kappa * (1 - x[:, 1]), kappa * (1 - float(law.mean[1])), truth_error=1e-4)
    assert_mean(x[:, 0], 0.0)


def test_entropy_and_divergence():
    p, q = VonMisesFisher(torch.eye(3)[0], 4.0), VonMisesFisher(torch.eye(3)[1], 2.0)
    x = p.sample((20_000,))
    assert_mean(-p.log_prob(x), float(p.entropy()))
    assert_mean(p.log_prob(x) - q.log_prob(x), float(kl_divergence(p, q)))
    uniform = VonMisesFisher(torch.eye(3)[0], 0.0)
    torch.testing.assert_close(kl_divergence(p, uniform), -p.entropy())
    assert abs(float(kl_divergence(p, p))) < 1e-14


def test_copies_by_an_index_share_the_constant():
    kappa, group = torch.tensor([1.0, 5.0], requires_grad=True), torch.arange(6) % 2
    law = VonMisesFisher(torch.eye(3)[0], kappa[group])
    x = VonMisesFisher(torch.eye(3)[0], 3.0).sample((6,))
    assert law._rows.distinct.shape == (2,)
    (shared,) = torch.autograd.grad(law.expand((2, 6)).log_prob(x).sum(), kappa)
    apart = VonMisesFisher(torch.eye(3)[0], kappa[group] * 1.0)
    (separate,) = torch.autograd.grad(2 * apart.log_prob(x).sum(), kappa)
    torch.testing.assert_close(shared, separate)


def test_float32_keeps_its_digits_at_large_concentrations():
    exact = VonMisesFisher(torch.eye(3)[0], 1e5)
    x = exact.sample((100,)).float()
    found = VonMisesFisher(torch.eye(3)[0].float(), 1e5).log_prob(x)
    expected = VonMisesFisher(torch.eye(3)[0], 1e5, validate_args=False).log_prob(x.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def mixture(X):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        mean = pyro.sample("mean", VonMisesFisher(torch.eye(3)[0], 0.0))
        kappa = pyro.sample("kappa", dist.HalfNormal(20.0))
    with pyro.plate("rows", len(X)):
        z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("X", VonMisesFisher(Vindex(mean)[..., z, :], Vindex(kappa)[..., z]), obs=X)


def bingham_model(X):
    cost = pyro.sample("cost", dist.HalfNormal(20.0).expand([3]).to_event(1))
    R = pyro.sample("R", SpecialOrthogonalUniform(3))
    with pyro.plate("rows", len(X)):
        pyro.sample("X", Bingham(R @ torch.diag_embed(-cost) @ R.mT), obs=X)


def fisher_model(X):
    F = pyro.sample("F", dist.Normal(0.0, 5.0).expand([3, 3]).to_event(2))
    with pyro.plate("rows", len(X)):
        pyro.sample("X", MatrixFisher(F), obs=X)


def subspace_model():
    X = pyro.sample("X", GrassmannUniform(5, 2))
    pyro.factor("density", torch.linalg.multi_dot([X.mT, K, X]).trace())


K = torch.diag(torch.tensor([6.0, 4.0, 2.0, 0.0, 0.0], dtype=torch.float64))


@native_code
@pytest.mark.parametrize(
    ("model", "data"),
    [
        pytest.param(
            mixture, lambda: VonMisesFisher(torch.eye(3)[torch.arange(20) % 2], 9.0).sample(), marks=pytest.mark.long
        ),
        pytest.param(
            bingham_model,
            lambda: Bingham(torch.diag(torch.tensor([9.0, 2.0, 0.0]))).sample((20,)),
            marks=pytest.mark.long,
        ),
        (fisher_model, lambda: MatrixFisher(5 * torch.eye(3)).sample((20,))),
    ],
)
def test_models_have_native_code(model, data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = OHMC(model).prepare(2, 50, None, data())
        run.advance()
        run.policy.make(run.state)
    assert run.transitions[-1].graph.backend == "native"


@pytest.mark.long
def test_posterior_of_the_concentration_is_that_of_quadrature():
    """With μ known the posterior of κ has one dimension."""
    x = VonMisesFisher(torch.eye(3)[0], 4.0).sample((20,))
    total = float(x[:, 0].sum())

    def model():
        kappa = pyro.sample("kappa", dist.Exponential(0.1))
        with pyro.plate("rows", 20):
            pyro.sample("x", VonMisesFisher(torch.eye(3)[0], kappa), obs=x)

    def density(k):  # sinh κ/κ is the constant on the sphere
        return np.exp(k * total - 20 * (k - np.log(2 * k) + np.log1p(-np.exp(-2 * k))) - k / 10)

    mass, moment = (scipy.integrate.quad(lambda k, j=j: k**j * density(k), 1e-9, 60, points=[4])[0] for j in (0, 1))
    mcmc = MCMC(OHMC(model), num_samples=300, warmup_steps=200, num_chains=16, disable_progbar=True)
    mcmc.run()
    # Means of chains are independent.
    assert_mean(mcmc.get_samples(group_by_chain=True)["kappa"].mean(1), moment / mass)


# ---- Bingham ----------------------------------------------------------------------------------------------------


def series(eigenvalues):
    """Log of the constant as a series of positive terms: moments of a Gaussian quadratic form, by Newton's identity."""
    with mpmath.workdps(40):
        lowest = mpmath.mpf(min(eigenvalues))
        shifted, half = [mpmath.mpf(x) - lowest for x in eigenvalues], mpmath.mpf(len(eigenvalues)) / 2
        moments, powers, total, pochhammer = [mpmath.mpf(1)], [], mpmath.mpf(1), mpmath.mpf(1)
        for k in range(1, 500):
            powers.append(sum(x**k for x in shifted))
            moments.append(sum(powers[j] * moments[k - 1 - j] for j in range(k)) / (2 * k))
            pochhammer *= half + k - 1
            total += moments[k] / pochhammer
            if moments[k] / pochhammer < total * mpmath.mpf(10) ** -25:
                return float(mpmath.log(total) + lowest)
    raise AssertionError("The series has not converged.")


@pytest.mark.parametrize("gap", [0.0, 1.0, 100.0, 1e4])
def test_bingham_constant_on_the_circle_and_the_sphere(gap):
    circle = float(log_bingham_normaliser(torch.diag(torch.tensor([gap, 0.0]))))
    assert circle == pytest.approx(gap / 2 + np.log(scipy.special.ive(0, gap / 2)) + gap / 2, rel=1e-10, abs=1e-13)
    # Given x₁, the rest of the vector is on a circle; t² - 1 is left over from both exponents.
    middle = gap / 3

    def integrand(t):
        rest = 1 - t * t
        return np.exp(-(gap - middle) * rest) * scipy.special.ive(0, middle / 2 * rest)

    places = [1 - 1 / (1 + gap), 1 - 20 / (20 + gap)]
    mass = scipy.integrate.quad(integrand, 0, 1, points=places, epsabs=0, epsrel=1e-12)[0]
    sphere = float(log_bingham_normaliser(torch.diag(torch.tensor([middle, gap, 0.0]))))
    assert sphere == pytest.approx(np.log(mass) + gap, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("n", [3, 5, 8, 20])
@pytest.mark.parametrize("gap", [0.1, 5.0, 40.0])
def test_bingham_constant_against_a_series(n, gap):
    for eigenvalues in (gap * torch.rand(n), gap * (torch.arange(n) == 0).double(), gap * torch.rand(n) ** 4):
        turned = torch.linalg.qr(torch.randn(n, n))[0]
        A = turned @ torch.diag(eigenvalues) @ turned.mT
        assert float(log_bingham_normaliser(A)) == pytest.approx(series(eigenvalues.tolist()), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("n", [40, 100])
def test_bingham_constant_of_many_equal_eigenvalues(n):
    """Where a narrow contour would meet the crowd: Kummer's function."""
    for cost in (0.3 * n, float(n), 3.0 * n):
        with mpmath.workdps(40):
            expected = float(mpmath.log(mpmath.hyp1f1(0.5, n / 2, cost)) - cost)
        eigenvalues = torch.cat([torch.zeros(1), torch.full((n - 1,), -cost)])
        assert float(log_bingham_normaliser(torch.diag(eigenvalues))) == pytest.approx(expected, rel=1e-10)


def test_bingham_moments_mode_and_entropy():
    A = torch.diag(torch.tensor([1e4, 1.0, 0.0])) + torch.ones(3, 3)
    law = Bingham(A)
    torch.testing.assert_close(law.covariance_matrix.trace(), torch.tensor(1.0), rtol=1e-10, atol=0)
    x = law.sample((4000,))
    assert_mean(x[:, 1] ** 2, float(law.covariance_matrix[1, 1]))
    assert_mean(-law.log_prob(x), float(law.entropy()))
    assert law.log_prob(law.mode) >= law.log_prob(x).max()


# ---- matrix Fisher ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("singular", [(3.0, 2.0, 1.0), (3.0, 2.0, -1.0), (500.0, 5.0, -3.0), (0.0, 0.0, 0.0)])
def test_matrix_fisher_constant_by_the_integral_of_bessel_functions(singular):
    """Lee 2018, equation 11, with scaled Bessel functions."""
    a, b, c = singular

    def integrand(u):
        first, second = (a - b) * (1 - u) / 2, (a + b) * (1 + u) / 2
        scaled = scipy.special.ive(0, first) * scipy.special.ive(0, second)
        return scaled * np.exp(first + second + c * u - a - b - c) / 2

    expected = np.log(scipy.integrate.quad(integrand, -1, 1, epsabs=0, epsrel=1e-12)[0]) + a + b + c
    left, right = SpecialOrthogonalUniform(3).sample((2,))
    F = left @ torch.diag(torch.tensor(singular)) @ right.mT
    assert float(-MatrixFisher(F).log_prob(torch.eye(3)) + F.trace()) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_quaternions_of_rotations():
    q = VonMisesFisher(torch.eye(4)[0], 0.0).sample((10,))
    F, R = torch.randn(3, 3), rotation_of(q)
    assert constraints.special_orthogonal.check(R).all()
    quadratic = torch.einsum("si,ij,sj->s", q, quaternion_form(F), q)
    torch.testing.assert_close((F * R).sum((-2, -1)), quadratic)


def test_matrix_fisher_mean_and_mode():
    F = torch.diag(torch.tensor([2.0, 1.0, -3.0])) + torch.randn(3, 3) / 2
    law = MatrixFisher(F)
    R = law.sample((10_000,))
    for entry in ((0, 0), (1, 2), (2, 2)):
        assert_mean(R[(..., *entry)], float(law.mean[entry]))
    assert law.log_prob(law.mode) >= law.log_prob(R).max()
    assert_mean(-law.log_prob(R), float(law.entropy()))


# ---- subspaces --------------------------------------------------------------------------------------------------


def test_chains_of_subspaces():
    """Against exact draws of the Langevin distribution of projectors; the summary is of what is invariant."""
    mcmc = MCMC(OHMC(subspace_model), num_samples=60, warmup_steps=60, num_chains=32, disable_progbar=True)
    mcmc.run()
    X = mcmc.get_samples(group_by_chain=True)["X"]
    assert constraints.grassmann.check(X).all()
    exact = GrassmannLangevin(K, 2).sample((20_000,)).square().sum(-1)
    for row in (0, 2, 4):
        truth, error = float(exact[:, row].mean()), float(exact[:, row].std() / 20_000**0.5)
        assert_mean(X.square().sum(-1)[..., row].mean(1), truth, truth_error=error)
    assert [(each.kind, each.sites) for each in mcmc.symmetries()] == [("rotations", ("X",))]


def test_bad_input_is_named():
    mean = torch.eye(3)[0]
    for message, make in {
        r"VonMisesFisher: mean_direction has shape \(1,\).*n ≥ 2": lambda: VonMisesFisher(torch.ones(1), 1.0),
        "VonMisesFisher: mean_direction has dtype torch.int64": lambda: VonMisesFisher(torch.ones(3).long(), 1.0),
        "concentration has dtype torch.float32": lambda: VonMisesFisher(mean, torch.ones(2).float()),
        r"concentration has shape \(2,\)": lambda: VonMisesFisher(torch.eye(3), torch.ones(2)),
        "parameter concentration": lambda: VonMisesFisher(mean, -1.0, validate_args=True),
        "parameter mean_direction": lambda: VonMisesFisher(2 * mean, 1.0, validate_args=True),
        r"VonMisesFisher\.sample.*not finite": lambda: VonMisesFisher(mean, torch.inf, validate_args=False).sample(),
        r"Bingham: A has shape \(3, 2\)": lambda: Bingham(torch.ones(3, 2)),
        "Bingham: A is 1×1": lambda: Bingham(torch.ones(1, 1)),
        r"MatrixFisher: F has shape \(4, 4\).*SpecialOrthogonalUniform": lambda: MatrixFisher(torch.eye(4)),
        "MatrixFisher: F has dtype": lambda: MatrixFisher(torch.eye(3).long()),
        r"GrassmannLangevin: A has shape \(3, 2\)": lambda: GrassmannLangevin(torch.ones(3, 2), 2),
        "GrassmannUniform: got n=2, p=3": lambda: GrassmannUniform(2, 3),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()
    needs_constant = torch.eye(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"GrassmannLangevin.*not normalised in A"):
        GrassmannLangevin(2 * needs_constant, 2).log_prob(torch.eye(3, 2))
