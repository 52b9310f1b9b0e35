"""Chains that disagree are named, with the one that is furthest in units of what chains vary by."""

import torch

from pyro_manifold.diagnostics.agreement import disagreements


def test_the_furthest_chain_is_so_in_standard_deviations():
    """Chain 1 is 6 off where chains vary by 1, chain 2 is 300 off where they vary by 100."""
    draws = torch.randn(4, 200, 2) * torch.tensor([1.0, 100.0])
    draws[1, :, 0] += 6
    draws[2, :, 1] += 300
    assert set(disagreements({"x": draws, "y": torch.randn(4, 200)})) == {"x"}
    assert disagreements({"x": draws})["x"].endswith("chain 1 is furthest from the others")


def test_distances_are_from_the_median_of_chains_and_entries_that_do_not_move_are_passed_over():
    draws = torch.stack([1000 + torch.randn(4, 200), torch.arange(4.0).unsqueeze(-1).expand(4, 200)], -1)
    draws[3, :, 0] -= 6
    assert disagreements({"x": draws})["x"].endswith("chain 3 is furthest from the others")


def test_what_cannot_disagree():
    apart = torch.arange(4.0)[:, None] * 10 + torch.randn(4, 200)
    samples = {"counts": apart.round().long(), "constant": torch.ones(4, 200), "few": apart[:, :3]}
    assert disagreements(samples) == {}
    assert disagreements({"alone": apart[:1]}) == {}
