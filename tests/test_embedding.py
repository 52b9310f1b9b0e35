"""The automatic metric against the Fisher information: the mean outer product of scores, summed over all data."""

from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_manifold.embedding import embedding_from_model
from pyro_manifold.infer.mcmc.layout import Layout
from pyro_manifold.log_density import target_from_model

INPUTS = torch.tensor([[1.0, -0.7], [1.0, 0.2], [1.0, 1.5]], dtype=torch.float64)
PRIOR_SCALE = 2.0


def pull_back(model, position, metric_scale=None):
    """``JᵀJ`` at a flat unconstrained position."""
    target = target_from_model(model, (), {})
    start = target.draw_start()
    embedding = embedding_from_model(model, (), {}, target, start, metric_scale)
    layout = Layout.build(start, (), False)
    (block,) = layout.groups
    jacobian = torch.func.jacfwd(lambda q: embedding(layout.unpack_chain({block: q[None]}, 0)))(position)
    return jacobian.mT @ jacobian


def fisher(law, outcomes, position):
    """Σ over data of E[score scoreᵀ], the law a function of the parameters, ``outcomes`` all values of one datum."""
    total = torch.zeros(len(position), len(position))
    for outcome in outcomes:

        def log_probability(q, outcome=outcome):
            return law(q).log_prob(outcome.expand(law(q).batch_shape))

        scores = torch.autograd.functional.jacobian(log_probability, position)
        total += torch.einsum("n,ni,nj->ij", log_probability(position).exp(), scores, scores)
    return total


def regression(law, observed, scale=1.0):
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(2), PRIOR_SCALE).to_event(1))
        with pyro.plate("data", len(observed)), poutine.scale(scale=scale):
            pyro.sample("y", law(w), obs=observed)

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
    law, outcomes = LIKELIHOODS[name]
    w = torch.tensor([0.3, -0.8])
    expected = fisher(law, outcomes, w)
    observed = torch.ones(3, dtype=outcomes.dtype)
    found = pull_back(regression(law, observed), w)
    assert torch.allclose(found, expected + torch.eye(2) / PRIOR_SCALE**2, atol=1e-10)


def test_one_hot_data_give_the_metric_of_categories():
    w = torch.tensor([0.3, -0.8])
    hot = regression(lambda w: dist.OneHotCategorical(logits=three_logits(w)), torch.eye(3))
    plain = regression(lambda w: dist.Categorical(logits=three_logits(w)), torch.arange(3))
    assert torch.allclose(pull_back(hot, w), pull_back(plain, w))


def test_exponential_and_log_normal():
    w = torch.tensor([0.3, -0.8])
    prior = torch.eye(2) / PRIOR_SCALE**2
    found = pull_back(regression(lambda w: dist.Exponential(logits(w).exp()), torch.ones(3)), w)
    assert torch.allclose(found, INPUTS.mT @ INPUTS + prior)  # information 1/λ², and dλ = λ x
    found = pull_back(regression(lambda w: dist.LogNormal(logits(w), 0.5), torch.ones(3)), w)
    assert torch.allclose(found, INPUTS.mT @ INPUTS / 0.5**2 + prior)


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


def test_priors_give_their_precision_and_others_unit_precision():
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]])

    def model():
        pyro.sample("a", dist.MultivariateNormal(torch.zeros(2), covariance))
        pyro.sample("b", dist.LogNormal(1.0, 3.0))
        pyro.sample("c", dist.Gamma(2.0, 3.0))
        pyro.sample("d", dist.Dirichlet(torch.ones(3)))

    found = pull_back(model, torch.randn(6))
    precision = torch.linalg.inv(covariance)
    assert torch.allclose(found, torch.block_diag(precision, torch.tensor([[1 / 9]]), torch.eye(3)))


def test_a_hierarchy_is_the_metric_of_the_joint_prior():
    """The θ|m block: dθ - dm over s, whatever the point; and log s twice in the mean, as for data."""

    def model():
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("t", dist.Normal(m, 0.5).expand([2]).to_event(1))

    found = pull_back(model, torch.randn(3))
    assert torch.allclose(found, torch.tensor([[1.0 + 8, -4, -4], [-4, 4, 0], [-4, 0, 4]]))


def test_masks_scales_and_shared_parameters_count_data_as_they_should():
    w = torch.tensor([0.3, -0.8])
    law = LIKELIHOODS["Bernoulli"][0]
    prior = torch.eye(2) / PRIOR_SCALE**2
    data = pull_back(regression(law, torch.ones(3)), w) - prior
    assert torch.allclose(pull_back(regression(law, torch.ones(3), scale=2.5), w) - prior, 2.5 * data)
    mask = torch.tensor([True, False, True])

    def dropped(w):
        return dist.Bernoulli(logits=logits(w)[mask])

    expected = pull_back(regression(dropped, torch.ones(2)), w)
    assert torch.allclose(pull_back(regression(lambda w: law(w).mask(mask), torch.ones(3)), w), expected)
    with_handler = poutine.mask(regression(law, torch.ones(3)), mask=mask)
    # The handler's mask meets the prior's site too, whose density it counts twice by broadcasting.
    assert torch.allclose(pull_back(with_handler, w), expected + prior)

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


def cauchy():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("odd", dist.Cauchy(w, 1.0), obs=torch.tensor(0.0))


def factor():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.factor("odd", w)


def mixture():
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    z = pyro.sample("odd", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    pyro.sample("y", dist.Normal(w * z, 1.0), obs=torch.tensor(0.0))


def covariance():
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    pyro.sample("odd", dist.MultivariateNormal(torch.zeros(2), s * torch.eye(2)), obs=torch.ones(2))


@pytest.mark.parametrize("model", [cauchy, factor, mixture, covariance])
def test_what_has_no_automatic_metric_is_named_with_a_remedy(model):
    with pytest.raises(ValueError, match=r"Site 'odd'.*pass metric="):
        pull_back(model, torch.zeros(1))
