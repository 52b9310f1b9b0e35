"""Estimators of masses, from positions and gradients whose distribution is known."""

import math
from functools import partial

import pytest
import torch

from problems.monte_carlo import STANDARD_ERRORS
from pyro_manifold.infer.mcmc.adaptation import ColumnEstimator, DiagonalEstimator, Masses
from pyro_manifold.manifolds import Stiefel


def test_masses_report_how_much_they_changed():
    block = ("x",)
    masses = Masses({block: partial(DiagonalEstimator, torch.zeros(4, 2))})
    for _ in range(500):
        position = torch.tensor([1.0, 8.0]) * torch.randn(4, 2)
        masses.update({block: position}, {block: position / torch.tensor([1.0, 64.0])})
    masses.estimate()
    assert masses.change == pytest.approx(math.exp(math.log(8) / 2**0.5), rel=0.1)
    assert masses.inverse_mass_matrix[block][1] == pytest.approx(64, rel=0.1)


@pytest.mark.parametrize("where", [0.0, 1e3])
def test_a_few_points_give_the_variances_of_independent_gaussians(where):
    """Wherever they are; up to the shrinkage of the first draws."""
    variances = torch.tensor([1e-2, 1.0, 100.0])
    estimator = DiagonalEstimator(torch.zeros(4, 3))
    for _ in range(200):
        position = where + 0.3 * variances.sqrt() * torch.randn(4, 3)
        estimator.update(position, position / variances)
    assert torch.allclose(estimator.estimate()[0], variances, rtol=0.3)


def test_no_gradient_leaves_what_draws_say():
    estimator = DiagonalEstimator(torch.zeros(4, 2))
    for _ in range(20):
        estimator.update(torch.randn(4, 2), torch.zeros(4, 2))
    assert (estimator.estimate() > 0.5).all()
    assert (estimator.estimate() < 60).all()


def test_masses_of_columns_are_the_mean_curvatures_of_their_directions():
    """U = -tr FᵀX at uniform X: m_k = ‖f_k‖²/n + d/p, and within the span 2‖F‖²/(np) + d/p."""
    n, p, chains = 5, 3, 100_000
    F = torch.randn(n, p) * torch.tensor([10.0, 3.0, 1.0])
    estimator = ColumnEstimator(torch.zeros(chains, n, p))
    own = Stiefel().dimension(n, p) / p
    assert torch.allclose(1 / estimator.initial(), torch.tensor(own))
    estimator.update(Stiefel().random_point(chains, n, p), -F.expand(chains, n, p))
    masses = 1 / estimator.estimate()
    squares = F.square().sum(0)
    truths = torch.cat([squares / n, 2 * squares.sum().reshape(1) / (n * p)]) + own
    for mass, truth in zip(masses.T, truths, strict=True):
        # Shrunk towards the mean of all chains, which are independent here: the mean is that of all.
        assert abs(mass.mean() - truth) < STANDARD_ERRORS * 6 * mass.std() / chains**0.5  # spread is 1/6 after one draw


def test_masses_of_columns_belong_to_chains_and_trust_the_others_while_draws_are_few():
    estimator = ColumnEstimator(torch.zeros(2, 4, 2))
    X = torch.eye(4, 2).expand(2, 4, 2)
    gradient = torch.zeros(2, 4, 2)
    gradient[0, 3, 0] = gradient[1, 3, 1] = 10.0  # the chains have their columns in another order
    own = Stiefel().dimension(4, 2) / 2
    for draws, share in ((5, 0.5), (15, 0.75)):
        while estimator._count < draws:
            estimator.update(X * (-1) ** estimator._count, gradient)  # chains that move
        steep, flat = 50 * (share + (1 - share) / 2) + own, 50 * (1 - share) / 2 + own
        assert torch.allclose(1 / estimator.estimate(), torch.tensor([[steep, flat, own], [flat, steep, own]]))


def column_masses(curvatures):
    """Inverse masses found from forces of such curvature, ``(chains, columns)``, of chains that always move."""
    torch.manual_seed(0)
    chains, p = curvatures.shape
    estimator = ColumnEstimator(torch.eye(6, p).expand(chains, 6, p))
    for _ in range(200):
        position = torch.linalg.qr(torch.randn(chains, 6, p)).Q
        estimator.update(position, torch.randn(chains, 6, p) * curvatures.sqrt().unsqueeze(1))
    return estimator.estimate()[:, :p]


def test_masses_of_exchangeable_columns_are_each_chains_own():
    orders = torch.stack([torch.randperm(3) for _ in range(9)])
    curvatures = torch.tensor([1000.0, 100.0, 10.0])[orders]
    inverse = column_masses(curvatures)
    # 4 is the manifold's own; 5/205 of the mean of the others comes to each, at most twice the smallest.
    assert ((inverse * (curvatures + 4)).log().abs() < 1.0).all()


def test_a_chain_that_learns_in_a_flat_region_has_masses_for_a_steep_one():
    curvatures = torch.full((9, 3), 100.0)
    curvatures[4] = 0.01
    inverse = column_masses(curvatures)
    assert (inverse[4] < 3 / 100).all()
