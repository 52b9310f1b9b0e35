"""Matrix Langevin data on V(3,2) whose parameter is unknown: one for all, one for each group, a mixture of two."""

import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.distributions import MatrixLangevin

MODES = torch.tensor(
    [[[8.0, 0], [0, 4], [0, 0]], [[0, 0], [8, 0], [0, 4]], [[0, 4], [0, 0], [8, 0]], [[0, 3], [3, 0], [0, 0]]]
)


def parameters(count):
    return pyro.sample("F", dist.Normal(0.0, 5.0).expand([count, 3, 2]).to_event(3))


def plate(orientations):
    F = pyro.sample("F", dist.Normal(0.0, 5.0).expand([1, 3, 2]).to_event(3))
    with pyro.plate("groups", 1, dim=-1), pyro.plate("data", len(orientations), dim=-2):
        pyro.sample("X", MatrixLangevin(F), obs=orientations.unsqueeze(1))


def grouped(orientations, group):
    F = parameters(len(MODES))
    with pyro.plate("data", len(orientations)):
        pyro.sample("X", MatrixLangevin(F[group]), obs=orientations)


def mixture(orientations):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    F = parameters(2)
    with pyro.plate("data", len(orientations)):
        z = pyro.sample("z", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("X", MatrixLangevin(F[z]), obs=orientations)


def data(count, components):
    group = torch.arange(count) % components
    return MatrixLangevin(MODES.double()[group]).sample(), group
