"""The robot arm of MacKay (1992) and the Bayesian neural network that learns it.

Data, model and settings are those of Zlochin & Baram, Manifold stochastic dynamics for Bayesian learning, Neural
Computation 13, 2001. Simulated data of the same law are for what does not depend on the numbers: costs and tests.
"""

from typing import NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.optimize import least_squares

from examples.datasets import robot_arm

NOISE = 0.05
"""Standard deviation σ of the noise; β = 1/σ² = 400."""
HIDDEN = 8
SMALL = 0.1
"""Standard deviation of small weights, where the prior has 1."""
FIRST_JOINT = (0.453, 1.932)
"""x₁ is uniform on this interval and its mirror image."""
SECOND_JOINT = (0.534, 3.142)
SHAPES = {
    "hidden_bias": (HIDDEN,), "hidden_to_output": (HIDDEN, 2), "input_to_hidden": (2, HIDDEN), "output_bias": (2,),
}  # fmt: skip
"""Sites and their shapes, in the order of a flat vector of all 42 parameters."""


class Arm(NamedTuple):
    """Angles x and noisy positions y of the arm's end, ``(cases, 2)`` each."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def position(x):
    """End of the arm: two joints of lengths 2.0 and 1.3, the second bent by x₂ against the first."""
    first, both = x[..., 0], x.sum(-1)
    return torch.stack([2.0 * first.cos() + 1.3 * both.cos(), 2.0 * first.sin() + 1.3 * both.sin()], -1)


def original():
    """MacKay's 200 training and 400 test cases."""
    return Arm(*(torch.as_tensor(values) for values in robot_arm()))


def simulate(seed, train=200, test=400):
    """Training and test cases from MacKay's distribution."""
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


def small_weights(runs, seed):
    """A tenth of draws of the prior, one set a run, ``{site: (runs, *shape)}``."""
    generator = np.random.default_rng([seed, 1])  # another stream than the data's
    return {name: SMALL * torch.as_tensor(generator.standard_normal((runs, *shape))) for name, shape in SHAPES.items()}


def log_density(vectors, arm):
    """Log of prior times likelihood, constants included, ``(...,)`` of flat weights ``(..., 42)``."""
    vectors = torch.as_tensor(vectors, dtype=torch.get_default_dtype())
    likelihood = dist.Normal(network(unflatten(vectors), arm.x_train), NOISE).log_prob(arm.y_train).sum((-2, -1))
    return likelihood + dist.Normal(torch.zeros(()), 1.0).log_prob(vectors).sum(-1)


def climbed(vector, arm, **options):
    """Point at which a trust-region method arrives on its way from flat weights to a mode, ``(42,)``."""

    def residuals(vector):
        negative_log_likelihood = (network(unflatten(vector), arm.x_train) - arm.y_train) / NOISE
        return np.concatenate([negative_log_likelihood.flatten().numpy(), vector])

    return torch.as_tensor(least_squares(residuals, np.asarray(vector, dtype=np.float64), **options).x)


def descended(weights, arm, evaluations=100):
    """The weights after some trust-region steps towards a mode of the posterior, each run its own.

    From small weights alone, runs of all samplers get stuck on the way, at steps that are right later.
    """
    ends = [climbed(vector, arm, max_nfev=evaluations) for vector in flatten(weights, 1)]
    return unflatten(torch.stack(ends))


def flatten(sites, leading):
    """Sites ``(*leading, *shape)`` with a number of leading dimensions as one array ``(*leading, 42)``."""
    return torch.cat([sites[name].flatten(leading) for name in SHAPES], -1)


def unflatten(vectors):
    """The sites of flat vectors ``(..., 42)``."""
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    parts = torch.as_tensor(vectors, dtype=torch.get_default_dtype()).split(sizes, -1)
    return {name: part.reshape(*part.shape[:-1], *SHAPES[name]) for name, part in zip(SHAPES, parts, strict=True)}
