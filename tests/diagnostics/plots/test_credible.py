"""Intervals are ArviZ's; ellipses and radii hold the share of draws that was asked for, whatever the distribution."""

import arviz
import numpy as np
import pytest
import torch

from pyro_manifold.diagnostics.plots import (
    credible_ellipses,
    credible_mass,
    in_percent,
    shortest_interval,
    smallest_radius,
)
from tests.diagnostics import either_arviz


@pytest.mark.parametrize("probability", [0.5, 0.94])
def test_intervals_are_those_of_arviz(probability):
    draws = torch.randn(1000, 3).exp()
    low, high = shortest_interval(draws, probability)
    for k in range(3):
        expected = either_arviz.shortest_interval(draws[:, k], probability)
        assert [float(low[k]), float(high[k])] == pytest.approx(expected)


@pytest.mark.parametrize("probability", [0.3, 0.94, 0.999])
def test_ellipses_hold_the_share_of_skewed_draws(probability):
    draws = torch.randn(500, 4, 2).exp() @ torch.tensor([[2.0, 1.0], [0.0, 0.3]])
    ellipses = credible_ellipses(draws, probability)
    inverse = torch.linalg.inv(ellipses.semi_axes)
    inside = torch.einsum("kij,skj->ski", inverse, draws - draws.mean(0)).norm(dim=-1) <= 1 + 1e-9
    assert inside.double().mean(0).tolist() == pytest.approx([np.ceil(probability * 500) / 500] * 4)


def test_ellipses_of_normal_draws_are_those_of_the_normal_distribution():
    """The squared semi-axes are variances by the quantile of χ² with 2 degrees of freedom, −2 log(1 − p)."""
    draws = torch.randn(100_000, 2) * torch.tensor([3.0, 1.0])
    lengths = credible_ellipses(draws, 0.94).semi_axes.norm(dim=-2)
    expected = torch.tensor([1.0, 3.0]) * (-2 * torch.log(torch.tensor(0.06))).sqrt()
    torch.testing.assert_close(lengths, expected, rtol=0.02, atol=0)


def test_draws_that_are_all_equal_have_an_ellipse():
    ellipses = credible_ellipses(torch.ones(10, 1, 2), 0.9)
    assert float(ellipses.semi_axes.abs().max()) < 1e-100


def test_radius_holds_the_share():
    assert float(smallest_radius(torch.arange(100.0), 0.94)) == 93.0


def test_mass_is_that_of_arviz_unless_it_is_given():
    with arviz.rc_context({"stats.ci_prob": 0.8}):
        assert credible_mass(None, "f") == 0.8
    assert credible_mass(0.5, "f") == 0.5
    assert [in_percent(mass) for mass in (0.89, 0.5, 0.955)] == ["89 %", "50 %", "95.5 %"]
    for wrong in (0, 1, 94, "0.9"):
        with pytest.raises(ValueError, match=r"^f: prob is .* expected a number between 0 and 1"):
            credible_mass(wrong, "f")
