"""Alignment by its theorems: scrambled draws come back, nothing in the group does better, all of it is equivariant."""

import itertools

import arviz
import pytest
import torch

from pyro_manifold.diagnostics import align_rotations, align_signs, align_signs_and_permutations
from pyro_manifold.manifolds import SpecialOrthogonal, Stiefel

ALIGNERS = {
    "signs": align_signs,
    "permutations": align_signs_and_permutations,
    "rotations": align_rotations,
}


def signs(*batch, p):
    return torch.diag_embed(1.0 - 2.0 * torch.randint(2, (*batch, p)))


def random_element(kind, *batch, p):
    """Independent uniform elements of the group, ``(*batch, p, p)``."""
    if kind == "signs":
        return signs(*batch, p=p)
    if kind == "permutations":
        return torch.eye(p)[torch.rand(*batch, p).argsort(-1)] @ signs(*batch, p=p)
    return Stiefel().random_point(*batch, p, p)


def signed_permutations(p):
    for order in itertools.permutations(range(p)):
        for sign in itertools.product((-1.0, 1.0), repeat=p):
            yield torch.eye(p)[list(order)] * torch.tensor(sign)


def orthonormal_matrices(*batch, n=6, p=3, noise=0.05):
    """A concentrated cloud around one random matrix for each element of ``batch[2:]``."""
    centre = Stiefel().random_point(*batch[2:], n, p)
    return Stiefel().projection(centre + noise * torch.randn(*batch, n, p))


def loadings(*batch, n=6, p=3, noise=0.05):
    """The same with columns of unequal length, neither normalised nor orthogonal."""
    centre = torch.randn(*batch[2:], n, p) * torch.tensor([3.0, 2.0, 1.0])[:p]
    return centre + noise * torch.randn(*batch, n, p)


every_group = pytest.mark.parametrize("kind", ALIGNERS)
every_cloud = pytest.mark.parametrize("cloud", [orthonormal_matrices, loadings])


@every_group
@every_cloud
def test_scrambled_draws_come_back(kind, cloud):
    draws = cloud(4, 25)
    clean = ALIGNERS[kind](draws, reference=draws[0, 0])
    scrambled = draws @ random_element(kind, 4, 25, p=3)
    found = ALIGNERS[kind](scrambled, reference=draws[0, 0])
    torch.testing.assert_close(found.draws, clean.draws)
    if kind != "rotations":  # a cloud this narrow needs no signed permutation to begin with
        torch.testing.assert_close(found.draws, draws)


@every_group
@every_cloud
def test_without_a_reference_scrambling_does_not_matter(kind, cloud):
    draws = cloud(4, 25)
    scramble = random_element(kind, 4, 25, p=3)
    clean, found = ALIGNERS[kind](draws), ALIGNERS[kind](draws @ scramble)
    # The orientation is that of the first draw; everything follows it.
    torch.testing.assert_close(found.draws, clean.draws @ scramble[0, 0])
    torch.testing.assert_close(found.draws[0, 0], draws[0, 0] @ scramble[0, 0])


@every_group
@every_cloud
def test_alignment_is_idempotent(kind, cloud):
    once = ALIGNERS[kind](cloud(4, 25, noise=0.5) @ random_element(kind, 4, 25, p=3))
    for twice in (ALIGNERS[kind](once.draws), ALIGNERS[kind](once.draws, reference=once.reference)):
        torch.testing.assert_close(twice.draws, once.draws)
        torch.testing.assert_close(twice.transformation, torch.eye(3).expand(4, 25, 3, 3))


@every_group
def test_transformation_is_in_the_group_and_gives_the_draws(kind):
    draws = orthonormal_matrices(4, 25, noise=0.5) @ random_element(kind, 4, 25, p=3)
    found = ALIGNERS[kind](draws)
    T = found.transformation
    torch.testing.assert_close(found.draws, draws @ T)
    torch.testing.assert_close(T.mT @ T, torch.eye(3).expand_as(T))
    if kind == "signs":
        assert (torch.diag_embed(T.diagonal(dim1=-2, dim2=-1)) == T).all()
    if kind != "rotations":
        assert set(T.unique().tolist()) <= {-1.0, 0.0, 1.0}


@every_group
def test_reference_is_the_mean_of_the_aligned_draws(kind):
    found = ALIGNERS[kind](orthonormal_matrices(4, 25, noise=0.3) @ random_element(kind, 4, 25, p=3))
    torch.testing.assert_close(found.draws.mean((0, 1)), found.reference)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_no_signed_permutation_does_better(p):
    """Draws unrelated to the reference, so that most assignments are ambiguous_fraction."""
    draws, reference = torch.randn(4, 50, 5, p), torch.randn(5, p)
    found = align_signs_and_permutations(draws, reference).draws
    distances = torch.stack([(draws @ T - reference).norm(dim=(-2, -1)) for T in signed_permutations(p)])
    torch.testing.assert_close((found - reference).norm(dim=(-2, -1)), distances.amin(0))


@pytest.mark.parametrize("kind", ["signs", "rotations"])
def test_no_random_element_does_better(kind):
    draws, reference = torch.randn(2, 10, 5, 3), torch.randn(5, 3)
    found = (ALIGNERS[kind](draws, reference).draws - reference).norm(dim=(-2, -1))
    tried = (draws @ random_element(kind, 500, 2, 10, p=3) - reference).norm(dim=(-2, -1))
    assert (found <= tried.amin(0) + 1e-12).all()
    if kind == "signs":  # 500 draws among 8 elements have met them all
        torch.testing.assert_close(found, tried.amin(0))


def test_procrustes_optimum_is_stationary():
    """First- and second-order conditions: at the best T, TᵀXᵀR is symmetric and positive semi-definite."""
    draws, reference = torch.randn(4, 25, 5, 3), torch.randn(5, 3)
    inner = align_rotations(draws, reference).draws.mT @ reference
    torch.testing.assert_close(inner, inner.mT)
    assert (torch.linalg.eigvalsh(inner) > -1e-12).all()


@every_group
def test_batch_elements_are_aligned_on_their_own(kind):
    draws = loadings(3, 8, 2, 4) @ random_element(kind, 3, 8, 2, 4, p=3)
    together = ALIGNERS[kind](draws)
    for i, j in itertools.product(range(2), range(4)):
        alone = ALIGNERS[kind](draws[:, :, i, j])
        torch.testing.assert_close(together.draws[:, :, i, j], alone.draws)
        torch.testing.assert_close(together.reference[i, j], alone.reference)


@every_group
def test_one_reference_serves_all_batch_elements(kind):
    draws, reference = torch.randn(2, 5, 4, 6, 3), torch.randn(6, 3)
    shared = ALIGNERS[kind](draws, reference)
    each = ALIGNERS[kind](draws, reference.expand(4, 6, 3))
    torch.testing.assert_close(shared.draws, each.draws)


@every_group
def test_float32_stays_float32(kind):
    draws = orthonormal_matrices(4, 25) @ random_element(kind, 4, 25, p=3)
    found = ALIGNERS[kind](draws.float())
    assert {value.dtype for value in found} == {torch.float32}
    torch.testing.assert_close(found.draws.double(), ALIGNERS[kind](draws).draws, rtol=0, atol=1e-5)


@every_group
def test_rhat_is_that_of_the_loadings_afterwards(kind):
    """Chains in different modes of the same distribution."""
    draws = orthonormal_matrices(4, 200, noise=0.1)
    scrambled = draws @ random_element(kind, 4, p=3).unsqueeze(1)
    scrambled[0] = -scrambled[1]  # at least two chains differ

    def worst(values):
        return max(float(arviz.rhat(values[:, :, i, j].numpy())) for i, j in itertools.product(range(6), range(3)))

    assert worst(scrambled) > 1.5
    assert worst(ALIGNERS[kind](scrambled).draws) < 1.05


@every_group
def test_columns_orthogonal_to_their_reference_are_kept(kind):
    draws = torch.eye(6, 3).expand(1, 2, 6, 3)
    found = ALIGNERS[kind](draws, reference=torch.eye(6).flip(0)[:, :3])
    torch.testing.assert_close(found.transformation.mT @ found.transformation, torch.eye(3).expand(1, 2, 3, 3))
    torch.testing.assert_close(found.draws.norm(dim=-2), torch.ones(1, 2, 3))


@every_group
def test_nothing_found_is_in_a_graph(kind):
    draws, reference = orthonormal_matrices(2, 3).requires_grad_(), torch.eye(6, 3).requires_grad_()
    for found in (ALIGNERS[kind](draws), ALIGNERS[kind](draws, reference)):
        assert not any(value.requires_grad for value in found)


def test_companions_go_along():
    """X diag(s) Xᵀ and Z Xᵀ are the same before and after."""
    draws = loadings(2, 10) @ random_element("permutations", 2, 10, p=3)
    scales, scores = torch.rand(2, 10, 3), torch.randn(2, 10, 7, 3)
    found = align_signs_and_permutations(draws)
    T = found.transformation
    before = (draws * scales.unsqueeze(-2)) @ draws.mT
    after = (found.draws * found.reorder(scales).unsqueeze(-2)) @ found.draws.mT
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(found.draws @ (T.mT @ torch.diag_embed(scales) @ T) @ found.draws.mT, before)
    torch.testing.assert_close((scores @ T) @ found.draws.mT, scores @ draws.mT)


def test_draws_without_a_common_reference_say_so():
    with pytest.warns(UserWarning, match="align_rotations: the common reference .* give a reference"):
        align_rotations(torch.randn(4, 50, 100, 5))


@pytest.mark.parametrize(
    ("draws", "reference", "error", "message"),
    [
        (torch.zeros(5, 3, 2), None, ValueError, r"draws has shape \(5, 3, 2\), expected \(chains, draws, ..., n, p\)"),
        ([[1.0]], None, TypeError, "draws is a list, expected a torch tensor"),
        (torch.zeros(1, 1, 3, 2, dtype=torch.int64), None, TypeError, "draws has dtype torch.int64"),
        (torch.full((1, 1, 3, 2), torch.nan), None, ValueError, "draws has entries that are not finite"),
        (torch.zeros(2, 0, 3, 2), None, ValueError, "draws is empty"),
        (torch.zeros(1, 1, 3, 2), torch.zeros(2, 3), ValueError, r"reference has shape \(2, 3\), expected \(3, 2\)"),
        (torch.zeros(1, 1, 3, 2), torch.full((3, 2), torch.inf), ValueError, "reference has entries"),
        (torch.zeros(1, 1, 3, 2), "mean", TypeError, "reference is a str"),
    ],
)
@every_group
def test_bad_input_gets_one_sentence(kind, draws, reference, error, message):
    with pytest.raises(error, match=f"^{ALIGNERS[kind].__name__}: {message}"):
        ALIGNERS[kind](draws, reference)


def test_values_of_columns_do_not_survive_a_rotation():
    with pytest.raises(ValueError, match="rotates columns into each other"):
        align_rotations(orthonormal_matrices(2, 3)).reorder(torch.ones(2, 3, 3))
    with pytest.raises(ValueError, match=r"values has shape \(3,\), expected \(2, 3, 3\)"):
        align_signs(orthonormal_matrices(2, 3)).reorder(torch.ones(3))


@every_group
@pytest.mark.parametrize("n", [2, 3])
def test_rotations_stay_rotations(kind, n):
    turned = SpecialOrthogonal().projection(torch.eye(n) + 0.05 * torch.randn(4, 25, n, n))
    draws = turned @ SpecialOrthogonal().random_point(n, n)
    changes = random_element(kind, 4, 25, p=n)
    changes = changes * torch.cat([torch.linalg.det(changes)[..., None, None], torch.ones(4, 25, 1, n - 1)], -1)
    clean = ALIGNERS[kind](draws, reference=draws[0, 0])
    found = ALIGNERS[kind](draws @ changes, reference=draws[0, 0])
    torch.testing.assert_close(found.draws, clean.draws)
    dispersed = SpecialOrthogonal().random_point(4, 25, n, n)
    assert SpecialOrthogonal().contains(ALIGNERS[kind](dispersed, reference=draws[0, 0]).draws).all()
    reflected = draws @ torch.diag(torch.tensor([*[1.0] * (n - 1), -1.0]))
    both = torch.stack([draws[0], reflected[0]])  # of orthogonal matrices of both determinants
    near = ALIGNERS[kind](both, reference=draws[0, 0]).draws
    torch.testing.assert_close(near[0], near[1], atol=1e-6, rtol=0)
