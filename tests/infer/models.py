"""Models at module level, so that `spawn` can pickle them."""

import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.distributions import StiefelUniform


def concentrated(n=4, p=2, pull=4.0):
    U = pyro.sample("U", StiefelUniform(n, p))
    pyro.factor("pull", pull * U[0, 0] + 3 * U[1, 1])


def factor_model(y, n=4, p=2):
    """Every kind of support beside a Stiefel site."""
    U = pyro.sample("U", StiefelUniform(n, p))
    scales = pyro.sample("scales", dist.LogNormal(torch.zeros(p), 1.0).to_event(1))
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    with pyro.plate("rows", len(y)):
        factor = weights[..., 0, None, None] * U * scales.unsqueeze(-2)
        diagonal = (noise**2).unsqueeze(-1).expand(*noise.shape, n)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(n), factor, diagonal), obs=y)


F = torch.tensor([[3.0, 0.0], [0.0, 1.5], [0.0, 0.0]], dtype=torch.float64)


def langevin():
    """MATH: log E exp(tr FᵀX) = 1.607 under the uniform distribution, and 2.809 is the mean of tr FᵀX."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("langevin", (F.to(U) * U).sum((-2, -1)))


def linear(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 2.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
