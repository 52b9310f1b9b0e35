"""Moments of the posteriors without MSD: by quadrature, by importance sampling, by long runs of NumPyro's NUTS."""

from typing import NamedTuple

import numpy as np
import torch

from benchmarks.peers import numpyro

DEGREES_OF_FREEDOM = 10.0


class Truth(NamedTuple):
    """Mean and covariance of a posterior, and the standard errors of both."""

    mean: np.ndarray
    covariance: np.ndarray
    mean_error: np.ndarray
    covariance_error: np.ndarray

    @property
    def deviation(self):
        """Standard deviations of the coordinates."""
        return np.sqrt(self.covariance.diagonal())

    def principal_axes(self):
        """Variances in falling order, and their axes as columns."""
        variances, axes = np.linalg.eigh(self.covariance)
        return variances[::-1], axes[:, ::-1]

    @property
    def condition(self):
        """Condition number of the covariance."""
        variances, _ = self.principal_axes()
        return variances[0] / variances[-1]


def exact(mean, covariance):
    return Truth(mean, covariance, np.zeros_like(mean), np.zeros_like(covariance))


def truth_of(posterior, draws=1_000_000):
    """The closed form of a linear model, a grid in two dimensions, else importance sampling."""
    if posterior.name.endswith("linear"):
        return gaussian(posterior)
    return quadrature(posterior) if posterior.dimension == 2 else importance(posterior, draws)


def gaussian(posterior):
    """The posterior of a linear model, whose log-density is a quadratic: its derivatives at 0 say all."""
    gradient, precision = _derivatives(posterior, np.zeros(posterior.dimension))
    covariance = np.linalg.inv(precision)
    return exact(covariance @ gradient, covariance)


def quadrature(posterior, half_width=7.0, points=1401):
    """Moments in two dimensions, on a grid."""
    axis = torch.linspace(-half_width, half_width, points, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weights = torch.softmax(posterior.log_density(grid), 0).numpy()
    mean = weights @ grid.numpy()
    centred = grid.numpy() - mean
    return exact(mean, (centred * weights[:, None]).T @ centred)


def importance(posterior, draws, batch=20_000):
    """Self-normalised importance sampling from Student's t about the mode, standard errors by the delta method."""
    mode, precision = mode_of(posterior)
    rng = np.random.default_rng(0)
    mean = mode
    # Twice: the second moments of the second pass are about the mean of the first.
    for size in (draws // 10, draws):
        moments, errors = _weighted_moments(posterior, mode, precision, mean, rng, max(size // batch, 1), batch)
        mean = mean + moments[: posterior.dimension]
    d = posterior.dimension
    return Truth(mean, moments[d:].reshape(d, d), errors[:d], errors[d:].reshape(d, d))


def _weighted_moments(posterior, mode, precision, centre, rng, batches, batch):
    """Weighted means of w - centre and its outer product, ``(d + d²,)``, and their standard errors."""
    factor, dimension = np.linalg.cholesky(precision), posterior.dimension
    highest = posterior.log_density(torch.as_tensor(mode)).numpy()
    sums = 0.0  # of weights, of weighted values, of squared weights with powers 0, 1, 2 of the values
    for _ in range(batches):
        normal = rng.standard_normal((batch, dimension))
        scaled = normal / np.sqrt(rng.chisquare(DEGREES_OF_FREEDOM, (batch, 1)) / DEGREES_OF_FREEDOM)
        w = mode + np.linalg.solve(factor.T, scaled.T).T
        power = (DEGREES_OF_FREEDOM + dimension) / 2
        log_proposal = -power * np.log1p((scaled**2).sum(-1) / DEGREES_OF_FREEDOM)
        weights = np.exp(posterior.log_density(torch.as_tensor(w)).numpy() - highest - log_proposal)
        centred = w - centre
        values = np.hstack([centred, (centred[:, :, None] * centred[:, None, :]).reshape(batch, -1)])
        squares, ones = weights**2, np.ones_like(values[0])
        sums = sums + np.stack([
            *(weights.sum() * ones, weights @ values),
            *(squares.sum() * ones, squares @ values, squares @ values**2),
        ])  # fmt: skip
    total, first, *second = sums
    mean = first / total
    return mean, np.sqrt(second[2] - 2 * mean * second[1] + mean**2 * second[0]) / total


def mode_of(posterior, tolerance=1e-9):
    """The mode of a log-concave posterior and the precision there, by Newton's method."""
    w = np.zeros(posterior.dimension)
    for _ in range(100):
        gradient, precision = _derivatives(posterior, w)
        step = np.linalg.solve(precision, gradient)
        w = w + step * min(1.0, 2.0 / np.sqrt(gradient @ step))  # no further than two standard deviations
        if gradient @ step < tolerance:
            return w, precision
    raise ValueError(f"{posterior.name}: Newton's method found no mode.")


def _derivatives(posterior, w):
    """Gradient of the log-density, and minus its Hessian."""
    w = torch.as_tensor(w)
    gradient = torch.func.jacrev(posterior.log_density)
    return gradient(w).numpy(), -torch.func.hessian(posterior.log_density)(w).numpy()


def long_nuts(posterior, chains=4, warmup=1000, draws=25_000):
    """Draws ``(chains, draws, dimension)`` of NumPyro's NUTS."""
    options = {"chain_method": "sequential", "target_accept_prob": 0.95}
    return numpyro(posterior, chains=chains, warmup=warmup, draws=draws, **options).draws["w"]
