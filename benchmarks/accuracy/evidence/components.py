r"""The evidence of Bayesian PCA without chains or particles: importance sampling over a triangular root.

With normal loadings $W = LQ$, L lower triangular with a positive diagonal and Q orthogonal, the likelihood
depends on L alone, whose entries are independent: normal below the diagonal, chi with p, p - 1, … degrees of freedom on
it. Wide multivariate t distributions about the modes of (L, log diagonal, log noise) cover that posterior, which is not
the case in W. There are several: where the last entry of the diagonal is small, the entries below it fit as well with
the other sign.
"""

import math

import numpy as np
import scipy.optimize
import scipy.stats

DEGREES = 3
WIDTH = 3.0
"""Scales of covariances, by those of the modes: narrower proposals miss what lies between them."""
_STARTS = 30
_SAME = 0.05
_LOWEST = 6.0  # nats: a mode so much lower counts for nothing
_PART = 20_000


def log_density(values, y, rank):
    """Log densities of prior and likelihood at ``(points, d)``: entries below the diagonal, log diagonal, log noise."""
    n, below = y.shape[1], np.tril_indices(y.shape[1], -1, rank)
    count = len(below[0])
    logs, noise = values[:, count:-1], values[:, -1]
    L = np.zeros((len(values), n, rank))
    L[:, below[0], below[1]] = values[:, :count]
    L[:, np.arange(rank), np.arange(rank)] = np.exp(logs)
    prior = scipy.stats.norm.logpdf(values[:, :count]).sum(1)
    prior += (scipy.stats.chi(rank - np.arange(rank)).logpdf(np.exp(logs)) + logs).sum(1)
    prior += scipy.stats.halfnorm.logpdf(np.exp(noise)) + noise
    covariance = L @ L.transpose(0, 2, 1) + np.exp(2 * noise)[:, None, None] * np.eye(n)
    negative_log_likelihood = np.trace(np.linalg.solve(covariance, y.T @ y), axis1=1, axis2=2)
    constant = n * math.log(2 * math.pi)
    return prior - (len(y) * (constant + np.linalg.slogdet(covariance)[1]) + negative_log_likelihood) / 2


def log_evidence(y, rank, draws, seed=0):
    """Log evidence and its standard error."""
    random = np.random.default_rng(seed)
    proposals = [_about(mode, y, rank, random) for mode in modes(y, rank, random)]
    log_weights = []
    for proposal in proposals * math.ceil(draws / (_PART * len(proposals))):  # equally often, as their mixture has them
        points = proposal.rvs(_PART)
        log_proposals = np.logaddexp.reduce([each.logpdf(points) for each in proposals]) - math.log(len(proposals))
        log_weights.append(log_density(points, y, rank) - log_proposals)
    log_weights = np.concatenate(log_weights)
    weights = np.exp(log_weights - log_weights.max())
    return (
        float(np.log(weights.mean()) + log_weights.max()),
        float(weights.std() / weights.mean() / len(weights) ** 0.5),
    )


def modes(y, rank, random):
    """The ends of descents from random points, the lowest first, without copies and those that are much higher."""
    d = len(np.tril_indices(y.shape[1], -1, rank)[0]) + rank + 1

    def energy(v):
        return -float(log_density(v[None], y, rank)[0])

    ends = [scipy.optimize.minimize(energy, random.normal(size=d)) for _ in range(_STARTS)]
    finite = sorted((end for end in ends if np.isfinite(end.fun)), key=lambda end: end.fun)
    found = []
    for end in finite:
        near = any(np.abs(end.x - other).max() < _SAME for other in found)
        if not near and end.fun < finite[0].fun + _LOWEST:
            found.append(end.x)
    return found


def _about(mode, y, rank, random):
    """A wide t distribution about a mode."""
    covariance = np.linalg.inv(_hessian(mode, y, rank))
    return scipy.stats.multivariate_t(mode, WIDTH * (covariance + covariance.T) / 2, df=DEGREES, seed=random)


def _hessian(x, y, rank, step=1e-3):
    """Second derivatives by second differences, all points at once."""
    d = len(x)
    shifts = step * np.eye(d)
    pairs = [(i, j) for i in range(d) for j in range(d)]
    signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
    points = np.array([x + a * shifts[i] + b * shifts[j] for i, j in pairs for a, b in signs])
    values = -log_density(points, y, rank).reshape(d, d, 4)
    return (values[..., 0] - values[..., 1] - values[..., 2] + values[..., 3]) / (4 * step**2)
