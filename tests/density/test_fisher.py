"""The embedding of each distribution against the Fisher information, by quadrature or sums."""

from itertools import product

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.distributions as torch_dist

from pyro_manifold.density import fisher_embedding
from pyro_manifold.infer.mcmc.riemannian import PullBackMetric

# ---- all draws of a distribution, with their weights in an integral ---------------------------------------------


def positive(family):
    """Double exponential: y = exp(½π sinh t), at home with any tail and with kinks at zero."""
    t = torch.linspace(-5.0, 5.0, 801)
    y = (torch.pi / 2 * t.sinh()).exp()
    return y, y * torch.pi / 2 * t.cosh() * (t[1] - t[0])


def real(family):
    """Both half-lines from the location, where the distribution of Laplace has its kink."""
    y, weights = positive(family)
    return torch.cat([family.loc - y, family.loc + y]), weights.repeat(2)


def above_scale(family):
    y, weights = positive(family)
    return family.base_dist.rate.new_tensor(LOWEST) + y, weights


def counts(size):
    return lambda family: (torch.arange(float(size)), torch.ones(size))


def plane(family):
    line = torch.linspace(-12.0, 12.0, 121)
    return family.loc + torch.cartesian_prod(line, line), torch.full((121**2,), float(line[1] - line[0]) ** 2)


def thrice(family):
    """All tables of three draws from three categories."""
    outcomes = torch.tensor([n for n in product(range(4), repeat=3) if sum(n) == 3], dtype=torch.float64)
    return outcomes, torch.ones(len(outcomes))


LOWEST = 0.7
COVARIANCE = torch.tensor([[1.5, 0.4], [0.4, 0.8]], dtype=torch.float64)
FACTOR = torch.tensor([[0.5], [-0.9]], dtype=torch.float64)


def curve(q):
    return q[0] + q[1] ** 2 / 2


def plane_curve(q):
    return torch.stack([curve(q), q[1].sin()])


def three_logits(q):
    return torch.cat([plane_curve(q), q.new_zeros(1)])


FAMILIES = {
    "Normal": (lambda q: dist.Normal(curve(q), 0.6), real),
    "Normal, scale": (lambda q: dist.Normal(q[0], q[1].exp()), real),
    "LogNormal": (lambda q: dist.LogNormal(curve(q), 0.6), positive),
    "LogNormal, scale": (lambda q: dist.LogNormal(q[0], q[1].exp()), positive),
    "Logistic": (lambda q: dist.Logistic(curve(q), 0.6), real),
    "Logistic, scale": (lambda q: dist.Logistic(q[0], q[1].exp()), real),
    "Laplace": (lambda q: dist.Laplace(curve(q), 0.6), real),
    "Laplace, scale": (lambda q: dist.Laplace(q[0], q[1].exp()), real),
    "StudentT": (lambda q: dist.StudentT(2.5, curve(q), 0.6), real),
    "StudentT, scale": (lambda q: dist.StudentT(2.5, q[0], q[1].exp()), real),
    "Cauchy": (lambda q: dist.Cauchy(curve(q), 0.6), real),
    "Cauchy, scale": (lambda q: dist.Cauchy(q[0], q[1].exp()), real),
    "Gumbel": (lambda q: dist.Gumbel(curve(q), torch.tensor(0.6)), real),
    "MultivariateNormal": (lambda q: dist.MultivariateNormal(plane_curve(q), COVARIANCE), plane),
    "LowRankMultivariateNormal": (
        lambda q: dist.LowRankMultivariateNormal(plane_curve(q), FACTOR, torch.tensor([0.4, 0.7])),
        plane,
    ),
    "Exponential": (lambda q: dist.Exponential(curve(q).exp()), positive),
    "Gamma": (lambda q: dist.Gamma(1.7, curve(q).exp()), positive),
    "InverseGamma": (lambda q: dist.InverseGamma(torch.tensor(1.7), curve(q).exp()), positive),
    "Weibull": (lambda q: dist.Weibull(curve(q).exp(), torch.tensor(1.3)), positive),
    "Pareto": (lambda q: dist.Pareto(torch.tensor(LOWEST), curve(q).exp()), above_scale),
    "HalfNormal": (lambda q: dist.HalfNormal(curve(q).exp()), positive),
    "HalfCauchy": (lambda q: dist.HalfCauchy(curve(q).exp()), positive),
    "Bernoulli": (lambda q: dist.Bernoulli(logits=curve(q)), counts(2)),
    "Bernoulli, probability": (lambda q: dist.Bernoulli(curve(q).sigmoid()), counts(2)),
    "Binomial": (lambda q: dist.Binomial(3, logits=curve(q)), counts(4)),
    "Geometric": (lambda q: dist.Geometric(logits=curve(q)), counts(3000)),
    "Geometric, probability": (lambda q: dist.Geometric(curve(q).sigmoid()), counts(3000)),
    "NegativeBinomial": (lambda q: dist.NegativeBinomial(2.5, logits=curve(q)), counts(3000)),
    "Poisson": (lambda q: dist.Poisson(curve(q).exp()), counts(300)),
    "Categorical": (
        lambda q: dist.Categorical(logits=three_logits(q)),
        lambda family: (torch.arange(3), torch.ones(3)),
    ),
    "OneHotCategorical": (
        lambda q: dist.OneHotCategorical(three_logits(q).exp()),
        lambda family: (torch.eye(3), torch.ones(3)),
    ),
    "Multinomial": (lambda q: dist.Multinomial(3, logits=three_logits(q)), thrice),
}


def components_of(family, q, draws):
    """The numbers as a function of q, and q alone."""
    moved = {}
    fisher_embedding(family(q.clone().requires_grad_()), draws, lambda name, x: moved.setdefault(name, x.requires_grad))
    return lambda q: fisher_embedding(family(q), draws, lambda name, _: moved[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_mean_pull_back_is_the_fisher_information(name):
    family, outcomes = FAMILIES[name]
    q = torch.randn(2).clamp(-1.5, 1.5)
    draws, weights = outcomes(family(q))
    probabilities = family(q).log_prob(draws).exp() * weights
    possible = probabilities > 1e-280  # elsewhere a score may be infinite
    draws, probabilities = draws[possible], probabilities[possible]
    assert float(probabilities.sum()) == pytest.approx(1, abs=1e-9)

    scores = torch.func.jacfwd(lambda q: family(q).log_prob(draws))(q)
    expected = torch.einsum("n,ni,nj->ij", probabilities, scores, scores)
    jacobian = torch.func.jacfwd(components_of(family, q, draws))(q)
    found = torch.einsum("n,nki,nkj->ij", probabilities, jacobian, jacobian)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_degrees_of_freedom_below_one_give_the_scale_more_than_its_information():
    q = torch.tensor([0.3, -0.2])
    draws, weights = real(dist.Normal(0.3, 1.0))

    def family(q):
        return dist.StudentT(0.7, q[0], q[1].exp())

    probabilities = family(q).log_prob(draws).exp() * weights
    jacobian = torch.func.jacfwd(components_of(family, q, draws))(q)
    found = torch.einsum("n,nki,nkj->ij", probabilities, jacobian, jacobian)
    expected = 1.7 / 3.7 * torch.tensor([0.4, 0.0]).exp()  # the information of the location is this over scale²
    assert torch.allclose(found, expected.diag(), rtol=1e-6, atol=1e-9)


# ---- far out ---------------------------------------------------------------------------------------------------

LOGITS, LOG_RATES = (-40.0, 0.0, 40.0), (-18.4, 0.0, 18.4)  # rates of 1e-8 and 1e8

ONE_PARAMETER = {
    "Bernoulli": (lambda eta: dist.Bernoulli(logits=eta), LOGITS),
    "Binomial": (lambda eta: dist.Binomial(5, logits=eta), LOGITS),
    "Geometric": (lambda eta: dist.Geometric(logits=eta), LOGITS),
    "NegativeBinomial": (lambda eta: dist.NegativeBinomial(2.5, logits=eta), LOGITS),
    "Categorical": (lambda eta: dist.Categorical(logits=torch.stack([eta, torch.zeros_like(eta)], -1)), LOGITS),
    "Poisson": (lambda eta: dist.Poisson(eta.exp(), validate_args=False), (-200.0, *LOG_RATES)),  # and one of 0
    "Exponential": (lambda eta: dist.Exponential(eta.exp(), validate_args=False), LOG_RATES),
    "Gamma": (lambda eta: dist.Gamma(2.0, eta.exp(), validate_args=False), LOG_RATES),
    "HalfNormal": (lambda eta: dist.HalfNormal(eta.exp(), validate_args=False), LOG_RATES),
    "StudentT": (lambda eta: dist.StudentT(4.0, eta, eta.exp(), validate_args=False), LOG_RATES),
    "Laplace": (lambda eta: dist.Laplace(eta, eta.exp(), validate_args=False), LOG_RATES),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ONE_PARAMETER)
def test_metric_and_connection_are_finite_far_out(name, dtype):
    torch.set_default_dtype(dtype)
    family, far = ONE_PARAMETER[name]
    q = torch.tensor(far).unsqueeze(-1)
    with pyro.validation_enabled(False):  # as in every run: validation branches on values, which no vmap does
        numbers = components_of(family, q[-2], torch.ones(1))
        field = PullBackMetric(lambda q: numbers(q).flatten(), 1, numbers(q[-2]).numel())
        metric, gradient = field.at(q)
        found = [metric, gradient(torch.ones_like(metric)), field.connection(q, q), field.connection_matrix(q, q)]
    assert all(value.dtype == dtype for value in found)
    assert all(value.isfinite().all() for value in found)


# ---- distributions inside distributions -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["StudentT, scale", "NegativeBinomial", "Gamma", "Multinomial", "LogNormal, scale"])
def test_expanded_independent_and_masked_distributions_have_the_components_of_their_elements(name):
    family, outcomes = FAMILIES[name]
    q = torch.randn(2)
    draws = outcomes(family(q))[0][:4]
    mask = torch.tensor([True, False, True, True])
    wrapped = [
        lambda q: family(q).expand([4]),
        lambda q: family(q).expand([4]).to_event(1),
        lambda q: dist.torch_distribution.ExpandedDistribution(family(q), [4]),
        lambda q: dist.torch_distribution.ExpandedDistribution(family(q), [4]).to_event(1),
    ]
    plain = components_of(family, q, draws)(q)
    for outer in wrapped:
        found = components_of(outer, q, draws)(q)
        assert found.shape[:-1] == outer(q).batch_shape
        torch.testing.assert_close(found.reshape(plain.shape), plain)
    for outer in (lambda q: family(q).expand([4]).mask(mask).to_event(1), lambda q: family(q).expand([4]).mask(mask)):
        found = components_of(outer, q, draws)(q).reshape(plain.shape)
        torch.testing.assert_close(found, plain * mask.unsqueeze(-1), rtol=1e-7, atol=0)  # what is masked is 0


def test_a_fixed_bijection_changes_nothing():
    transforms = [torch_dist.AffineTransform(1.0, 0.5), torch_dist.SigmoidTransform()]

    def family(q):
        return dist.TransformedDistribution(dist.Normal(q[0], q[1].exp()), transforms)

    q, x = torch.randn(2), torch.tensor([0.3, -0.4])
    expected = components_of(lambda q: dist.Normal(q[0], q[1].exp()), q, x)(q)
    assert torch.allclose(components_of(family, q, torch_dist.ComposeTransform(transforms)(x))(q), expected)
