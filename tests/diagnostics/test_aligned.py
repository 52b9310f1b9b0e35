"""Draws are aligned by the symmetries of their posterior, whatever labels chains have, and companions move along."""

import itertools
from functools import partial

import pytest
import torch

from pyro_manifold.diagnostics import (
    Symmetry,
    align_draws,
    align_signs_and_permutations,
    invariants,
    nearest_proper_permutations,
    nearest_signs,
)
from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.manifolds import SpecialOrthogonal

CHAINS, DRAWS, P = 4, 60, 3


def draws():
    """Draws of one mode: U, scores Z, slopes w and scales s of its three columns."""
    F = torch.zeros(8, P)
    F[0, 0], F[1, 1], F[2, 2] = 80.0, 70.0, 60.0
    return {
        "U": MatrixLangevin(F).sample((CHAINS, DRAWS)),
        "Z": torch.randn(20, P) + 0.2 * torch.randn(CHAINS, DRAWS, 20, P),
        "w": torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(CHAINS, DRAWS, P),
        "s": torch.tensor([1.0, 3.0, 2.0]) + 0.1 * torch.rand(CHAINS, DRAWS, P),
        "other": torch.randn(CHAINS, DRAWS, P),
    }


def random_changes(kind, *shape):
    if kind == "rotations":
        return torch.linalg.qr(torch.randn(*shape, P, P))[0]
    signs = torch.diag_embed(2.0 * torch.randint(2, (*shape, P)) - 1)
    if kind == "signs":
        return signs
    order = torch.rand(*shape, P).argsort(-1)
    return signs.gather(-1, order.unsqueeze(-2).expand_as(signs))


def changed(values, T, reordered):
    return {
        **values,
        "U": values["U"] @ T,
        "Z": values["Z"] @ T,
        "w": (values["w"].unsqueeze(-2) @ T).squeeze(-2),
        "s": (values["s"].unsqueeze(-2) @ T.abs()).squeeze(-2) if reordered else values["s"],
    }


@pytest.mark.parametrize("kind", ["signs", "permutations", "rotations"])
def test_random_labels_of_each_draw_are_undone(kind):
    ordered = kind == "permutations"
    symmetry = Symmetry(kind, ("U", "Z", "w"), ("w",), ("s",) if ordered else ())
    mode = draws()
    relabelled = changed(mode, random_changes(kind, CHAINS, DRAWS), ordered)
    found, again = align_draws(mode, [symmetry]).draws, align_draws(relabelled, [symmetry]).draws
    for name in mode:
        torch.testing.assert_close(again[name], found[name], rtol=0, atol=1e-12)
    assert found["other"] is mode["other"]
    assert not torch.allclose(relabelled["U"], again["U"])
    # Companions move along, so that products are those of the draws as they came.
    torch.testing.assert_close(again["U"] @ again["Z"].mT, relabelled["U"] @ relabelled["Z"].mT, rtol=0, atol=1e-12)
    slopes = [(each["U"] * each["w"].unsqueeze(-2)).sum(-1) for each in (again, relabelled)]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-12)
    if ordered:
        covariances = [each["U"] * each["s"].unsqueeze(-2) @ each["U"].mT for each in (again, relabelled)]
        torch.testing.assert_close(*covariances, rtol=0, atol=1e-12)
    for before, after in zip(*[invariants(each["U"], kind).values() for each in (relabelled, again)], strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
    if kind != "rotations":  # aligned draws are those of the mode up to one common change
        change = (mode["U"].mT @ found["U"]).mean((0, 1)).round()
        assert torch.equal(mode["U"] @ change, found["U"])


def test_rotations_of_one_matrix_are_all_equal_again():
    one = torch.randn(6, P)
    symmetry = Symmetry("rotations", ("W",))
    found = align_draws({"W": one @ random_changes("rotations", CHAINS, DRAWS)}, [symmetry]).draws["W"]
    torch.testing.assert_close(found, found[0, 0].expand_as(found), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[0, 0] @ found[0, 0].mT, one @ one.mT, rtol=0, atol=1e-12)


def test_columns_are_in_the_order_of_their_scales_with_a_positive_largest_entry():
    found = align_draws(draws(), [Symmetry("permutations", ("U",), reordered=("s",))]).draws
    assert (found["s"].mean((0, 1)).diff() < 0).all()
    mean = found["U"].mean((0, 1))
    assert (mean.gather(0, mean.abs().argmax(0, keepdim=True)) > 0).all()


def test_it_agrees_with_the_alignment_of_one_site():
    mode = draws()
    U = mode["U"] @ random_changes("permutations", CHAINS, DRAWS)
    found = align_draws({"U": U}, [Symmetry("permutations", ("U",))]).draws["U"]
    alone = align_signs_and_permutations(U, reference=found.mean((0, 1)))
    assert torch.equal(alone.draws, found)


def test_elements_of_a_plate_have_their_own_labels():
    groups = [draws() for _ in range(3)]
    mode = {name: torch.stack([group[name] for group in groups], 2) for name in groups[0]}
    symmetry = Symmetry("permutations", ("U", "Z", "w"), ("w",), ("s",), independent="all")
    relabelled = changed(mode, random_changes("permutations", CHAINS, DRAWS, 3), True)
    found, again = align_draws(mode, [symmetry]).draws, align_draws(relabelled, [symmetry]).draws
    for name in mode:
        torch.testing.assert_close(again[name], found[name], rtol=0, atol=1e-12)


def test_elements_of_a_plate_with_their_own_signs_and_one_order():
    groups = [draws() for _ in range(3)]
    U, s = torch.stack([group["U"] for group in groups], 2), groups[0]["s"]
    symmetry = Symmetry("permutations", ("U",), (), ("s",), independent="signs")
    order = random_changes("permutations", CHAINS, DRAWS)
    moved = {"U": U @ order.unsqueeze(2) @ random_changes("signs", CHAINS, DRAWS, 3)}
    moved["s"] = (s.unsqueeze(-2) @ order.abs()).squeeze(-2)
    found, again = align_draws({"U": U, "s": s}, [symmetry]).draws, align_draws(moved, [symmetry]).draws
    for name in found:
        torch.testing.assert_close(again[name], found[name], rtol=0, atol=1e-12)
    assert (again["s"].mean((0, 1)).diff() < 0).all()


def test_axes_have_one_sign():
    axis = torch.nn.functional.normalize(torch.tensor([0.1, -0.9, 0.3]) + 0.1 * torch.randn(CHAINS, DRAWS, 3), dim=-1)
    signs = 2.0 * torch.randint(2, (CHAINS, DRAWS, 1)) - 1
    found = align_draws({"u": axis * signs}, [Symmetry("signs", ("u",), ("u",))]).draws["u"]
    assert torch.equal(found, -axis)


def test_more_columns_than_rows_are_rotated_too():
    W = torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0]]) + 0.05 * torch.randn(CHAINS, DRAWS, 2, P)
    symmetry = Symmetry("rotations", ("W",))
    found = align_draws({"W": W}, [symmetry]).draws["W"]
    again = align_draws({"W": W @ random_changes("rotations", CHAINS, DRAWS)}, [symmetry]).draws["W"]
    torch.testing.assert_close(again, found, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("distance", "ambiguous_fraction"), [(0.0, True), (8.0, False)])
def test_columns_that_overlap_are_contested(distance, ambiguous_fraction):
    """Two columns that differ in one entry by so many standard deviations; at 0 they are exchangeable."""
    W = torch.randn(CHAINS, 500, 5, 2) + 20
    W[..., 0, 0] += distance
    share = align_draws({"W": W}, [Symmetry("permutations", ("W",))]).ambiguous_fraction[0]
    assert share > 0.05 if ambiguous_fraction else share < 0.02


def test_a_sign_is_contested_near_zero():
    W = torch.randn(CHAINS, 500, 1, 1)
    assert align_draws({"W": W}, [Symmetry("signs", ("W",))]).ambiguous_fraction[0] > 0.05
    assert align_draws({"W": W + 8}, [Symmetry("signs", ("W",))]).ambiguous_fraction[0] < 0.005


def test_the_dtype_stays():
    mode = {name: value.float() for name, value in draws().items()}
    symmetry = Symmetry("permutations", ("U", "Z"), (), ("s",))
    assert {value.dtype for value in align_draws(mode, [symmetry]).draws.values()} == {torch.float32}


def proper_changes(kind, n, *shape):
    """Random transformations of determinant 1."""
    if kind == "rotations":
        return SpecialOrthogonal().random_point(*shape, n, n)
    signs = torch.diag_embed(2.0 * torch.randint(2, (*shape, n)) - 1)
    if kind == "permutations":
        signs = signs.gather(-1, torch.rand(*shape, n).argsort(-1).unsqueeze(-2).expand_as(signs))
    first = torch.linalg.det(signs).sign()[..., None, None]
    return torch.cat([signs[..., :1] * first, signs[..., 1:]], -1)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["signs", "permutations", "rotations"])
@pytest.mark.parametrize("independent", ["none", "all"])
def test_aligned_rotations_are_rotations(kind, n, independent):
    batch = (3,) if independent == "all" else ()
    near = torch.linalg.matrix_exp(0.1 * torch.randn(CHAINS, DRAWS, *batch, n, n).triu(1))
    mode = {
        "R": SpecialOrthogonal().random_point(n, n) @ SpecialOrthogonal().projection(near),
        "Z": torch.randn(4, n) + 0.1 * torch.randn(CHAINS, DRAWS, *batch, 4, n),
    }
    T = proper_changes(kind, n, CHAINS, DRAWS, *batch)
    relabelled = {name: x @ T for name, x in mode.items()}
    symmetry = Symmetry(kind, ("R", "Z"), independent=independent, proper=True)
    found, again = (align_draws(each, [symmetry]).draws for each in (mode, relabelled))
    for name in mode:
        torch.testing.assert_close(again[name], found[name], rtol=0, atol=1e-10)
    assert SpecialOrthogonal().contains(again["R"]).all()
    assert (again["R"] - again["R"].mean((0, 1))).abs().max() < 1.0  # one mode, and not several
    torch.testing.assert_close(again["R"] @ again["Z"].mT, relabelled["R"] @ relabelled["Z"].mT, rtol=0, atol=1e-10)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_the_nearest_change_of_determinant_1_is_the_best_of_all(p):
    products = torch.randn(7, 5, p, p)
    orders = torch.stack([torch.eye(p)[list(order)] for order in itertools.permutations(range(p))])
    signs = torch.stack([torch.diag(torch.tensor(each)) for each in itertools.product([1.0, -1.0], repeat=p)])
    all_of = {"permutations": (orders.unsqueeze(1) @ signs).flatten(0, 1), "signs": signs}
    nearest = {"permutations": nearest_proper_permutations, "signs": partial(nearest_signs, proper=True)}
    for kind, changes in all_of.items():
        changes = changes[torch.linalg.det(changes) > 0]
        gains = (products.unsqueeze(-3) * changes).sum((-2, -1))
        assert torch.equal(nearest[kind](products), changes[gains.argmax(-1)])


def test_order_is_contested_where_two_axes_of_a_rotation_are_alike():
    def share(width):
        R = SpecialOrthogonal().projection(torch.linalg.matrix_exp(width * torch.randn(CHAINS, 500, 3, 3).triu(1)))
        return align_draws({"R": R}, [Symmetry("permutations", ("R",), proper=True)]).ambiguous_fraction[0]

    assert share(0.05) < 0.02
    assert share(2.0) > 0.05
