"""k̂ of guides, against shapes that are known: of N(0, 1) by draws of N(0, s²), k = 1 - s² for s < 1.

For s > 1 weights have a largest value, from which they differ by squares of normal numbers: k = -2.
"""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import guide_khat
from pyro_manifold.distributions import StiefelUniform


def model():
    pyro.sample("x", dist.Normal(torch.tensor(0.0), 1.0))


def guide(scale):
    return lambda: pyro.sample("x", dist.Normal(torch.tensor(0.0), scale))


@pytest.mark.parametrize(("square", "low", "high"), [(0.05, 0.7, 1.3), (0.5, 0.2, 0.7), (1.5, -2.5, -1.0)])
def test_shapes_are_those_of_normal_tails(square, low, high):
    pyro.set_rng_seed(0)
    assert low < guide_khat(model, guide(square**0.5), num_draws=1000) < high


def test_data_and_matrices():
    def with_data(y):
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("y", dist.Normal(U, 1.0).to_event(2), obs=y)

    pyro.set_rng_seed(0)
    assert guide_khat(with_data, lambda y: pyro.sample("U", StiefelUniform(3, 2)), torch.eye(3, 2)) < 0.7


def test_bad_input_is_a_sentence():
    with pytest.raises(ValueError, match="num_draws=10"):
        guide_khat(model, guide(1.0), num_draws=10)
    with pytest.raises(ValueError, match="not finite at any draw"):
        guide_khat(lambda: pyro.sample("x", dist.HalfNormal(1.0)), lambda: pyro.sample("x", dist.Uniform(-2.0, -1.0)))
