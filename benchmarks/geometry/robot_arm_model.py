"""The robot arm of MacKay (1992) and the Bayesian neural network that learns it.

Data, model and settings are those of Zlochin & Baram, Manifold stochastic dynamics for Bayesian learning, Neural
Computation 13, 2001. MacKay's own file is not used: the data are simulated from its law, with a fixed seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch

NOISE = 0.05
"""Standard deviation σ of the noise; β = 1/σ² = 400."""
HIDDEN = 8
FIRST_JOINT = (0.453, 1.932)
"""x₁ is uniform on this interval and its mirror image."""
SECOND_JOINT = (0.534, 3.142)
SHAPES = {
    "hidden_bias": (HIDDEN,),
    "hidden_to_output": (HIDDEN, 2),
    "input_to_hidden": (2, HIDDEN),
    "output_bias": (2,),
}
"""Sites and their shapes, in the order of a flat vector of all 42 parameters."""


class Arm(NamedTuple):
    """Angles x and noisy positions y of the arm's end, ``(cases, 2)`` each."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def position(x):
    """Where the arm ends: two joints of lengths 2.0 and 1.3, the second bent by x₂ against the first."""
    first, both = x[..., 0], x.sum(-1)
    return torch.stack([2.0 * first.cos() + 1.3 * both.cos(), 2.0 * first.sin() + 1.3 * both.sin()], -1)


def simulate(seed, train=200, test=400):
    """Training and test cases from MacKay's law."""
    generator = np.random.default_rng(seed)
    cases = train + test
    first = generator.choice([-1.0, 1.0], cases) * generator.uniform(*FIRST_JOINT, cases)
    x = torch.as_tensor(np.column_stack([first, generator.uniform(*SECOND_JOINT, cases)]))
    y = position(x) + NOISE * torch.as_tensor(generator.standard_normal((cases, 2)))
    return Arm(x[:train], y[:train], x[train:], y[train:])


def network(sites, x):
    """Predictions ``(..., cases, 2)`` of a 2-8-2 tanh network, for sites with any leading dimensions."""
    hidden = torch.tanh(x @ sites["input_to_hidden"] + sites["hidden_bias"].unsqueeze(-2))
    return hidden @ sites["hidden_to_output"] + sites["output_bias"].unsqueeze(-2)


def model(x, y):
    """All weights and biases N(0, 1), that is α = 1; outputs with the noise that the data have."""
    sites = {name: pyro.sample(name, standard_normal(shape)) for name, shape in SHAPES.items()}
    pyro.sample("y", dist.Normal(network(sites, x), NOISE).to_event(2), obs=y)


def standard_normal(shape):
    return dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape))


def starts(runs, seed, scale=0.1):
    """Small weights, a tenth of draws of the prior, one set a run: a far start is too hard for a fixed step."""
    generator = np.random.default_rng([seed, 1])  # another stream than the data's
    return {name: scale * torch.as_tensor(generator.standard_normal((runs, *shape))) for name, shape in SHAPES.items()}
