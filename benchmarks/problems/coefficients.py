"""Posteriors of one vector of coefficients, each written once and read by Pyro, by NumPyro and by plain torch.

The prior is N(0, s²I). "logistic", "Poisson" and "banana" are small; "collinear linear" and "collinear logistic" have
20 predictors so correlated that standard deviations of the posterior differ by a hundred, along axes that are not the
coordinates'.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Posterior:
    """The posterior of w.

    Attributes:
        name: how tables call it.
        dimension: of w.
        prior_scale: s.
        data: what is observed, ``(cases,)``.
        likelihood: ``(distributions, array_module, w)`` to the distribution of the data, ``w`` of shape ``(...,
            dimension)``; serves both packages, because their distributions and arrays have the same names.
        design: predictors ``(cases, dimension)``, where there are any.
    """

    name: str
    dimension: int
    prior_scale: float
    data: np.ndarray
    likelihood: Callable[..., Any]
    design: np.ndarray | None = None

    def values(self, draws):
        """``{coordinate: (chains, draws)}`` of draws ``{"w": (chains, draws, dimension)}``."""
        return {f"w{i}": draws["w"][..., i] for i in range(self.dimension)}

    def pyro_model(self):
        import pyro
        import pyro.distributions as dist

        w = pyro.sample("w", dist.Normal(torch.zeros(self.dimension), self.prior_scale).to_event(1))
        pyro.sample("y", self.likelihood(dist, torch, w).to_event(1), obs=torch.as_tensor(self.data))

    def numpyro_model(self):
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        w = numpyro.sample("w", dist.Normal(jnp.zeros(self.dimension), self.prior_scale).to_event(1))
        numpyro.sample("y", self.likelihood(dist, jnp, w).to_event(1), obs=jnp.asarray(self.data))

    def log_density(self, w):
        """Log density of ``(..., dimension)``, but for a constant."""
        fit = self.likelihood(torch.distributions, torch, w).log_prob(torch.as_tensor(self.data)).sum(-1)
        return fit - 0.5 * w.square().sum(-1) / self.prior_scale**2


def correlated_design(rng, cases, dimension, longest, condition):
    """Predictors whose second moments have eigenvalues from longest² down by ``condition``, in random directions."""
    axes, _ = np.linalg.qr(rng.standard_normal((dimension, dimension)))
    left, _ = np.linalg.qr(rng.standard_normal((cases, dimension)))
    return longest * cases**0.5 * (left * np.geomspace(1.0, condition**-0.5, dimension)) @ axes.T


def regression(name, design, prior_scale, data, distribution):
    """The posterior of coefficients; ``distribution(dist, xp, predictor)`` is that of the data."""

    def likelihood(dist, xp, w):
        return distribution(dist, xp, w @ xp.asarray(design).T)

    return Posterior(name, design.shape[1], prior_scale, data, likelihood, design)


def linear(name, design, prior_scale, noise, rng):
    coefficients = rng.standard_normal(design.shape[1])
    data = design @ coefficients + noise * rng.standard_normal(len(design))
    return regression(name, design, prior_scale, data, lambda dist, _, mean: dist.Normal(mean, noise))


def logistic(name, design, prior_scale, coefficients, rng):
    data = (rng.random(len(design)) < 1 / (1 + np.exp(-design @ coefficients))).astype(float)
    return regression(name, design, prior_scale, data, lambda dist, _, logits: dist.Bernoulli(logits=logits))


def poisson(name, design, prior_scale, coefficients, rng):
    data = rng.poisson(np.exp(design @ coefficients)).astype(float)
    return regression(name, design, prior_scale, data, lambda dist, xp, logs: dist.Poisson(xp.exp(logs)))


def banana():
    def likelihood(dist, xp, w):
        return dist.Normal((w[..., 0] + w[..., 1] ** 2)[..., None] + xp.zeros(2), 0.4)

    return Posterior("banana", 2, 1.0, np.array([0.8, 1.1]), likelihood)


def with_intercept(rng, cases, dimension):
    return np.column_stack([np.ones(cases), rng.standard_normal((cases, dimension - 1))])


def small_posteriors():
    """Five coefficients and 100 cases, where no grid reaches, and the banana, where one does."""
    rng = np.random.default_rng(0)
    coefficients = np.array([0.5, -1.0, 0.8, 0.3, -0.4])
    return [
        logistic("logistic", with_intercept(rng, 100, 5), 2.0, coefficients, rng),
        poisson("Poisson", with_intercept(rng, 100, 5), 1.0, coefficients / 2, rng),
        banana(),
    ]


def collinear_posteriors(dimension=20, cases=200, condition=1e4):
    """A Gaussian posterior with this condition number but for its weak prior, and a logistic one with about it."""
    rng = np.random.default_rng(1)
    design = correlated_design(rng, cases, dimension, longest=5.0, condition=condition)
    weak = 100.0  # felt by no direction, so that the data alone decide on the condition number
    # Coefficients of size 1/5 along the longest axis: logits of size 1 or so.
    coefficients = rng.standard_normal(dimension) / 5
    return [
        linear("collinear linear", design, weak, 1.0, rng),
        logistic("collinear logistic", design, weak, coefficients, rng),
    ]


POSTERIORS = {posterior.name: posterior for posterior in [*small_posteriors(), *collinear_posteriors()]}
