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
