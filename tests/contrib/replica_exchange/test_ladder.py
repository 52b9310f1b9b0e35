"""Ladders, where the barrier is known."""

import pytest
import torch

from pyro_manifold.contrib.replica_exchange import ends_of_rounds, first_ladder, interpolated, ladder_of_equal_rejection
from tests.contrib.replica_exchange.gaussian_path import even_ladder, precision, rejection


def rejections(ladder):
    precisions = precision(ladder)
    return rejection(precisions[:-1], precisions[1:])


def test_levels_go_where_all_swaps_are_rejected_equally_often():
    ladder = torch.cat([torch.zeros(1), torch.logspace(-5, 0, 15)])
    before = rejections(ladder)
    assert before.max() > 2 * before.min()
    for _ in range(2):
        ladder = ladder_of_equal_rejection(ladder, rejections(ladder))
    assert torch.allclose(rejections(ladder), before.new_tensor(float(rejections(even_ladder(16)).mean())), atol=0.005)
    assert ladder[0] == 0
    assert ladder[-1] == 1
    assert torch.allclose(ladder, even_ladder(16), rtol=0.05)


def test_swaps_that_are_all_rejected_or_none_leave_a_ladder():
    for rejected in (torch.zeros(3), torch.ones(3), torch.tensor([0.0, 1.0, 0.0])):
        ladder = ladder_of_equal_rejection(torch.tensor([0.0, 0.01, 0.1, 1.0]), rejected)
        assert (ladder.diff() > 0).all()
        assert ladder[[0, -1]].tolist() == [0, 1]


@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e6])
def test_the_first_ladder_begins_where_the_likelihood_counts(spread):
    negative_log_likelihood = 7 + spread * torch.randn(1000)
    ladder = first_ladder(negative_log_likelihood, 8)
    assert ladder[[0, -1]].tolist() == [0, 1]
    assert (ladder.diff() > 0).all()
    assert float(ladder[1]) * spread < 1.3


def test_what_levels_have_learnt_goes_to_the_next_ladder():
    old = torch.tensor([0.0, 0.01, 0.1, 1.0])
    values = torch.log1p(old / 0.01).unsqueeze(-1) * torch.tensor([1.0, 2.0])
    new = torch.tensor([0.0, 0.03, 0.5, 1.0])
    assert torch.allclose(
        interpolated(old, values, new), torch.log1p(new / 0.01).unsqueeze(-1) * torch.tensor([1.0, 2.0])
    )
    assert torch.allclose(interpolated(old, values, old), values)


def test_rounds_double_and_leave_time_for_step_sizes():
    assert ends_of_rounds(500) == [14, 28, 56, 112, 225, 450]
    assert ends_of_rounds(20) == [9, 18]
