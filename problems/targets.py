"""Targets with known answers, computed by NumPy and SciPy without code of the package."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pyro
import pyro.distributions as dist
import scipy.special
import scipy.stats
import torch

from problems.importance import haar, weighted_mean
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform


@dataclass(frozen=True)
class Langevin:
    """Matrix Langevin distribution with the mean of tr FᵀX."""

    name: str
    F: np.ndarray
    truth: str

    def model(self, chart="polar"):
        F = torch.as_tensor(self.F)
        n, p = F.shape

        def langevin():
            X = pyro.sample("X", StiefelUniform(n, p, chart=chart))
            pyro.factor("langevin", (F * X).sum((-2, -1)))

        return langevin

    def distribution(self):
        return MatrixLangevin(torch.as_tensor(self.F))

    def statistic(self, samples):
        return (torch.as_tensor(self.F).to(samples) * samples).sum((-2, -1))

    def expectation(self):
        """Return ``(mean, standard error)`` of tr FᵀX."""
        return _TRUTHS[self.truth](self.name)


def bessel_truth(name):
    """Return the exact mean for p = 1, κ I_{n/2}(κ) / I_{n/2-1}(κ)."""
    F = LANGEVIN[name].F
    n, kappa = len(F), np.linalg.norm(F)
    return kappa * scipy.special.ive(n / 2, kappa) / scipy.special.ive(n / 2 - 1, kappa), 0.0


@cache
def importance_truth(name):
    """Estimate the mean by importance sampling from the uniform distribution, for targets of low concentration."""
    F = LANGEVIN[name].F
    rng = np.random.default_rng(1)
    values = np.concatenate([(F * haar(rng, 100_000, *F.shape)).sum((-2, -1)) for _ in range(10)])
    return weighted_mean(values, values)


@cache
def sequential_truth(name):
    """Estimate the mean by importance sampling from SciPy's von Mises–Fisher, column by column, if concentrated."""
    F, count = LANGEVIN[name].F, 4000
    n, p = F.shape
    assert np.allclose(F.T @ F, np.diag(np.diag(F.T @ F))), "needs orthogonal columns"
    rng = np.random.default_rng(2)
    values, log_weights = np.zeros(count), np.zeros(count)
    for i in range(count):
        X = np.zeros((n, 0))
        for k in range(p):
            complement = scipy.linalg.null_space(X.T) if k else np.eye(n)
            parameter = complement.T @ F[:, k]
            kappa, order = np.linalg.norm(parameter), (n - k) / 2 - 1
            column = complement @ scipy.stats.vonmises_fisher(parameter / kappa, kappa).rvs(1, random_state=rng)[0]
            log_weights[i] += np.log(scipy.special.ive(order, kappa)) + kappa - order * np.log(kappa)
            X = np.column_stack([X, column])
        values[i] = (F * X).sum()
    return weighted_mean(values, log_weights)


_TRUTHS = {"bessel": bessel_truth, "importance": importance_truth, "sequential": sequential_truth}


def _diagonal(n, *singular_values):
    F = np.zeros((n, len(singular_values)))
    np.fill_diagonal(F, singular_values)
    return F


def _rotated(n, *singular_values):
    rng = np.random.default_rng(0)
    p = len(singular_values)
    return haar(rng, 1, n, p)[0] @ np.diag(singular_values) @ haar(rng, 1, p, p)[0]


LANGEVIN = {
    target.name: target
    for target in [
        Langevin("V(3,2)", _diagonal(3, 3.0, 1.5), "importance"),
        Langevin("sphere", _diagonal(3, 5.0), "bessel"),
        Langevin("sphere in 20 dimensions", _diagonal(20, 30.0), "bessel"),
        Langevin("V(4,3), full F", _rotated(4, 3.0, 2.0, 1.0), "importance"),
        Langevin("V(10,4)", _rotated(10, 4.0, 3.0, 2.0, 1.0), "importance"),
        Langevin("V(12,2), concentrated", _diagonal(12, 300.0, 200.0), "sequential"),
    ]
}


class NoisyMatrix:
    """Two Stiefel sites and a scale, with observations of the matrix s·U diag(1, ½) Vᵀ."""

    OBSERVED = 1.5 * np.array([[0.9, 0.1, -0.2], [0.2, 0.5, 0.1], [-0.1, 0.3, 0.2], [0.0, -0.1, 0.1]])
    WEIGHTS = np.array([1.0, 0.5])
    NOISE = 0.5

    @classmethod
    def model(cls, chart="polar"):
        observed, weights = torch.as_tensor(cls.OBSERVED), torch.as_tensor(cls.WEIGHTS)

        def noisy_matrix():
            U = pyro.sample("U", StiefelUniform(4, 2, chart=chart))
            V = pyro.sample("V", StiefelUniform(3, 2, chart=chart))
            scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
            mean = (U * weights) @ V.mT * scale
            pyro.sample("y", dist.Normal(mean, cls.NOISE).to_event(2), obs=observed)

        return noisy_matrix

    @classmethod
    def statistics(cls, samples):
        """Return functions of the draws that are invariant to signs of columns."""
        product = (samples["U"] * torch.as_tensor(cls.WEIGHTS)) @ samples["V"].mT
        return {"scale": samples["scale"], "fit": (product * torch.as_tensor(cls.OBSERVED)).sum((-2, -1))}

    @staticmethod
    @cache
    def expectations():
        """Return ``{statistic: (mean, standard error)}``, by importance sampling from the prior."""
        rng, cls = np.random.default_rng(3), NoisyMatrix
        scale, fit, log_weight = [], [], []
        for _ in range(10):
            U, V = haar(rng, 100_000, 4, 2), haar(rng, 100_000, 3, 2)
            s = np.exp(0.5 * rng.standard_normal(100_000))
            product = (U * cls.WEIGHTS) @ V.swapaxes(-1, -2)
            scale.append(s)
            fit.append((product * cls.OBSERVED).sum((-2, -1)))
            residual = cls.OBSERVED - s[:, None, None] * product
            log_weight.append(-0.5 * (residual**2).sum((-2, -1)) / cls.NOISE**2)
        weights = np.concatenate(log_weight)
        return {
            "scale": weighted_mean(np.concatenate(scale), weights),
            "fit": weighted_mean(np.concatenate(fit), weights),
        }
