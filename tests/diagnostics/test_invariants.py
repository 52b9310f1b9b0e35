"""Invariants do not change under their group, do change otherwise, and tell chains apart that disagree."""

import arviz
import pytest
import torch

from pyro_manifold.diagnostics import invariants, summarise_invariants
from pyro_manifold.manifolds import Stiefel
from tests.diagnostics.test_alignment import frames, loadings, random_element

KINDS = ("signs", "permutations", "rotations")
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("cloud", [frames, loadings])
def test_invariant_under_the_group(kind, cloud):
    draws = cloud(2, 10, 4)
    before, after = invariants(draws, kind), invariants(draws @ random_element(kind, 2, 10, 4, p=3), kind)
    for name in before:
        torch.testing.assert_close(after[name], before[name])
        assert before[name].shape[:4] == (2, 10, 4, 6)


@pytest.mark.parametrize(("kind", "larger"), [("signs", "permutations"), ("permutations", "rotations")])
def test_not_invariant_under_a_larger_group(kind, larger):
    """Otherwise they would be blind to chains in modes that the model can tell apart."""
    draws = loadings(2, 10)
    swap = torch.eye(3)[[1, 2, 0]] if larger == "permutations" else random_element(larger, p=3)
    before, after = invariants(draws, kind), invariants(draws @ swap, kind)
    assert any((after[name] - before[name]).abs().max() > 0.1 for name in before)


def test_row_products_determine_loadings_up_to_rotation():
    """XX_Kᵀ is X times an invertible matrix: the pivot rows of a random X are independent."""
    draws = loadings(1, 1, n=30)
    products = invariants(draws)["row products"][0, 0]
    assert torch.linalg.cond(products) < 100
    residual = products - draws[0, 0] @ torch.linalg.lstsq(draws[0, 0], products).solution
    assert residual.abs().max() < 1e-12


def test_pivot_rows_avoid_dependent_rows():
    """Two large proportional rows: the second of them says nothing new about the span."""
    X = torch.tensor([[3.0, 0.0], [-2.9, 0.0], [0.0, 0.5], [0.1, 0.1]])
    products = invariants(X.expand(1, 1, 4, 2))["row products"][0, 0]
    torch.testing.assert_close(products, X @ X[[0, 2]].mT)


def test_pivot_rows_are_compared_by_what_they_add():
    """The fourth row adds more to the first two than the last does, though all of it overlaps with them."""
    X = torch.tensor([[4.0, 0.0, 0.0], [3.0, 2.0, 0.0], [3.0, 1.9, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.5]])
    products = invariants(X.expand(1, 1, 5, 3))["row products"][0, 0]
    torch.testing.assert_close(products, X @ X[[0, 1, 3]].mT)


def test_column_products_are_with_the_row_that_is_largest_on_average():
    """In the first draw other rows are."""
    draws = torch.tensor([[[1.0, 3.0], [2.0, 1.0]], [[4.0, 1.0], [0.0, 4.0]], [[4.0, 1.0], [0.0, 4.0]]]).unsqueeze(0)
    products = invariants(draws, "signs")["column products"]
    torch.testing.assert_close(products, draws * torch.stack([draws[..., 0, 0], draws[..., 1, 1]], -1).unsqueeze(-2))


@every_kind
def test_rhat_does_not_see_the_group(kind):
    draws = frames(4, 200, noise=0.1)
    scrambled = draws @ random_element(kind, 4, 200, p=3)
    for name, (rhat, ess) in summarise_invariants(scrambled, kind).items():
        assert rhat.max() < 1.05, name
        assert ess.min() > 300, name


@every_kind
def test_rhat_sees_a_chain_elsewhere(kind):
    draws = frames(4, 200, noise=0.1)
    draws[0] = Stiefel().projection(draws[0] + torch.randn(6, 3))
    worst = [float(rhat.max()) for rhat, _ in summarise_invariants(draws, kind).values()]
    assert min(worst) > 1.2


def test_numbers_are_those_of_arviz():
    draws = loadings(4, 50, 2)
    values = invariants(draws, "signs")["squared entries"]
    found = summarise_invariants(draws, "signs")["squared entries"]
    assert found.rhat.shape == found.ess.shape == (2, 6, 3)
    one = values[:, :, 1, 4, 2].numpy()
    assert float(found.rhat[1, 4, 2]) == pytest.approx(float(arviz.rhat(one)))
    assert float(found.ess[1, 4, 2]) == pytest.approx(float(arviz.ess(one)))


def test_constants_have_no_rhat():
    """Rows of orthogonal matrices have length 1, up to rounding."""
    found = summarise_invariants(Stiefel().random_point(2, 20, 3, 3), "signs")
    assert found["squared row norms"].rhat.isnan().all()
    assert found["squared entries"].rhat.isfinite().all()


def test_float32():
    assert {value.dtype for value in invariants(loadings(2, 5).float(), "signs").values()} == {torch.float32}


def test_bad_input_gets_one_sentence():
    with pytest.raises(ValueError, match=r"^invariants: kind='reflections', expected 'signs'"):
        invariants(torch.ones(1, 4, 3, 2), "reflections")
    with pytest.raises(ValueError, match=r"^summarise_invariants: draws has shape \(1, 3, 3, 2\), but R-hat needs"):
        summarise_invariants(torch.ones(1, 3, 3, 2))
    with pytest.raises(ValueError, match=r"^invariants: draws has shape \(3, 2\)"):
        invariants(torch.ones(3, 2))
