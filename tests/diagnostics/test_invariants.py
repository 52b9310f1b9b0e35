"""Invariants do not change under their group, do change otherwise, and distinguish chains that disagree."""

import arviz
import pytest
import torch

from pyro_manifold.diagnostics import invariants, summarise_invariants
from pyro_manifold.manifolds import Stiefel
from tests.diagnostics.test_alignment import loadings, orthonormal_matrices, random_element

KINDS = ("signs", "permutations", "rotations")
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("cloud", [orthonormal_matrices, loadings])
def test_invariant_under_the_group(kind, cloud):
    draws = cloud(2, 10, 4)
    before, after = invariants(draws, kind), invariants(draws @ random_element(kind, 2, 10, 4, p=3), kind)
    for name in before:
        torch.testing.assert_close(after[name], before[name])
        assert before[name].shape[:4] == (2, 10, 4, 6)


@pytest.mark.parametrize(("kind", "larger"), [("signs", "permutations"), ("permutations", "rotations")])
def test_not_invariant_under_a_larger_group(kind, larger):
    """Invariants must distinguish chains in modes that the model distinguishes."""
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
    """Two large proportional rows: the second has no information on the span."""
    X = torch.tensor([[3.0, 0.0], [-2.9, 0.0], [0.0, 0.5], [0.1, 0.1]])
    products = invariants(X.expand(1, 1, 4, 2))["row products"][0, 0]
    torch.testing.assert_close(products, X @ X[[0, 2]].mT)


def test_pivot_rows_are_compared_by_what_they_add():
    """The fourth row adds more to the first two than the last does, though all of it overlaps with them."""
    X = torch.tensor([[4.0, 0.0, 0.0], [3.0, 2.0, 0.0], [3.0, 1.9, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.5]])
    products = invariants(X.expand(1, 1, 5, 3))["row products"][0, 0]
    torch.testing.assert_close(products, X @ X[[0, 1, 3]].mT)


def test_column_products_are_with_the_row_that_is_largest_on_average():
    """In the first draw other rows are the largest."""
    draws = torch.tensor([[[1.0, 3.0], [2.0, 1.0]], [[4.0, 1.0], [0.0, 4.0]], [[4.0, 1.0], [0.0, 4.0]]]).unsqueeze(0)
    products = invariants(draws, "signs")["column products"]
    torch.testing.assert_close(products, draws * torch.stack([draws[..., 0, 0], draws[..., 1, 1]], -1).unsqueeze(-2))


@every_kind
def test_rhat_does_not_see_the_group(kind):
    draws = orthonormal_matrices(4, 200, noise=0.1)
    scrambled = draws @ random_element(kind, 4, 200, p=3)
    for name, (rhat, ess) in summarise_invariants(scrambled, kind).items():
        assert rhat.max() < 1.05, name
        assert ess.min() > 300, name


@every_kind
def test_rhat_sees_a_chain_elsewhere(kind):
    draws = orthonormal_matrices(4, 200, noise=0.1)
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


class TestProducts:
    """U diag(s) Vᵀ of two or three sites."""

    @staticmethod
    def factors(*chains_and_draws, n=6, m=5, p=3):
        left, scales, right = torch.randn(n, p), torch.tensor([3.0, -2.0, 1.0])[:p], torch.randn(m, p)
        noise = 0.1 * torch.randn(3, *chains_and_draws, max(n, m), p)
        return left + noise[0, ..., :n, :], scales + noise[1, ..., 0, :], right + noise[2, ..., :m, :]

    @staticmethod
    def product(left, scales, right):
        return left * scales.unsqueeze(-2) @ right.mT

    @pytest.mark.parametrize("shape", [(2, 10), (2, 10, 4)])
    def test_they_determine_the_product(self, shape):
        left, scales, right = self.factors(*shape)
        product = self.product(left, scales, right)
        found = invariants(left, scales=scales, right=right)
        columns, rows = found["pivot columns"], found["pivot rows"]
        assert columns.shape == (*shape, 6, 3)
        assert rows.shape == (*shape, 5, 3)
        # M = C A⁻¹ R for any matrix of rank p, with its columns C, its rows R, and A where these meet.
        index = (rows[..., None, :, :] - product[..., None]).abs().amax(-2).flatten(0, -3).amax(0).argmin(0)
        meeting = columns[..., index, :]
        torch.testing.assert_close(columns @ torch.linalg.solve(meeting, rows.mT), product)
        torch.testing.assert_close(found["squared row norms"], product.square().sum(-1))
        torch.testing.assert_close(found["squared column norms"], product.square().sum(-2))
        torch.testing.assert_close(found["singular values"], torch.linalg.svdvals(product)[..., :3])

    def test_pivot_columns_are_columns_of_the_product_that_are_not_alike(self):
        """The longest column of the product comes from a short row of V, and the next longest is proportional to it."""
        left, scales = torch.eye(4, 2).expand(1, 1, 4, 2), torch.tensor([[[1.0, 10.0]]])
        right = torch.tensor([[5.0, 0.0], [0.0, 1.0], [0.0, 0.9]]).expand(1, 1, 3, 2)
        found = invariants(left, scales=scales, right=right)["pivot columns"]
        torch.testing.assert_close(found, self.product(left, scales, right)[..., [1, 0]])

    def test_a_symmetric_product(self):
        left, scales, _ = self.factors(2, 10)
        product = self.product(left, scales, left)
        found = invariants(left, scales=scales)
        assert set(found) == {"pivot columns", "diagonal", "eigenvalues"}
        torch.testing.assert_close(found["diagonal"], product.diagonal(dim1=-2, dim2=-1))
        spectrum = torch.linalg.eigvalsh(product).flip(-1)
        torch.testing.assert_close(found["eigenvalues"], spectrum[..., [0, 1, 5]])  # two positive scales, one negative
        distance = product - found["pivot columns"] @ torch.linalg.lstsq(found["pivot columns"], product).solution
        assert distance.abs().max() < 1e-10

    def test_what_leaves_the_product_leaves_them(self):
        """A rotation of a pair; signs and order of a triple."""
        left, scales, right = self.factors(2, 10)
        turn = random_element("rotations", 2, 10, p=3)
        signs, order = torch.tensor([1.0, -1.0, 1.0]), [2, 0, 1]
        for before, after in [
            (invariants(left, right=right), invariants(left @ turn, right=right @ turn)),
            (
                invariants(left, scales=scales, right=right),
                invariants((left * signs)[..., order], scales=scales[..., order], right=(right * signs)[..., order]),
            ),
        ]:
            for name in before:
                torch.testing.assert_close(after[name], before[name])

    def test_large_matrices_are_never_formed(self):
        left, right = torch.randn(1, 4, 20_000, 2), torch.randn(1, 4, 30_000, 2)  # their product has 19 GB
        found = invariants(left, right=right)
        assert found["pivot columns"].shape == (1, 4, 20_000, 2)
        assert max(value.numel() for value in found.values()) == 4 * 30_000 * 2

    def test_rhat_depends_only_on_identified_functionals(self):
        left, scales, right = self.factors(4, 200)
        signs = torch.randint(2, (4, 1, 1, 3)) * 2.0 - 1
        found = summarise_invariants(left * signs, scales=scales, right=right * signs)
        assert max(rhat.max() for rhat, _ in found.values()) < 1.05
        found = summarise_invariants(left * signs, scales=scales, right=right)
        assert max(rhat.max() for rhat, _ in found.values()) > 1.5
        assert min(ess.min() for _, ess in summarise_invariants(left * signs, scales=scales**2).values()) > 300

    def test_bad_input_gets_one_sentence(self):
        left, scales, right = self.factors(1, 4)
        for options, sentence in [
            (
                {"scales": scales[..., :2]},
                r"scales has shape \(1, 4, 2\), expected \(1, 4, 3\) to match draws of shape",
            ),
            ({"right": right[..., :2]}, r"right has shape \(1, 4, 5, 2\), expected \(1, 4, 5, 3\)"),
            ({"right": right[0]}, r"right has shape \(4, 5, 3\), expected \(1, 4, 5, 3\)"),
            ({"right": right, "kind": "signs"}, r"kind='signs' cannot be combined with right"),
            ({"scales": scales * torch.nan}, r"scales has entries that are not finite"),
        ]:
            with pytest.raises(ValueError, match=r"^summarise_invariants: " + sentence):
                summarise_invariants(left, **options)
        with pytest.raises(TypeError, match=r"^invariants: right is a list"):
            invariants(left, right=[1.0])
