"""MSD in the automatic metric of distributions other than the usual ones, and in float32, against quadrature."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import MSD
from tests.infer.mcmc.riemannian.test_msd import INPUTS, NOISE, draws, log_logistic, moments, quadrature, tensor

COUNTS = np.round(np.exp(0.8 + 0.7 * INPUTS + 0.8 * NOISE))
OUTLYING = 0.8 * INPUTS + 0.5 * NOISE + 4.0 * (np.arange(12) == 5)
FAILURES, FREEDOM = 1.5, 3.0


def overdispersed():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(INPUTS)):
        eta = w[0] + w[1] * tensor(INPUTS) - np.log(FAILURES)
        pyro.sample("y", dist.NegativeBinomial(FAILURES, logits=eta), obs=tensor(COUNTS))


def robust():
    """The scale is latent, so that the metric knows the data; one of them lies eight scales out."""
    slope = pyro.sample("a", dist.Laplace(0.0, 1.0))
    scale = pyro.sample("b", dist.HalfNormal(1.0))
    with pyro.plate("data", len(INPUTS)):
        pyro.sample("y", dist.StudentT(FREEDOM, slope * tensor(INPUTS), scale), obs=tensor(OUTLYING))


def log_overdispersed(a, b):
    eta = a + b * INPUTS
    log_likelihood = COUNTS * eta - (COUNTS + FAILURES) * np.logaddexp(eta, np.log(FAILURES))
    return log_likelihood.sum(-1) - (a[..., 0] ** 2 + b[..., 0] ** 2) / 2


def log_robust(a, b):
    """Coordinates are a and b, the log of the scale, with its Jacobian."""
    residual = (OUTLYING - a * INPUTS) * np.exp(-b)
    log_likelihood = -(FREEDOM + 1) / 2 * np.log1p(residual**2 / FREEDOM) - b
    return log_likelihood.sum(-1) - np.abs(a[..., 0]) - np.exp(2 * b[..., 0]) / 2 + b[..., 0]


MODELS = {"NegativeBinomial": (overdispersed, log_overdispersed), "StudentT": (robust, log_robust)}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_exact_version_against_quadrature(name):
    model, log_density = MODELS[name]
    kernel = MSD(model, step_size=0.25, persistence=0.5, metropolis=True, num_steps=4)
    for values, truth in zip(moments(draws(kernel)), quadrature(log_density), strict=True):
        assert_mean(values, truth)


def logistic_in_float32():
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 2.0).to_event(1))
    inputs, outcomes = tensor(INPUTS).float(), tensor(INPUTS + NOISE > 0.3).float()
    pyro.sample("y", dist.Bernoulli(logits=w[0] + w[1] * inputs).to_event(1), obs=outcomes)


@pytest.mark.long
def test_float32_models_have_float32_draws_of_the_posterior():
    truths = quadrature(log_logistic)
    torch.set_default_dtype(torch.float32)
    samples = draws(MSD(logistic_in_float32, step_size=0.25, persistence=0.5, num_steps=4, metropolis=True))
    assert samples["w"].dtype == torch.float32
    for values, truth in zip(moments(samples), truths, strict=True):
        assert_mean(values.double(), truth)
