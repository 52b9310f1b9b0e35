"""Exact draws of the matrix Langevin distribution, and bad input of it and the uniform one."""

import mpmath
import pytest
import scipy.stats
import torch
from torch.distributions import transform_to

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN
from pyro_manifold import constraints
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform, sample_by_rejection, sample_von_mises_fisher
from tests.parameters import long_except


@pytest.mark.parametrize("name", long_except(LANGEVIN, "sphere", "sphere in 20 dimensions", "V(4,3), full F"))
def test_langevin_draws_are_exact(name):
    target = LANGEVIN[name]
    draws = target.distribution().sample((20_000,))
    assert constraints.stiefel.check(draws).all()
    assert_mean(target.statistic(draws), *target.expectation())


def test_few_draws_with_many_proposals_for_each():
    """Uniform proposals that are accepted with probability x have density 2x, whichever of them is taken."""

    def propose(pending, repeats):
        x = torch.rand(repeats, len(pending))
        return x, x.log()

    draws = torch.cat([sample_by_rejection(propose, torch.zeros(8), 20)[0] for _ in range(1000)])
    assert_mean(draws, 2 / 3)
    assert_mean(draws**2, 1 / 2)

    def refuse(pending, repeats):
        return propose(pending, repeats)[0], torch.full((repeats, len(pending)), -torch.inf)

    found, missing = sample_by_rejection(refuse, torch.zeros(8), 20)
    assert missing.tolist() == list(range(8))
    assert not found.any()


def test_langevin_draws_when_very_concentrated():
    """Near the mode 2(tr D - tr FᵀX) is a sum of squares: χ² with one degree for each dimension."""
    F = torch.zeros(8, 3)
    F[[0, 1, 2], [0, 1, 2]] = torch.tensor([3e4, 2e4, 1e4])
    X = MatrixLangevin(F).sample((5000,))
    deficit = 2 * (F.sum() - (F * X).sum((-2, -1)))
    dimension = 8 * 3 - 3 * 4 // 2
    assert_mean(deficit, dimension, truth_error=0.01)
    assert scipy.stats.kstest(deficit.numpy(), scipy.stats.chi2(dimension).cdf).pvalue > 6e-5


def test_batches_of_langevin_distributions_are_independent():
    F = torch.stack([5.0 * torch.eye(3, 2), -2.0 * torch.eye(3, 2), torch.zeros(3, 2)])
    draws = MatrixLangevin(F).sample((4000,))
    corners = draws[:, :, 0, 0]
    means = [float(MatrixLangevin(f).mean[0, 0]) for f in F]
    for i in range(3):
        assert_mean(corners[:, i], means[i])
        assert_mean(corners[:, i] * corners[:, i - 1], means[i] * means[i - 1])


@pytest.mark.parametrize("m", [1, 2, 3, 10])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 20.0, 1e6])
def test_von_mises_fisher_draws(m, kappa):
    direction = torch.ones(m) / m**0.5
    draws = sample_von_mises_fisher((kappa * direction).expand(20_000, m))
    assert torch.allclose(draws.norm(dim=-1), torch.ones(20_000))
    order, k = mpmath.mpf(m) / 2, mpmath.mpf(kappa)
    ratio = mpmath.besseli(order, k) / mpmath.besseli(order - 1, k) if kappa else mpmath.mpf(0)
    # 1 - cosine resolves concentrated distributions, whose cosine is 1 to many digits.
    assert_mean(1 - draws @ direction, float(1 - ratio), truth_error=1e-12)


@pytest.mark.parametrize("kappa", [1e3, 1e8, 1e15])
def test_concentrated_draws_in_single_precision(kappa):
    """All cosines round to 1 here: κ(1 - t), half a χ² with m - 1 degrees, must come from the sideways part."""
    draws = sample_von_mises_fisher(torch.tensor([kappa, 0.0, 0.0], dtype=torch.float32).expand(10_000, 3))
    assert draws.isfinite().all()
    assert_mean(kappa * draws[:, 1:].double().square().sum(-1), 2.0, truth_error=4 / kappa)


@pytest.mark.parametrize("entry", [float("nan"), float("inf")])
def test_a_parameter_that_is_not_finite_ends_the_search_and_leaves_the_others_alone(entry):
    draws = sample_von_mises_fisher(torch.tensor([[entry, 0.0, 0.0], [1e8, 0.0, 0.0]]))
    assert not draws[0].isfinite().all()
    assert torch.allclose(draws[1], torch.tensor([1.0, 0.0, 0.0]), atol=1e-2)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"F has dtype torch.int64"):
        MatrixLangevin(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"batch_shape=3, expected a tuple"):
        StiefelUniform(3, 2, 3)
    with pytest.raises(ValueError, match=r"constraints\.stiefel: got n=2, p=3"):
        transform_to(constraints.stiefel)(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"StiefelUniform: got n=2, p=3"):
        StiefelUniform(2, 3)
    with pytest.raises(ValueError, match=r"MatrixLangevin: got n=2, p=3"):
        MatrixLangevin(torch.randn(2, 3))
    with pytest.raises(ValueError, match=r"F has shape \(3,\).*unsqueeze"):
        MatrixLangevin(torch.randn(3))
    with pytest.raises(ValueError, match="expected 'polar' or 'householder'"):
        StiefelUniform(3, 2, chart="euler")
