"""The matrices of the OHMC paper: factors of exact draws have the density that is sampled, and another has not."""

import numpy as np
import pytest
import torch

from benchmarks.papers.ohmc import exponentials, figures, noisy_matrix, paper_tables
from benchmarks.papers.ohmc.mixture import Matrices, first_mode, worst_deviation
from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from pyro_manifold.manifolds import cayley_flow
from tests.parameters import long_except

pytestmark = [
    pytest.mark.filterwarnings("ignore:Site 'Q' is square"),
    pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature"),
]
KINDS = [Matrices(n, sigma, single) for n in (2, 3) for sigma, single in ((0.3, False), (1.0, True))]
each_kind = pytest.mark.parametrize("matrices", KINDS, ids=str)


def drawn(matrices, count, seed=0):
    """Factors of exact draws, and derivatives of the log density by v."""
    Q, v = map(torch.as_tensor, matrices.factors(matrices.exact(np.random.default_rng(seed), count)))
    leaf = v.requires_grad_()
    (gradient,) = torch.autograd.grad(matrices.log_density(Q, leaf).sum(), leaf)
    return Q, v.detach(), gradient


@each_kind
def test_factors_are_those_of_the_matrix(matrices):
    M = matrices.exact(np.random.default_rng(0), 50)
    Q, v = matrices.factors(M)
    np.testing.assert_allclose(matrices.product(Q, v, np), M, atol=1e-12)
    np.testing.assert_allclose(Q.swapaxes(1, 2) @ Q, np.broadcast_to(np.eye(2), (50, 2, 2)), atol=1e-12)
    if matrices.n == 2:
        np.testing.assert_allclose(np.linalg.det(Q), 1.0)
        np.testing.assert_allclose(np.linalg.det(matrices.factors(M, determinant=-1.0)[0]), -1.0)


@each_kind
def test_exact_draws_have_the_density_and_not_that_without_the_factor_of_the_measure(matrices):
    """By Stein's identity, E ∂ log π = 0 and E (1 + v ∂ log π) = 0 of each coordinate v."""
    _, v, gradient = drawn(matrices, 20_000)
    for k in range(3):
        assert_mean(gradient[:, k], 0.0)
        assert_mean(gradient[:, k] * v[:, k], -1.0)
    wrong = gradient[:, 0] - (matrices.n - 1)
    assert abs(wrong.mean()) > 3 * STANDARD_ERRORS * wrong.std() / len(wrong) ** 0.5


@each_kind
def test_moments_are_exact(matrices):
    Q, v = matrices.factors(matrices.exact(np.random.default_rng(2), 40_000))
    for name, values in matrices.moments({"Q": Q, "v": v}).items():
        mean, deviation = matrices.truths()[name]
        assert_mean(torch.as_tensor(values), mean)
        assert values.std() == pytest.approx(deviation, rel=0.05)


def test_each_mode_has_its_share_of_exact_draws():
    Q, v = Matrices(2, 0.3).factors(Matrices(2, 0.3).exact(np.random.default_rng(3), 40_000))
    shares = figures.shares_of_modes(Matrices(2, 0.3), {"Q": Q, "v": v})
    assert len(shares) == 16
    assert abs(shares - 1 / 16).max() < STANDARD_ERRORS * (15 / 16**2 / 40_000) ** 0.5


def test_draws_of_one_mode_are_of_that_mode():
    Q, v = Matrices(2, 0.01, single=True).factors(first_mode(2)[None])
    np.testing.assert_array_equal(np.flatnonzero(figures.shares_of_modes(Matrices(2, 0.01), {"Q": Q, "v": v})), [1])


def test_chains_begin_at_the_first_mode():
    for n in (2, 3):
        assert np.linalg.matrix_rank(first_mode(n)) == 2
        sizes = {"chains": 2, "burn_in": 0, "draws": 4}
        draws, _ = paper_tables.run(n, "OHMC", 1e-6, **sizes)
        found = Matrices(n, 0.3).product(draws["Q"], draws["v"], np)
        np.testing.assert_allclose(found, np.broadcast_to(first_mode(n), found.shape), atol=1e-3)


@pytest.mark.filterwarnings("ignore:Chain .* moved in fewer than 5")  # of HMC: steps are long where X is small
@pytest.mark.parametrize("name", long_except(paper_tables.KERNELS, "OHMC"))
def test_kernels_draw_what_exact_draws_have(name):
    draws, _ = paper_tables.run(2, name, 0.1, chains=64, burn_in=150, draws=150)
    assert worst_deviation(Matrices(2, 0.3), draws)[0] < STANDARD_ERRORS


@pytest.mark.long
@pytest.mark.parametrize(("n", "name", "biased"), [(3, "SGHMC, polar chart", False), (2, "SGHMC, polar chart", True)])
def test_the_chart_without_a_test_is_wrong_on_square_matrices(n, name, biased):
    """Its density has a jump where the determinant of X changes its sign, of which no gradient knows."""
    matrices = Matrices(n, noisy_matrix.SIGMA, single=True)
    draws, _ = noisy_matrix.run(matrices, name, 0.1, chains=256, burn_in=150, draws=100)
    _, bias = worst_deviation(matrices, draws)
    assert (bias > 0.3) == biased


@pytest.mark.long
def test_small_steps_of_osghmc_have_little_bias():
    for n in (2, 3):
        matrices = Matrices(n, noisy_matrix.SIGMA, single=True)
        draws, _ = noisy_matrix.run(matrices, "OSGHMC", 0.1, chains=256, burn_in=150, draws=100)
        assert worst_deviation(matrices, draws)[1] < 0.15


def test_a_step_that_is_too_long_is_reported_in_its_row():
    sizes = {"chains": 2, "burn_in": 0, "draws": 50}
    assert noisy_matrix.row(3, "OSGHMC", 100.0, 40, **sizes)[-1] == "became NaN or infinite"


def test_energy_errors_are_of_second_order():
    """Acceptance falls with ε, and a momentum of the wrong energy would not have 1 at small steps."""
    matrices = Matrices(3, 0.3)
    Q, v = map(torch.as_tensor, matrices.factors(matrices.exact(np.random.default_rng(0), 200)))
    for flow in exponentials.FLOWS.values():
        found = [float(exponentials.trajectories(matrices, flow, Q, v, ε, 10)[1].mean()) for ε in (0.0125, 0.05)]
        assert found[0] > 0.995 > found[1]
    errors, _ = exponentials.trajectories(matrices, cayley_flow, Q, v, 0.2, 10)
    assert float(errors.max()) < 1e-10
