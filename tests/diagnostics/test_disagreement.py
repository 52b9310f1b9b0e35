"""Chains that disagree are named, with the one that is furthest in units of what chains vary by."""

import torch

from pyro_manifold.diagnostics import Posterior, Symmetry, diagnose, disagreements, stuck_chains


def test_the_furthest_chain_is_so_in_standard_deviations():
    """Chain 1 is 6 off where chains vary by 1, chain 2 is 300 off where they vary by 100."""
    draws = torch.randn(4, 200, 2) * torch.tensor([1.0, 100.0])
    draws[1, :, 0] += 6
    draws[2, :, 1] += 300
    assert set(disagreements({"x": draws, "y": torch.randn(4, 200)})) == {"x"}
    assert disagreements({"x": draws})["x"].endswith("chain 1 is furthest from the others")


def test_distances_are_from_the_median_of_chains_and_entries_that_do_not_move_are_passed_over():
    """The median is 1000, of which chain 5 is 10 off and chain 6 is 9; from the mean it would be 8.4 and 10.6."""
    places = 1000 + torch.tensor([0.0, 0.0, 0.0, 5.0, 5.0, 10.0, -9.0])
    draws = torch.stack([places, 100 * torch.arange(7.0)], -1).unsqueeze(1).repeat(1, 200, 1)
    draws[..., 0] += torch.randn(7, 200)
    assert disagreements({"x": draws})["x"].endswith("chain 5 is furthest from the others")


def test_what_cannot_disagree():
    apart = torch.arange(4.0)[:, None] * 10 + torch.randn(4, 200)
    samples = {"counts": apart.round().long(), "constant": torch.ones(4, 200), "few": apart[:, :3]}
    assert disagreements(samples) == {}
    assert disagreements({"alone": apart[:1]}) == {}


def test_a_chain_that_never_moved_disagrees():
    draws = torch.randn(4, 200, 3)
    draws[[1, 3]] = draws[[1, 3], :1]
    assert disagreements({"x": draws})["x"].endswith("chains 1 and 3 never moved")
    # When none has moved there is no R-hat.
    assert disagreements({"x": torch.randn(4, 1, 3).expand(4, 200, 3)}) == {"x": "chains 0, 1, 2 and 3 never moved"}


def test_a_chain_on_a_flat_density_is_not_stuck():
    flat, accepted = torch.zeros(2, 50), torch.tensor([[True], [False]]).expand(2, 50)
    assert stuck_chains({"x": torch.randn(2, 50, 3)}, {"lp": flat}) == []
    assert stuck_chains({}, {"lp": flat, "accepted": accepted}) == [1]  # no site was kept
    assert stuck_chains({}, {"accepted": accepted[:, :9]}) == []  # of a few draws nothing can be said


def test_a_chain_that_moves_once_in_a_while_is_stuck():
    accepted = torch.zeros(3, 100, dtype=torch.bool)
    accepted[1, ::30], accepted[2, ::3] = True, True
    assert stuck_chains({}, {"accepted": accepted}) == [0, 1]


def test_a_chain_that_moves_by_rounding_alone_is_stuck():
    accepted = torch.ones(2, 50, dtype=torch.bool)
    tiny = 1 + 1e-15 * torch.rand(2, 50, 3)
    tiny[0] = 1 + 1e-12 * torch.randn(50, 3)  # a posterior that is narrow, not a standstill
    assert stuck_chains({"x": tiny}, {"accepted": accepted}) == [1]
    assert stuck_chains({"x": tiny}, {"accepted": accepted, "lp": torch.randn(2, 50)}) == []


def test_a_site_without_entries_has_no_entry():
    assert stuck_chains({"x": torch.zeros(2, 50, 0)}, {}) == []


def test_symmetries_are_no_disagreement_of_chains():
    """Chains differ in the signs of a column; then one of them also in its size, which signs that mix hide."""
    draws = torch.tensor([[1.0, 0.5], [0.2, 2.0]]) + 0.1 * torch.randn(4, 200, 2, 2)
    signs = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])[:, None, None]
    symmetry = Symmetry("signs", ("U",))
    density = {"lp": torch.randn(4, 200)}

    def disagreeing(draws, *symmetries):
        return diagnose(Posterior(draws, density, known=symmetries))["disagreeing_chains"]

    assert list(disagreeing({"U": draws * signs})) == ["U"]
    assert disagreeing({"U": draws * signs}, symmetry) == {}
    sizes = torch.tensor([1.0, 1.0, 2.0, 1.0])[:, None, None, None]
    mixed = draws * sizes * (2.0 * torch.randint(2, (4, 200, 1, 2)) - 1)
    assert disagreeing({"U": mixed}) == {}
    found = disagreeing({"U": mixed, "x": draws}, symmetry)
    assert found
    assert all(name.startswith("U, ") for name in found)
    assert all(said.endswith("chain 2 is furthest from the others") for said in found.values())
