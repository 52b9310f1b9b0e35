"""Where the second moment of PSGLD begins: at the noise of minibatches and the curvature, whatever the gradient is."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from problems.noisy_gradients import gradient_noise
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import PSGLD

ROOT_OF_EIGHT_SQUARES = math.gamma(4.5) / math.gamma(4.0) / 2
"""The mean of the root mean square of eight standard normal numbers."""


@pytest.mark.parametrize(("temperature", "factor"), [(1.0, 1.0), (0.25, 0.25), (0.0, 1.0)])
def test_at_a_mode_it_is_the_noise_and_the_curvature(temperature, factor):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([0.1, 1.0])).to_event(1))
        gradient_noise("x", x, 2.0)

    kernel = PSGLD(model, step_size=0.1, temperature=temperature, minibatches="independent", per_chain_minibatches=True)
    squares = kernel.prepare(4096, 0, {"x": torch.zeros(4096, 2)}).state.memory["x",]
    for coordinate, curvature in enumerate([100.0, 1.0]):
        assert_mean(squares[:, coordinate], 4.0 + factor * curvature * ROOT_OF_EIGHT_SQUARES)


def test_far_from_the_mass_it_is_the_squared_gradient():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    squares = PSGLD(model, step_size=0.1).prepare(8, 0, {"x": torch.full((8,), 1e3)}).state.memory["x",]
    assert torch.allclose(squares, torch.full((8, 1), 1e6, dtype=squares.dtype), rtol=1e-5)


def test_a_manifold_site_has_one():
    F = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])

    def model():
        X = pyro.sample("X", StiefelUniform(3, 2))
        pyro.factor("langevin", (F * X).sum())

    start = {"X": torch.eye(3, 2, dtype=torch.get_default_dtype()).expand(8, 3, 2)}
    squares = PSGLD(model, step_size=0.1).prepare(8, 0, start).state.memory["X",]
    assert torch.allclose(squares, torch.full((8,), 13 / 6, dtype=squares.dtype))


def test_where_the_density_is_not_finite_the_gradient_decides():
    """A potential that is infinite on one side: half of all short ways lead there."""

    def potential(sites):
        x = sites["x"]
        return torch.where(x < 0, torch.full_like(x, math.inf), 2 * x).sum()

    start = {"x": torch.zeros(8, 1)}
    squares = PSGLD(potential_fn=potential, manifolds={}, step_size=0.1).prepare(8, 0, start).state.memory["x",]
    assert squares.isfinite().all()
    assert (squares >= 4).all()
