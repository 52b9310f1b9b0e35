"""The automatic metric of whole models: likelihoods, priors, masks, scales, and errors for unsupported models.

The embedding of each distribution is compared with its Fisher information in test_fisher.py.
"""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import AffineTransform

from pyro_manifold.density import embedding_from_model, target_from_model
from pyro_manifold.infer.mcmc.transitions import Layout

INPUTS = torch.tensor([[1.0, -0.7], [1.0, 0.2], [1.0, 1.5]], dtype=torch.float64)
PRIOR_SCALE = 2.0


def pull_back(model, position, metric_scale=None, **options):
    """``JᵀJ`` at a flat unconstrained position."""
    target = target_from_model(model, **options)
    start = target.draw()
    embedding = embedding_from_model(target, start, metric_scale)
    layout = Layout.build(start, (), False)
    (block,) = layout.groups

    def of_flat(q):
        return embedding({name: value[0] for name, value in layout.unpack({block: q[None]}).items()})

    jacobian = torch.func.jacfwd(of_flat)(position)
    return jacobian.mT @ jacobian


def fisher(family, outcomes, position):
    """Return Σ over data of E[score scoreᵀ]; ``family`` is a function of the parameters, ``outcomes`` all values."""
    total = torch.zeros(len(position), len(position))
    for outcome in outcomes:

        def log_probability(q, outcome=outcome):
            return family(q).log_prob(outcome.expand(family(q).batch_shape))

        scores = torch.autograd.functional.jacobian(log_probability, position)
        total += torch.einsum("n,ni,nj->ij", log_probability(position).exp(), scores, scores)
    return total


def regression(family, observed, scale=1.0):
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), PRIOR_SCALE).to_event(1))
        with pyro.plate("data", len(observed)), poutine.scale(scale=scale):
            pyro.sample("y", family(w), obs=observed)

    return model


def logits(w):
    return INPUTS @ w


def three_logits(w):
    return torch.stack([logits(w), logits(w).sin(), torch.zeros(3)], -1)


LIKELIHOODS = {
    "Bernoulli": (lambda w: dist.Bernoulli(logits=logits(w)), torch.arange(2.0)),
    "Bernoulli by probability": (lambda w: dist.Bernoulli(torch.sigmoid(logits(w))), torch.arange(2.0)),
    "Binomial": (lambda w: dist.Binomial(3, logits=logits(w)), torch.arange(4.0)),
    "Poisson": (lambda w: dist.Poisson(logits(w).exp()), torch.arange(60.0)),
    "Categorical": (lambda w: dist.Categorical(logits=three_logits(w)), torch.arange(3)),
    "Categorical by probability": (lambda w: dist.Categorical(three_logits(w).exp()), torch.arange(3)),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_pull_back_is_fisher_information_and_prior_precision(name):
    family, outcomes = LIKELIHOODS[name]
    w = torch.tensor([0.3, -0.8])
    expected = fisher(family, outcomes, w)
    observed = torch.ones(3, dtype=outcomes.dtype)
    found = pull_back(regression(family, observed), w)
    assert torch.allclose(found, expected + torch.eye(2) / PRIOR_SCALE**2, atol=1e-10)


def test_one_hot_data_give_the_metric_of_categories():
    w = torch.tensor([0.3, -0.8])
    hot = regression(lambda w: dist.OneHotCategorical(logits=three_logits(w)), torch.eye(3))
    plain = regression(lambda w: dist.Categorical(logits=three_logits(w)), torch.arange(3))
    assert torch.allclose(pull_back(hot, w), pull_back(plain, w))


def test_a_latent_scale_gives_the_fisher_metric_in_the_mean_over_data():
    """The metric is quadratic in the residual, so data at μ ± σ stand for all."""

    def model(observed):
        mean = pyro.sample("a", dist.Normal(0.0, PRIOR_SCALE))
        log_scale = pyro.sample("b", dist.Normal(0.0, PRIOR_SCALE))
        pyro.sample("y", dist.Normal(mean, log_scale.exp()), obs=observed)

    a, b = torch.tensor(0.7), torch.tensor(-0.4)
    metrics = [pull_back(partial(model, a + s * b.exp()), torch.stack([a, b])) for s in (-1, 1)]
    expected = torch.diag(torch.stack([(-2 * b).exp(), torch.tensor(2.0)])) + torch.eye(2) / PRIOR_SCALE**2
    assert torch.allclose((metrics[0] + metrics[1]) / 2, expected)


def test_multivariate_priors_give_their_precision_and_others_unit_precision():
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]])

    def model():
        a = pyro.sample("a", dist.MultivariateNormal(torch.zeros(2), covariance))
        pyro.sample("b", dist.Beta(2.0, 3.0))
        pyro.sample("c", dist.Uniform(-1.0, 3.0))
        pyro.sample("d", dist.Dirichlet(torch.ones(3)))
        pyro.sample("e", dist.ImproperUniform(dist.constraints.real, (), (2,)))
        pyro.sample("f", dist.Gamma(a[0].exp(), 1.0))  # a distribution of the table, but its concentration moves

    found = pull_back(model, torch.randn(9))
    precision = torch.linalg.inv(covariance)
    assert torch.allclose(found, torch.block_diag(precision, torch.eye(7)))


REAL_PRIORS = {
    "Normal": lambda: dist.Normal(0.4, 0.7),
    "Laplace": lambda: dist.Laplace(0.4, 0.7),
    "StudentT": lambda: dist.StudentT(2.5, 0.4, 0.7),
    "Cauchy": lambda: dist.Cauchy(0.4, 0.7),
    "Logistic": lambda: dist.Logistic(0.4, 0.7),
    "Gumbel": lambda: dist.Gumbel(torch.tensor(0.4), torch.tensor(0.7)),
}
POSITIVE_PRIORS = {
    "LogNormal": lambda: dist.LogNormal(0.4, 0.7),
    "Exponential": lambda: dist.Exponential(1.6),
    "Gamma": lambda: dist.Gamma(2.5, 1.6),
    "InverseGamma": lambda: dist.InverseGamma(torch.tensor(2.5), torch.tensor(1.6)),
    "Weibull": lambda: dist.Weibull(torch.tensor(1.6), torch.tensor(1.3)),
    "HalfNormal": lambda: dist.HalfNormal(0.7),
    "HalfCauchy": lambda: dist.HalfCauchy(0.7),
}


@pytest.mark.parametrize("name", [*REAL_PRIORS, *POSITIVE_PRIORS])
def test_the_precision_of_a_prior_is_the_mean_square_of_its_slope(name):
    """Unconstrained coordinates z under the prior; the trapezoidal rule in asinh z covers the tails."""
    prior = (REAL_PRIORS | POSITIVE_PRIORS)[name]()

    def log_density(z):
        return prior.log_prob(z.exp()) + z if name in POSITIVE_PRIORS else prior.log_prob(z)

    t = torch.linspace(-30.0, 30.0, 60001) if name in REAL_PRIORS else torch.linspace(-6.0, 6.0, 60001)
    z = t.sinh().requires_grad_()
    found = log_density(z)
    (slope,) = torch.autograd.grad(found.sum(), z)
    mass = found.detach().exp() * t.cosh() * (t[1] - t[0])
    possible = mass > 1e-280
    expected = (mass * slope.square())[possible].sum()
    assert torch.allclose(pull_back(lambda: pyro.sample("x", prior), torch.randn(1)), expected, rtol=1e-5)


def test_a_hierarchy_is_the_metric_of_the_joint_prior():
    """The θ|m block: dθ - dm over s, whatever the point; and log s twice in the mean, as for data."""

    def model():
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("t", dist.Normal(m, 0.5).expand([2]).to_event(1))

    found = pull_back(model, torch.randn(3))
    assert torch.allclose(found, torch.tensor([[1.0 + 8, -4, -4], [-4, 4, 0], [-4, 0, 4]]))


COUNTED = {
    "Bernoulli": lambda w: dist.Bernoulli(logits=logits(w)),
    "NegativeBinomial": lambda w: dist.NegativeBinomial(3.0, logits=logits(w)),
    "StudentT": lambda w: dist.StudentT(4.0, logits(w), w[0].exp()),
    "Gamma": lambda w: dist.Gamma(torch.tensor([1.0, 2.0, 3.0]), logits(w).exp()),
}


@pytest.mark.parametrize("name", COUNTED)
def test_masks_and_scales_count_data_as_they_should(name):
    w = torch.tensor([0.3, -0.8])
    family = COUNTED[name]
    prior = torch.eye(2) / PRIOR_SCALE**2
    data = pull_back(regression(family, torch.ones(3)), w) - prior
    assert torch.allclose(pull_back(regression(family, torch.ones(3), scale=2.5), w) - prior, 2.5 * data)
    mask = torch.tensor([True, False, True])

    def single(i):
        return pull_back(regression(lambda w: family(w).mask(torch.arange(3) == i), torch.ones(3)), w) - prior

    assert torch.allclose(single(0) + single(1) + single(2), data)
    expected = single(0) + single(2) + prior
    assert torch.allclose(pull_back(regression(lambda w: family(w).mask(mask), torch.ones(3)), w), expected)
    with_handler = poutine.mask(regression(family, torch.ones(3)), mask=mask)
    # The handler's mask meets the prior's site too, and a latent site with a mask has unit precision.
    assert torch.allclose(pull_back(with_handler, w), expected - prior + torch.eye(2))


def test_a_flat_prior_leaves_the_metric_regular():
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 3.0).mask(False).to_event(1))
        pyro.sample("y", dist.Normal(w[0], 0.5), obs=torch.tensor(1.0))

    assert torch.allclose(pull_back(model, torch.zeros(2)), torch.diag(torch.tensor([5.0, 1.0])))


def test_shared_parameters_count_each_datum():
    def shared():
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Bernoulli(logits=z).expand([4]).to_event(1), obs=torch.ones(4))
        pyro.sample("v", dist.Poisson(z.exp()), obs=torch.ones(5))  # broadcast by log_prob, outside any plate

    z = torch.tensor([0.4])
    p = torch.sigmoid(z)
    assert torch.allclose(pull_back(shared, z), 1 + 4 * p * (1 - p) + 5 * z.exp())


def test_metric_scale_weighs_the_share_of_a_site():
    w = torch.tensor([0.3, -0.8])
    model = regression(LIKELIHOODS["Bernoulli"][0], torch.ones(3))
    plain, weighed = pull_back(model, w), pull_back(model, w, {"w": 10.0})
    assert torch.allclose(weighed - plain, 9 * torch.eye(2) / PRIOR_SCALE**2)
    with pytest.raises(ValueError, match=r"metric_scale names .'v'."):
        pull_back(model, w, {"v": 1.0})


def factor():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.factor("odd", w)


def mixture():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    z = pyro.sample("odd", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    pyro.sample("y", dist.Normal(w * z, 1.0), obs=torch.tensor(0.0))


def observed(family, value):
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("odd", family(w), obs=torch.as_tensor(value))

    return model


ONE = torch.ones(1)
NO_METRIC = {
    "factor": (factor, "Unit"),
    "mixture": (mixture, "summed out"),
    "unknown distribution": (observed(lambda w: dist.Beta(w.exp(), 1.0), 0.5), "Beta"),
    "point": (observed(lambda w: dist.Delta(torch.zeros(()), w), 0.0), "Delta"),
    "trials": (observed(lambda w: dist.Binomial(w.exp(), logits=w, validate_args=False), 1.0), "a total_count"),
    "failures": (observed(lambda w: dist.NegativeBinomial(w.exp(), logits=w), 1.0), "a total_count"),
    "shape": (observed(lambda w: dist.Gamma(w.exp(), 1.0), 1.0), "a concentration"),
    "inverse shape": (observed(lambda w: dist.InverseGamma(w.exp(), ONE[0]), 1.0), "a concentration"),
    "Weibull's shape": (observed(lambda w: dist.Weibull(ONE[0], w.exp()), 1.0), "a concentration"),
    "freedom": (observed(lambda w: dist.StudentT(w.exp(), w, 1.0), 1.0), "a df"),
    "scale": (observed(lambda w: dist.Gumbel(w, w.exp()), 1.0), "a scale"),
    "covariance": (observed(lambda w: dist.MultivariateNormal(ONE, w.exp() * torch.eye(1)), ONE), "a scale_tril"),
    "low rank": (
        observed(lambda w: dist.LowRankMultivariateNormal(ONE, w * ONE[:, None], ONE), ONE),
        "a scale_tril of LowRank",
    ),
    "transform": (
        observed(lambda w: dist.TransformedDistribution(dist.Normal(0.0, 1.0), [AffineTransform(w, 1.0)]), 1.0),
        "transforms",
    ),
}


@pytest.mark.parametrize("name", NO_METRIC)
def test_what_has_no_automatic_metric_is_named_with_a_remedy(name):
    model, words = NO_METRIC[name]
    with pytest.raises(ValueError, match=rf"Site 'odd'.*{words}.*pass metric="):
        pull_back(model, torch.zeros(1))


def test_sites_that_do_not_depend_on_latent_sites_give_nothing():
    """Sites whose parameters have gradients for another reason contribute nothing either."""
    learned = torch.ones(1).requires_grad_()

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("constant", torch.tensor(3.0))
        pyro.deterministic("square", w**2)
        pyro.sample("v", dist.Beta(learned, 3.0), obs=torch.tensor([0.5]))
        pyro.sample("y", dist.MultivariateNormal(w * ONE, learned * torch.eye(1)), obs=ONE)

    assert torch.allclose(pull_back(model, torch.zeros(1)), torch.tensor(2.0))
