"""Varimax and promax against statsmodels and a general optimiser, and by what they leave unchanged."""

import numpy as np
import pytest
import scipy.optimize
import torch

from pyro_manifold.diagnostics import promax, varimax
from pyro_manifold.manifolds import Stiefel

factor_rotation = pytest.importorskip("statsmodels.multivariate.factor_rotation", reason="needs statsmodels")


def simple_structure(*batch, rows=4, p=3, noise=0.05):
    """Loadings of which each row has one large entry, ``(*batch, rows * p, p)``, columns of different size."""
    large = torch.eye(p).repeat_interleave(rows, 0) * torch.tensor([0.9, 0.7, 0.5])[:p]
    return large + noise * torch.randn(*batch, rows * p, p)


def criterion(loadings):
    squares = loadings.square()
    return (squares.square().mean(-2) - squares.mean(-2).square()).sum(-1)


def turned(draws):
    return draws @ Stiefel().random_point(*draws.shape[:-2], draws.shape[-1], draws.shape[-1])


def up_to_signs_and_order(found, expected):
    """The largest difference of columns after the best matching of their absolute values."""
    gains = np.abs(found.T @ expected)
    rows, columns = scipy.optimize.linear_sum_assignment(gains, maximize=True)
    return max(
        min(np.abs(found[:, i] - expected[:, j]).max(), np.abs(found[:, i] + expected[:, j]).max())
        for i, j in zip(rows, columns, strict=True)
    )


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("p", [2, 3])
def test_varimax_is_that_of_statsmodels(p, normalise):
    draws = turned(simple_structure(2, 2, p=p, noise=0.15))
    found = varimax(draws, normalise=normalise).draws
    norms = draws.norm(dim=-1, keepdim=True) if normalise else torch.ones(2, 2, 4 * p, 1)
    for one, ours, norm in zip(*(values.flatten(0, 1) for values in (draws, found, norms)), strict=True):
        theirs, _ = factor_rotation.rotate_factors((one / norm).numpy(), "varimax", tol=1e-6)
        assert up_to_signs_and_order(ours.numpy(), theirs * norm.numpy()) < 1e-5


def test_no_rotation_has_a_larger_criterion():
    """A general optimiser over angles of three planes, from many starts."""
    draws = turned(simple_structure(1, 4, noise=0.3))
    found = varimax(draws, normalise=False).draws

    def negative(angles, loadings):
        skew = torch.zeros(3, 3)
        skew[0, 1], skew[0, 2], skew[1, 2] = torch.as_tensor(angles)
        return -float(criterion(loadings @ torch.linalg.matrix_exp(skew - skew.mT)))

    for one, ours in zip(draws[0], found[0], strict=True):
        starts = np.random.default_rng(0).uniform(-np.pi, np.pi, (10, 3))
        best = max(-scipy.optimize.minimize(negative, start, args=(one,)).fun for start in starts)
        assert float(criterion(ours)) > best - 1e-7


@pytest.mark.parametrize("per_draw", [True, False])
def test_rotations_of_the_draws_do_not_matter(per_draw):
    draws = simple_structure(2, 20)
    for function in (varimax, promax):
        first, second = function(draws, per_draw=per_draw), function(turned(draws), per_draw=per_draw)
        torch.testing.assert_close(first.draws, second.draws, atol=1e-6, rtol=0)


def test_columns_of_all_draws_have_the_signs_and_order_of_the_simple_structure():
    truth = simple_structure(noise=0.0)
    found = varimax(turned(simple_structure(4, 50))).draws
    assert float((found - truth).abs().max()) < 0.5  # a wrong sign or place would be off by 0.5 at least
    torch.testing.assert_close(found.mean((0, 1)), truth, atol=0.05, rtol=0)


@pytest.mark.parametrize("per_draw", [True, False])
def test_a_reference_determines_signs_and_order(per_draw):
    draws = turned(simple_structure(2, 10))
    reference = simple_structure(noise=0.0)[:, [2, 0, 1]] * torch.tensor([-1.0, 1.0, -1.0])
    found = varimax(draws, reference, per_draw=per_draw).draws
    assert bool(((found * reference).sum(-2) > 0.5).all())


def test_transformation_is_orthogonal_and_gives_the_draws():
    draws = turned(simple_structure(2, 10, noise=0.3))
    found = varimax(draws)
    T = found.transformation
    torch.testing.assert_close(T.mT @ T, torch.eye(3).expand_as(T))
    torch.testing.assert_close(draws @ T, found.draws)


def test_one_rotation_for_all_is_less_dispersed_and_has_a_smaller_criterion():
    draws = turned(simple_structure(2, 50, noise=0.2))
    each, common = (varimax(draws, normalise=False, per_draw=flag).draws for flag in (True, False))
    assert float(common.var((0, 1)).sum()) < float(each.var((0, 1)).sum())
    assert bool((criterion(common) <= criterion(each) + 1e-10).all())
    assert float(criterion(common).mean()) < float(criterion(each).mean())


def test_elements_of_a_batch_are_rotated_independently():
    draws = turned(simple_structure(2, 5, 2))
    together = varimax(draws).draws
    for k in range(2):
        torch.testing.assert_close(together[:, :, k], varimax(draws[:, :, k]).draws, atol=1e-6, rtol=0)


def test_promax_is_that_of_statsmodels():
    """Whose power is one larger, and whose transformation is the transposed inverse of ours."""
    draws = simple_structure(1, 4, noise=0.15)
    found = promax(draws, power=3.0, normalise=False)
    for one, pattern, correlations in zip(draws[0], found.draws[0], found.correlations[0], strict=True):
        _, T = factor_rotation.promax(one.numpy(), k=4)
        theirs = one.numpy() @ np.linalg.inv(T.T)
        assert up_to_signs_and_order(pattern.numpy(), theirs) < 1e-4
        np.testing.assert_allclose(
            np.sort(np.abs(correlations.numpy()), None), np.sort(np.abs(T.T @ T), None), atol=1e-4
        )


def test_promax_keeps_the_covariance_and_standardises_factors():
    draws = turned(simple_structure(2, 10))
    found = promax(draws)
    torch.testing.assert_close(found.draws @ found.correlations @ found.draws.mT, draws @ draws.mT)
    torch.testing.assert_close(found.correlations.diagonal(dim1=-2, dim2=-1), torch.ones(2, 10, 3))
    torch.testing.assert_close(draws @ found.transformation, found.draws)


def test_promax_finds_correlated_factors():
    factors = torch.full((3, 3), 0.4).fill_diagonal_(1.0)
    draws = turned(simple_structure(1, 20, noise=0.02) @ torch.linalg.cholesky(factors))
    assert bool(((promax(draws).correlations - factors).abs() < 0.12).all())


def test_one_column_and_flat_criteria():
    column = torch.rand(1, 3, 5, 1)
    torch.testing.assert_close(varimax(column).draws, column)
    square = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]]).expand(1, 2, 3, 2)
    assert bool(varimax(square).draws.isfinite().all())  # the criterion is the same at all angles
    assert varimax(simple_structure(1, 3).float()).draws.dtype == torch.float32
    zero_row = torch.cat([torch.zeros(1, 3, 1, 3), simple_structure(1, 3)], -2)
    assert bool(varimax(zero_row).draws.isfinite().all())


def test_errors():
    draws = simple_structure(1, 2)
    with pytest.raises(ValueError, match=r"varimax: draws has shape \(2, 12, 3\), expected \(chains, draws"):
        varimax(draws[0])
    with pytest.raises(ValueError, match="transpose the matrices"):
        promax(draws.mT)
    with pytest.raises(ValueError, match="normalise='yes', expected True or False"):
        varimax(draws, normalise="yes")
    with pytest.raises(ValueError, match="promax: power is 1, expected a number above 1"):
        promax(draws, power=1)
    with pytest.raises(ValueError, match="promax: draws has loadings of rank below p"):
        promax(draws[..., :1].expand(1, 2, 12, 3) * torch.tensor([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match=r"varimax: reference has shape \(3, 3\)"):
        varimax(draws, torch.eye(3))
