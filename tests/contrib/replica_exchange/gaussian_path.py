"""A path on which everything is known: N(0, I₂) to precision 1 + 1/s²; L = ‖x‖²/2s² is exponential at each β."""

import pyro
import pyro.distributions as dist
import torch

from pyro_manifold.contrib.replica_exchange import BETA
from pyro_manifold.infer.mcmc.mechanics import State

SCALE = 0.1
X = ("x",)


def precision(beta):
    return 1 + beta / SCALE**2


def even_ladder(levels):
    """Precisions in equal ratios, between which swaps are rejected equally often."""
    ratios = torch.linspace(0, 1, levels)
    return (precision(1.0) ** ratios - 1) * SCALE**2


def rejection(low, high):
    """Of a swap between two precisions: of two exponential numbers."""
    return (high - low) / (high + low)


def model():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("likelihood", -x.square().sum(-1) / (2 * SCALE**2))


def potential(position):
    """As a traced density gives it."""
    x, beta = position[X], position[BETA].squeeze(-1)
    squares = x.square().sum(-1)
    gradient = {X: x * precision(beta).unsqueeze(-1), BETA: (squares / (2 * SCALE**2)).unsqueeze(-1)}
    return squares * precision(beta) / 2, gradient


def draws(ladder, groups):
    """Exact ones at each level, as a state of ``levels · groups`` rows."""
    beta = ladder.repeat_interleave(groups).unsqueeze(-1)
    position = {BETA: beta, X: torch.randn(len(beta), 2) / precision(beta).sqrt()}
    return State(position, {}, *potential(position))
