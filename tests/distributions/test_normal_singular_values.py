"""Singular values of normal matrices, against chi distributions, quadrature and the matrices themselves."""

import pytest
import torch
from scipy import stats

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform


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


def test_loadings_are_normal():
    U = StiefelUniform(4, 2).sample((40_000,))
    scales = NormalSingularValues(4, 2, 2.0).sample((40_000,))
    product = (U * scales.unsqueeze(-2)) @ (U * scales.unsqueeze(-2)).mT
    assert_mean(product[:, 0, 0], 2 * 4.0)
    assert_mean(product[:, 0, 0].square(), 16.0 * 8)  # 16 times the second moment of chi-square with 2 degrees
    assert_mean(product[:, 0, 1].square(), 16.0 * 2)


@pytest.mark.parametrize(("rows", "size", "word"), [(0, 1, "rows=0"), (3, 4, "size=4"), (3, 1.5, "size=1.5")])
def test_bad_sizes_are_a_sentence(rows, size, word):
    with pytest.raises(ValueError, match=word):
        NormalSingularValues(rows, size)
