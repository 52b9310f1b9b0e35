"""Singular values of normal matrices, against chi distributions, quadrature and the matrices themselves."""

import math

import pytest
import torch
from scipy import stats

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import NormalSingularValues, OrderedHalfNormal, StiefelUniform


def test_a_single_value_is_chi():
    value = torch.tensor([[0.7], [2.0], [4.5]])
    expected = stats.chi(6, scale=1.5).logpdf(value.squeeze(-1).numpy())
    torch.testing.assert_close(NormalSingularValues(6, 1, 1.5).log_prob(value), torch.as_tensor(expected))


@pytest.mark.parametrize("rows", [2, 5])
def test_two_values_integrate_to_one(rows):
    grid = (torch.arange(1200) + 0.5) / 100
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    below = second < first
    pairs = torch.stack([first[below], second[below]], -1)
    total = NormalSingularValues(rows, 2, 1.3, validate_args=False).log_prob(pairs).exp().sum() / 1e4
    # The strip at the diagonal, where half a cell is on either side, has a density that vanishes there.
    assert abs(float(total) - 1) < 2e-3


def test_three_values_have_the_density_of_their_draws():
    torch.manual_seed(0)
    wide, narrow = NormalSingularValues(7, 3, 1.0), NormalSingularValues(7, 3, 0.8)
    draws = wide.sample((40_000,))
    assert_mean((narrow.log_prob(draws) - wide.log_prob(draws)).exp(), 1.0)
    # The same by a distribution of another kind on the same support.
    other = OrderedHalfNormal(3, 2.5)
    draws = other.sample((400_000,))
    assert_mean((wide.log_prob(draws) - other.log_prob(draws)).exp(), 1.0)


def test_loadings_are_normal():
    torch.manual_seed(1)
    U = StiefelUniform(4, 2).sample((40_000,))
    scales = NormalSingularValues(4, 2, 2.0).sample((40_000,))
    product = (U * scales.unsqueeze(-2)) @ (U * scales.unsqueeze(-2)).mT
    assert_mean(product[:, 0, 0], 2 * 4.0)
    assert_mean(product[:, 0, 0].square(), 16.0 * 8)  # 16 times the second moment of chi-square with 2 degrees
    assert_mean(product[:, 0, 1].square(), 16.0 * 2)


def test_batches_dtypes_and_gradients():
    scale = torch.tensor([1.0, 2.0], dtype=torch.float32, requires_grad=True)
    distribution = NormalSingularValues(5, 3, scale)
    draw = distribution.rsample((4,))
    assert draw.shape == (4, 2, 3)
    assert draw.dtype == torch.float32
    distribution.log_prob(draw.detach()).sum().backward()
    assert torch.isfinite(scale.grad).all()
    assert distribution.expand((3, 2)).batch_shape == (3, 2)
    assert math.isfinite(float(NormalSingularValues(3, 3).log_prob(torch.tensor([3.0, 2.0, 1.0]))))


@pytest.mark.parametrize(("rows", "size", "word"), [(0, 1, "rows=0"), (3, 4, "size=4"), (3, 1.5, "size=1.5")])
def test_bad_sizes_are_a_sentence(rows, size, word):
    with pytest.raises(ValueError, match=word):
        NormalSingularValues(rows, size)
