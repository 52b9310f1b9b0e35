"""Principal components as a model, and two sets of data for it."""

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.distributions import StiefelUniform


def principal_components(y, rank):
    n = y.shape[-1]
    U = pyro.sample("U", StiefelUniform(n, rank))
    scales = pyro.sample("scales", dist.HalfNormal(5.0).expand([rank]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        covariance = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(n)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), *covariance), obs=y)


def weather():
    """35 curves of 365 days: a common year, a size of the winter for each station, and the noise of a day."""
    rng = np.random.default_rng(0)
    day = np.arange(365) * 2 * np.pi / 365
    winter = 8 * np.cos(day - 0.3) + 2 * np.cos(2 * day)
    curves = rng.normal(size=(35, 1)) * winter + 3 * rng.normal(size=(35, 1)) + rng.normal(size=(35, 365))
    return torch.as_tensor(curves - curves.mean(0))


def attributes():
    from sklearn.datasets import load_breast_cancer

    x = load_breast_cancer().data[:, :10]
    return torch.as_tensor((x - x.mean(0)) / x.std(0))
