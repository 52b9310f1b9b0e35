"""A regression and its `SVI`, which several tests of `SVI` share."""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO

from pyro_manifold.infer import SVI
from pyro_manifold.optim import RiemannianAdam


def regression(x, y, size=None, drawn=None):
    b = pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", size or len(y), subsample_size=drawn or len(y)) as rows:
        if drawn is not None:
            x, y = x[rows], y[rows]
        pyro.sample("y", dist.Normal((x * b).sum(-1), 1.0), obs=y)


def rows(count=64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return x, x.sum(-1) + torch.randn(count, generator=generator)


def svi_of(model, guide, particles=8, lr=0.03, optim=RiemannianAdam):
    return SVI(model, guide, optim({"lr": lr}), Trace_ELBO(num_particles=particles))
