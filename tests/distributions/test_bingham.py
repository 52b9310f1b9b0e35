"""Bingham and angular central Gaussian draws, against importance sampling and closed forms."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from problems.importance import haar, weighted_mean
from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import (
    MatrixAngularCentralGaussian,
    MatrixBingham,
    MatrixBinghamVonMisesFisher,
    MatrixLangevin,
    StiefelUniform,
)
from pyro_manifold.distributions import bingham_envelope as envelope
from tests.parameters import long_except


def parameters(n, p, strength, linear=0.0, seed=0):
    """A, B, C without any structure; B with entries of one sign."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n))
    B = haar(rng, 1, p, p)[0]
    B = B @ np.diag(np.arange(1.0, p + 1)) @ B.T
    return strength * (A + A.T) / 2, B, linear * rng.standard_normal((n, p))


def statistics(X):
    """Even and odd functions of X, for NumPy and torch alike."""
    return {"square": X[:, 0, 0] ** 2, "product": X[:, 0, 0] * X[:, 1, -1], "entry": X[:, 0, -1]}


MODERATE = {
    "sphere": parameters(3, 1, 2.0),
    "sphere with linear part": parameters(4, 1, 2.0, linear=2.0),
    "linear part against quadratic": (np.diag([-4.0, 1.0, 0.0]), np.eye(1), np.array([[4.0], [0.0], [0.0]])),
    "V(4,2)": parameters(4, 2, 1.0),
    "V(4,2), negative B": (parameters(4, 2, 1.0)[0], np.diag([-2.0, -0.5]), np.zeros((4, 2))),
    "V(3,2), B of both signs": (parameters(3, 2, 0.7)[0], np.diag([1.0, -1.0]), np.zeros((3, 2))),
    "O(3)": parameters(3, 3, 0.7),
    "V(5,3) with linear part": parameters(5, 3, 0.4, linear=0.7),
    "V(4,2), mostly linear": parameters(4, 2, 0.1, linear=3.0),
    "V(3,2), both signs and linear part": (
        parameters(3, 2, 0.5)[0],
        np.diag([1.0, -1.0]),
        parameters(3, 2, 0.0, linear=2.0)[2],
    ),
    "flat": parameters(4, 2, 0.0),
}


SHORT = ("sphere", "linear part against quadratic", "V(4,2)", "O(3)", "V(3,2), both signs and linear part")


@pytest.mark.parametrize("name", long_except(MODERATE, *SHORT))
def test_draws_against_importance_sampling(name):
    A, B, C = MODERATE[name]
    n, p = C.shape
    X = haar(np.random.default_rng(7), 100_000, n, p)
    log_weight = np.einsum("ij,sij->s", C, X) + np.einsum("jk,sij,il,slk->s", B, X, A, X, optimize=True)
    draws = MatrixBinghamVonMisesFisher(*map(torch.as_tensor, (A, B, C))).sample((8000,))
    assert constraints.stiefel.check(draws).all()
    truth, found = statistics(X), statistics(draws)
    for statistic in truth:
        assert_mean(found[statistic], *weighted_mean(truth[statistic], log_weight))


@pytest.mark.parametrize(
    "name",
    [
        *("sphere with linear part", "V(3,2), both signs and linear part"),
        pytest.param("V(5,3) with linear part", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", ["_SpanEnvelope", "_TangentEnvelope"])
def test_each_envelope_bounds_the_density_and_has_the_density_it_claims(name, kind):
    """log_ratio ≤ 0 always, and weighs proposals to the distribution: importance sampling with the envelope."""
    A, B, C = (torch.as_tensor(m) for m in MODERATE[name])
    beta, basis = torch.linalg.eigh(B)
    target = envelope._Target(A[None], beta.flip(-1)[None], (C @ basis.flip(-1))[None])
    X, log_ratio = getattr(envelope, kind)(target, envelope._mode(target)).propose(
        torch.zeros(1, dtype=torch.long), 40_000
    )
    assert log_ratio.max() < 1e-9
    n, p = C.shape
    haar_X = haar(np.random.default_rng(8), 100_000, n, p)
    rotated = (C @ basis.flip(-1)).numpy()
    quadratic = np.einsum("j,sij,il,slj->s", beta.flip(-1).numpy(), haar_X, A.numpy(), haar_X, optimize=True)
    log_weight = np.einsum("ij,sij->s", rotated, haar_X) + quadratic
    for statistic, values in statistics(X[:, 0]).items():
        mean, error = weighted_mean(values, log_ratio[:, 0])
        truth, truth_error = weighted_mean(statistics(haar_X)[statistic], log_weight)
        assert abs(mean - truth) < 4 * (error**2 + truth_error**2) ** 0.5


def test_concentrated_bingham_on_the_sphere():
    """Against quadrature: on the circle p(φ) ∝ exp(s cos²φ), with both signs of the axis."""
    s = 1000.0
    X = MatrixBingham(torch.diag(torch.tensor([s, 0.0])), p=1).sample((20_000,))[..., 0]
    mass, moment = (
        scipy.integrate.quad(lambda u, k=k: (s * np.sin(u) ** 2) ** k * np.exp(-s * np.sin(u) ** 2), -0.5, 0.5)[0]
        for k in (0, 1)
    )
    assert_mean(s * X[:, 1] ** 2, moment / mass, truth_error=1e-9)
    assert_mean(X[:, 0], 0.0)


@pytest.mark.parametrize(
    ("n", "beta", "length"),
    [
        *[(5, (1.0,), 0.0), (4, (2.0, 1.0), 0.0), (4, (3.0, 2.0, 1.0), 0.0), (4, (1.0,), 1.0)],
        pytest.param(4, (2.0, 1.0), 1.0, marks=pytest.mark.long),
    ],
)
def test_concentrated_distributions_have_gaussian_tails(n, beta, length):
    """Near a mode twice the deficit of the log density is χ² with as many degrees as the manifold dimensions."""
    scale, p = 3e4, len(beta)
    A = scale * torch.diag(torch.linspace(1.0, -1.0, n))
    B, C = torch.diag(torch.tensor(beta)), scale * length * torch.eye(n, p)
    distribution = MatrixBinghamVonMisesFisher(A, B, C)
    X = distribution.sample((500,))
    deficit = 2 * (distribution.log_prob(torch.eye(n, p)) - distribution.log_prob(X))
    dimension = n * p - p * (p + 1) // 2
    assert_mean(deficit, dimension, truth_error=0.01)
    assert scipy.stats.kstest(deficit.numpy(), scipy.stats.chi2(dimension).cdf).pvalue > 6e-5


def test_linear_part_alone_is_the_langevin_distribution():
    F = torch.tensor([[30.0, 4.0], [0.0, 20.0], [1.0, 0.0], [0.0, 0.0]])
    distribution = MatrixBinghamVonMisesFisher(torch.zeros(4, 4), torch.eye(2), F)
    draws, mean = distribution.sample((8000,)), MatrixLangevin(F).mean
    for entry in [(0, 0), (1, 1), (0, 1)]:
        assert_mean(draws[(..., *entry)], float(mean[entry]), truth_error=1e-12)


def test_batches_of_bingham_distributions():
    """Known case: on the sphere the first coordinate t has density exp(s t²) on [-1, 1]."""
    strengths = (0.0, 5.0, -500.0)
    A = torch.stack([torch.diag(s * torch.tensor([1.0, 0.0, 0.0])) for s in strengths])
    X = MatrixBingham(A, p=1).sample((4000,))[..., 0, 0]
    for i, s in enumerate(strengths):
        mass, moment = (scipy.integrate.quad(lambda t, k=k, s=s: t**k * np.exp(s * t * t), 0, 1)[0] for k in (0, 2))
        assert_mean(X[:, i] ** 2, moment / mass)
        assert_mean(X[:, i] * X[:, i - 1], 0.0)


def test_angular_central_gaussian_on_the_circle():
    """Tan φ of a draw is Cauchy: P(|x₂/x₁| < ratio of scales) = 1/2. Concentrated ones too."""
    for ratio in (1.0, 1e-3):
        distribution = MatrixAngularCentralGaussian(torch.diag(torch.tensor([1.0, ratio**2])), 1)
        X = distribution.sample((20_000,))[..., 0]
        assert_mean((X[:, 1].abs() < ratio * X[:, 0].abs()).double(), 0.5)
        assert_mean(X[:, 0], 0.0)
        angle = torch.linspace(0, torch.pi, 200_001)[1:]
        circle = torch.stack([angle.cos(), angle.sin()], -1).unsqueeze(-1)
        assert abs(float(distribution.log_prob(circle).exp().mean()) - 1) < 1e-6


def test_angular_central_gaussian_of_a_cholesky_factor():
    L = torch.linalg.cholesky(torch.eye(3) + torch.ones(3, 3)).requires_grad_()
    distribution = MatrixAngularCentralGaussian(scale_tril=L, p=2)
    distribution.rsample((3,)).sum().backward()
    assert L.grad.abs().sum() > 0
    assert torch.allclose(distribution.covariance, L @ L.mT)
    assert not distribution.mean.any()


def test_parameters_that_are_inferred_are_refused():
    """Without the constant their posterior would be wrong; that must not happen in silence."""
    A = torch.eye(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"MatrixBingham.*not normalised in A.*A\.detach\(\)"):
        MatrixBingham(2 * A, p=1).log_prob(torch.eye(3, 1))
    with pytest.raises(NotImplementedError, match="not normalised in C"):
        MatrixBinghamVonMisesFisher(torch.eye(3), torch.eye(3), A).log_prob(torch.eye(3))


def test_a_low_acceptance_rate_is_an_error():
    A = torch.diag(torch.tensor([1e4, 0.0, -1e4]))
    with pytest.raises(RuntimeError, match=r"MatrixBingham.sample: 2 of 2 draws.*too slow"):
        MatrixBingham(A, torch.diag(torch.tensor([1.0, -1.0]))).sample((2,))


def test_bad_input_is_named():
    A = torch.eye(3)
    for message, make in {
        r"MatrixBingham: A has shape \(3, 2\)": lambda: MatrixBingham(torch.ones(3, 2), p=1),
        "MatrixBingham: A has dtype torch.int64": lambda: MatrixBingham(torch.ones(3, 3).long(), p=1),
        "MatrixBingham: give exactly one of B": lambda: MatrixBingham(A),
        "MatrixBingham: p=1.5": lambda: MatrixBingham(A, p=1.5),
        "MatrixBingham: got n=3, p=4": lambda: MatrixBingham(A, p=4),
        r"Fisher: C has shape \(3, 1\).*n=3 of A and p=3 of B": lambda: MatrixBinghamVonMisesFisher(A, A, A[:, :1]),
        "expected one dtype": lambda: MatrixBinghamVonMisesFisher(A, A, A.float()),
        "not finite": lambda: MatrixBingham(A * torch.inf, p=1, validate_args=False).sample(),
        "exactly one of covariance and scale_tril": lambda: MatrixAngularCentralGaussian(A, 1, scale_tril=A),
        "CentralGaussian: got n=3, p=4": lambda: MatrixAngularCentralGaussian(A, 4),
        "CentralGaussian: p=None": lambda: MatrixAngularCentralGaussian(A, None),
        "expected 'polar' or 'householder'": lambda: MatrixBingham(A, p=1, chart="euler"),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(torch.linalg.LinAlgError, match="CentralGaussian: covariance is not positive definite"):
        MatrixAngularCentralGaussian(-A, 1)


def test_antisymmetric_parts_count_neither_in_densities_nor_in_draws():
    """Tr BXᵀAX of two antisymmetric matrices is not 0, and a factorisation of one triangle sees them too."""
    turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    A, X = 9 * torch.ones(3, 3).triu(1) - 9 * torch.ones(3, 3).tril(-1), StiefelUniform(3, 2).sample((100,))
    d = MatrixBingham(A, 9 * turn)
    assert d.log_prob(X).abs().max() < 1e-12  # the uniform distribution
    draws = d.sample((4000,))
    assert_mean(draws[:, 0, 0].square(), 1 / 3)
    assert_mean(draws[:, 0, 0] * draws[:, 1, 1] - draws[:, 0, 1] * draws[:, 1, 0], 0.0)
