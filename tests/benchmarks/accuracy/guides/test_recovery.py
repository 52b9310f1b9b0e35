"""What the recovery benchmark calls a problem, and a direction that is found."""

import pytest
import torch

from benchmarks.accuracy.guides import recovery
from pyro_manifold.manifolds import Stiefel


@pytest.mark.parametrize("family", ["Stiefel", "Grassmann"])
def test_problems_are_those_of_the_benchmark(family):
    for seed in range(20):
        target, factor, long = recovery.problem(seed, family)
        m, rank = factor.shape
        scale = target.cov_diag.sqrt()
        assert 20 <= m <= 500
        assert 1 <= rank <= 8
        assert m > 2 * rank, "the split of the covariance is determined"
        assert scale.min() >= 0.25
        assert scale.max() <= 1
        ratios = long / scale.square().mean().sqrt()
        assert ((ratios >= 2 - 1e-12) & (ratios <= 10 + 1e-12)).all()
        assert (long.diff() <= 0).all()
        assert family == "Stiefel" or (long == long[0]).all()
        torch.testing.assert_close(
            target.covariance_matrix, (factor * long.square()) @ factor.mT + scale.square().diag()
        )


def test_scales_that_nearly_agree_are_compared_by_their_span():
    assert recovery.ties(torch.tensor([5.0, 4.9, 4.8, 3.0])) == [slice(0, 3), slice(3, 4)]
    factor = Stiefel().random_point(9, 3)
    turned = factor.clone()
    turned[:, :2] = factor[:, :2] @ Stiefel().random_point(2, 2)
    assert recovery.smallest_cosine(factor, torch.tensor([5.0, 4.9, 3.0]), turned) == pytest.approx(1.0)
    assert recovery.smallest_cosine(factor, torch.tensor([5.0, 4.0, 3.0]), turned) < 0.99
    lost = torch.cat([factor[:, :2], torch.zeros(9, 1)], -1)
    assert recovery.smallest_cosine(factor, torch.tensor([5.0, 4.0, 3.0]), lost) < 1e-6


def test_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(recovery, "CACHE", tmp_path)
    rows = list(recovery.compare(1, 8, ["Stiefel"], ["Adam"]))
    assert rows[0][:3] == ["Stiefel", "Adam", 1]
    assert len(rows[0]) == len(recovery.COLUMNS)
    monkeypatch.setattr(recovery, "fit", None)  # the second time nothing is fitted
    assert list(recovery.compare(1, 8, ["Stiefel"], ["Adam"])) == rows
