"""Positive numbers in decreasing order: their density, their draws and the way to them from unconstrained space."""

import math

import pyro
import pytest
import torch
from torch.distributions import HalfNormal, biject_to, transform_to

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import OrderedHalfNormal
from pyro_manifold.infer import MCMC, OHMC


def test_the_density_is_that_of_all_orders_together():
    value = torch.rand(5, 3).sort(-1, descending=True).values
    expected = HalfNormal(2.0).log_prob(value).sum(-1) + math.log(6)
    torch.testing.assert_close(OrderedHalfNormal(3, 2.0).log_prob(value), expected)


def test_the_density_integrates_to_one():
    step = 0.01
    grid = torch.arange(step / 2, 6, step)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    density = OrderedHalfNormal(2, validate_args=False).log_prob(torch.stack([first, second], -1)).exp()
    inside = (first > second).double() + 0.5 * (first == second).double()  # the diagonal halves its cells
    assert float((density * inside).sum() * step**2) == pytest.approx(1, abs=1e-4)


def test_draws_are_decreasing_with_batches_and_gradients():
    scale = torch.tensor([[1.0], [10.0]], requires_grad=True)
    distribution = OrderedHalfNormal(3, scale).expand((2, 4))
    draws = distribution.rsample((5,))
    assert draws.shape == (5, 2, 4, 3)
    assert constraints.positive_decreasing_vector.check(draws).all()
    assert distribution.log_prob(draws).shape == (5, 2, 4)
    draws.sum().backward()
    assert (scale.grad > 0).all()
    for dtype in (torch.float32, torch.float64):
        assert OrderedHalfNormal(3, torch.tensor(1.0, dtype=dtype)).sample().dtype == dtype


def test_the_transform_inverts_and_knows_its_jacobian():
    support = OrderedHalfNormal(4).support
    for registry in (biject_to, transform_to):
        transform, x = registry(support), torch.randn(4)
        y = transform(x)
        assert support.check(y)
        torch.testing.assert_close(transform.inv(y), x)
        jacobian = torch.autograd.functional.jacobian(transform, x)
        torch.testing.assert_close(transform.log_abs_det_jacobian(x, y), torch.linalg.slogdet(jacobian).logabsdet)


def test_ohmc_draws_from_it_through_the_transform():
    mcmc = MCMC(OHMC(lambda: pyro.sample("s", OrderedHalfNormal(3))), 300, 200, num_chains=16, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)["s"]
    assert constraints.positive_decreasing_vector.check(draws).all()
    exact = torch.randn(100_000, 3).abs().sort(-1, descending=True).values
    for k in range(3):
        assert_mean(draws[..., k], exact[:, k].mean(), float(exact[:, k].std()) / len(exact) ** 0.5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="size=0, expected a positive integer"):
        OrderedHalfNormal(0)
    assert not constraints.positive_decreasing_vector.check(torch.tensor(1.0))
