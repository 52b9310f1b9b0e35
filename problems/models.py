"""Typical Pyro models with simulated data: `MODELS[name](seed)` returns a model without arguments.

Data and sizes depend on the seed, so that each seed is another posterior; the dtype is torch's default.
"""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_manifold.distributions import MatrixLangevin, StiefelUniform

Model = Callable[[], object]


def orthonormal(n: int, p: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, p))[0]


def principal_components(noise_scale: float, size: float) -> Callable[[int], Model]:
    """Bayesian PCA; ``size`` is the unit of the data."""

    def with_data(seed: int) -> Model:
        torch.manual_seed(seed)
        n, rank, rows = 5 + seed % 7, 1 + seed % 3, 50 * (1 + seed % 4)
        scores = torch.randn(rows, rank) * torch.linspace(4.0, 1.0, rank)
        y = size * (scores @ orthonormal(n, rank).T + noise_scale * torch.randn(rows, n))

        def model() -> None:
            U = pyro.sample("U", StiefelUniform(n, rank))
            scales = pyro.sample("scales", dist.HalfNormal(5.0 * size).expand([rank]).to_event(1))
            noise = pyro.sample("noise", dist.HalfNormal(size))
            with pyro.plate("rows", rows):
                covariance = U * scales, noise**2 * torch.ones(n)
                pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), *covariance), obs=y)

        return model

    return with_data


def factor_analysis(seed: int) -> Model:
    """Loadings, a variance for each row, a mean, and the scores as sites."""
    torch.manual_seed(seed)
    n, rank, rows = 6 + seed % 5, 2, 40 + 10 * (seed % 5)
    y = torch.randn(rows, rank) @ (3.0 * orthonormal(n, rank).T) + torch.randn(rows, n) * torch.linspace(0.1, 2.0, n)

    def model() -> None:
        U = pyro.sample("U", StiefelUniform(n, rank))
        scales = pyro.sample("scales", dist.LogNormal(0.0, 2.0).expand([rank]).to_event(1))
        noise = pyro.sample("noise", dist.InverseGamma(2.0, 1.0).expand([n]).to_event(1))
        mean = pyro.sample("mean", dist.Normal(0.0, 100.0).expand([n]).to_event(1))
        with pyro.plate("rows", rows):
            scores = pyro.sample("scores", dist.Normal(0.0, 1.0).expand([rank]).to_event(1))
            pyro.sample("y", dist.Normal(mean + scores * scales @ U.mT, noise.sqrt()).to_event(1), obs=y)

    return model


def network(seed: int) -> Model:
    """The eigenmodel of links between nodes."""
    torch.manual_seed(seed)
    n = 15 + seed % 10
    U = orthonormal(n, 2)
    logits = U * torch.tensor([20.0, -15.0]) @ U.T - 1
    rows, columns = torch.triu_indices(n, n, 1)
    links = torch.bernoulli(torch.sigmoid(logits[rows, columns]))

    def model() -> None:
        U = pyro.sample("U", StiefelUniform(n, 2))
        values = pyro.sample("values", dist.Normal(0.0, n**0.5 * 4).expand([2]).to_event(1))
        level = pyro.sample("level", dist.Normal(0.0, 10.0))
        pair = ((U * values) @ U.mT)[..., rows, columns]
        pyro.sample("links", dist.Bernoulli(logits=level + pair).to_event(1), obs=links)

    return model


def hierarchy(seed: int) -> Model:
    """Levels of groups around a common level, in the centred parametrisation, with a large offset."""
    torch.manual_seed(seed)
    groups, rows = 4 + seed % 5, 60
    group = torch.randint(groups, (rows,))
    y = 1000.0 + 10 * torch.randn(groups)[group] + torch.randn(rows)

    def model() -> None:
        level = pyro.sample("level", dist.Normal(0.0, 2000.0))
        spread = pyro.sample("spread", dist.HalfCauchy(5.0))
        with pyro.plate("groups", groups):
            levels = pyro.sample("levels", dist.Normal(level, spread))
        noise = pyro.sample("noise", dist.HalfNormal(3.0))
        with pyro.plate("rows", rows):
            pyro.sample("y", dist.Normal(levels[group], noise), obs=y)

    return model


def regression(seed: int) -> Model:
    """Logistic regression on attributes of different units, with a horseshoe."""
    torch.manual_seed(seed)
    rows, attributes = 80, 4 + seed % 6
    x = torch.randn(rows, attributes) * torch.logspace(-2, 3, attributes)
    y = (x[:, 0] * 100 + torch.randn(rows) > 0).float()

    def model() -> None:
        overall = pyro.sample("overall", dist.HalfCauchy(1.0))
        own = pyro.sample("own", dist.HalfCauchy(torch.ones(attributes)).to_event(1))
        slopes = pyro.sample("slopes", dist.Normal(torch.zeros(attributes), overall * own).to_event(1))
        with pyro.plate("rows", rows):
            pyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y)

    return model


def gaussian_process(seed: int) -> Model:
    """Gaussian process with an ill-conditioned covariance."""
    torch.manual_seed(seed)
    x = torch.linspace(0, 10, 20 + seed % 10)
    y = torch.sin(x) + 0.1 * torch.randn(len(x))

    def model() -> None:
        length = pyro.sample("length", dist.LogNormal(0.0, 1.0))
        size = pyro.sample("size", dist.LogNormal(0.0, 1.0))
        noise = pyro.sample("noise", dist.LogNormal(-2.0, 1.0))
        squares = (x[:, None] - x).square()
        covariance = size**2 * torch.exp(-squares / (2 * length**2)) + (noise**2 + 1e-4) * torch.eye(len(x))
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)

    return model


def orientations(seed: int) -> Model:
    """Matrix Langevin observations around an unknown orthonormal matrix."""
    torch.manual_seed(seed)
    p = 1 + seed % 2
    X = MatrixLangevin(10 * orthonormal(3, p)).sample((30,))

    def model() -> None:
        F = pyro.sample("F", dist.Normal(0.0, 10.0).expand([3, p]).to_event(2))
        with pyro.plate("rows", len(X)):
            pyro.sample("X", MatrixLangevin(F), obs=X)

    return model


def mixture(seed: int) -> Model:
    """Mixture of two components, with assignments summed out."""
    torch.manual_seed(seed)
    y = torch.cat([torch.randn(30) - 3, 0.3 * torch.randn(20) + 4])

    def model() -> None:
        share = pyro.sample("share", dist.Dirichlet(torch.ones(2)))
        centre = pyro.sample("centre", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0).expand([2]).to_event(1))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Categorical(share), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(centre[z], scale[z]), obs=y)

    return model


def low_rank_regression(seed: int) -> Model:
    """Regression with coefficients U diag(s) Vᵀ between inputs and outputs."""
    torch.manual_seed(seed)
    n, m, rows = 8 + seed % 4, 5, 100
    x = torch.randn(rows, n)
    y = x @ (orthonormal(n, 2) * torch.tensor([30.0, 10.0])) @ orthonormal(m, 2).T + 0.05 * torch.randn(rows, m)

    def model() -> None:
        U = pyro.sample("U", StiefelUniform(n, 2))
        V = pyro.sample("V", StiefelUniform(m, 2))
        s = pyro.sample("s", dist.HalfNormal(20.0).expand([2]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("rows", rows):
            pyro.sample("y", dist.Normal(x @ (U * s) @ V.mT, noise).to_event(1), obs=y)

    return model


def counts(seed: int) -> Model:
    """Poisson counts whose rate is exponential in the sites, overdispersed."""
    torch.manual_seed(seed)
    x = torch.randn(50, 3)
    y = torch.poisson(torch.exp(2 + x @ torch.tensor([1.0, -0.5, 0.2])))

    def model() -> None:
        level = pyro.sample("level", dist.Normal(0.0, 5.0))
        slopes = pyro.sample("slopes", dist.Normal(0.0, 5.0).expand([3]).to_event(1))
        shape = pyro.sample("shape", dist.Gamma(1.0, 0.1))
        with pyro.plate("rows", len(y)):
            rate = torch.exp(level + x @ slopes)
            pyro.sample("y", dist.GammaPoisson(shape, shape / rate), obs=y)

    return model


MODELS: dict[str, Callable[[int], Model]] = {
    "principal components": principal_components(0.5, 1.0),
    "principal components, little noise": principal_components(0.005, 1.0),
    "principal components, large unit": principal_components(0.5, 1000.0),
    "principal components, small unit": principal_components(0.5, 0.001),
    "factor analysis": factor_analysis,
    "network": network,
    "hierarchy": hierarchy,
    "regression": regression,
    "gaussian process": gaussian_process,
    "orientations": orientations,
    "mixture": mixture,
    "low-rank regression": low_rank_regression,
    "counts": counts,
}
