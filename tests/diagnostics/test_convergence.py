"""R-hat, nested R-hat and effective sample sizes against theory for draws of known distributions."""

import math

import arviz
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.diagnostics import Symmetry, convergence, known_quantities, nested_r_hat
from pyro_manifold.manifolds import Stiefel


def autoregressive(starts, draws, memory):
    """Chains from these starts, with a standard normal distribution that they forget by ``memory`` a draw."""
    values, place = [], starts
    for _ in range(draws):
        place = memory * place + math.sqrt(1 - memory**2) * torch.randn_like(place)
        values.append(place)
    return torch.stack(values, 1)


def squared_parts(draws, num_superchains):
    """R̂ν² - 1, of many entries."""
    return nested_r_hat(draws, num_superchains).square() - 1


def test_nested_r_hat_of_independent_draws():
    """B = 1 / (M N) and W = 1 + 1 / N on average; their ratio is about theirs, as W hardly varies."""
    superchains, chains, draws = 16, 64, 3
    found = squared_parts(torch.randn(superchains * chains, draws, 400), superchains)
    expected = 1 / (chains * draws) / (1 / draws + 1)
    assert_mean(found, expected)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_nested_r_hat_of_single_draws_measures_what_the_start_still_explains(steps):
    """After t steps from starts of variance σ²: B = ρ²ᵗσ² + (1 - ρ²ᵗ) / M, W = 1 - ρ²ᵗ."""
    superchains, chains, memory, spread = 400, 128, 0.8, 2.0
    starts = spread * torch.randn(superchains, 1, 50).expand(-1, chains, -1).flatten(0, 1)
    left = memory ** (2 * steps)
    last = (memory**steps * starts + math.sqrt(1 - left) * torch.randn_like(starts)).unsqueeze(1)
    expected = (left * spread**2 + (1 - left) / chains) / (1 - left)
    found = squared_parts(last, superchains)
    # The ratio of two averages of 400 superchains is theirs but for a relative 1 / (M K).
    assert_mean(found, expected, expected / (superchains * chains))


def test_chains_that_stay_near_their_starts():
    """Starts of variance τ² = 9: √10, however long the chains are; and 1 as soon as groups have starts of their own."""
    starts = 3 * torch.randn(200, 1, 20)
    draws = starts.expand(-1, 32, -1).flatten(0, 1).unsqueeze(1) + torch.randn(200 * 32, 5, 20)
    assert_mean(squared_parts(draws, 200), 9.0 / 1.0 / (1 / 5 / 1 + 1), 0.05)
    elsewhere = draws[torch.randperm(len(draws))]
    assert float(squared_parts(elsewhere, 200).mean()) < 9.0 / 20


def test_standing_still():
    assert nested_r_hat(torch.ones(8, 4, 2), 2).isnan().all()
    apart = torch.arange(2.0).repeat_interleave(4)[:, None].expand(8, 5)
    assert float(nested_r_hat(apart, 2)) == math.inf
    assert float(nested_r_hat(torch.randn(8, 1), 8)) == math.inf  # a single draw of single chains


@pytest.mark.parametrize("number", [1, 3, 0, -2, 2.0, True])
def test_superchains_must_divide_the_chains(number):
    with pytest.raises(ValueError, match=r"num_superchains=.*, expected an integer from 2 that divides .* 8"):
        nested_r_hat(torch.randn(8, 5), number)


def test_effective_sizes_of_an_autoregressive_chain():
    """The effective size of the mean is n (1 - ρ) / (1 + ρ)."""
    chains, draws, memory = 16, 4000, 0.6
    values = autoregressive(torch.randn(chains, 8), draws, memory)
    found = convergence(values, ("ess_mean", "ess_bulk", "r_hat"))
    expected = chains * draws * (1 - memory) / (1 + memory)
    for measure in ("ess_mean", "ess_bulk"):
        assert_mean(found[measure] / expected, 1.0, 0.01)
    assert found["r_hat"].max() < 1.01


def test_r_hat_is_that_of_ranks():
    """Draws without a variance have an R-hat all the same; a chain of another spread is noticed by its distances."""
    cauchy = torch.distributions.Cauchy(0.0, 1.0).sample((4, 1000))
    assert float(convergence(cauchy)["r_hat"]) < 1.01
    wide = torch.randn(4, 1000)
    wide[0] *= 4
    assert float(convergence(wide)["r_hat"]) > 1.1
    shifted = torch.randn(4, 1000)
    shifted[0] += 3
    assert float(convergence(shifted)["r_hat"]) > 1.3


def test_they_are_those_of_arviz():
    values = autoregressive(torch.randn(4, 3), 200, 0.5)
    found = convergence(values)
    for k in range(3):
        own = values[..., k].numpy()
        assert float(found["r_hat"][k]) == pytest.approx(float(arviz.rhat(own)))
        assert float(found["ess_tail"][k]) == pytest.approx(float(arviz.ess(own, method="tail", prob=(0.05, 0.95))))


def test_what_does_not_vary_has_none_and_one_chain_has_quarters():
    values = torch.stack([torch.ones(4, 50), torch.randn(4, 50)], -1)
    found = convergence(values)
    assert [bool(value) for value in found["r_hat"].isnan()] == [True, False]
    alone = torch.randn(1, 400)
    assert float(convergence(alone)["r_hat"]) < 1.05
    drifting = alone + torch.linspace(0, 4, 400)
    assert float(convergence(drifting)["r_hat"]) > 1.3
    still = torch.arange(4.0)[:, None].expand(4, 50)
    assert float(convergence(still)["r_hat"]) == math.inf
    with pytest.raises(ValueError, match="expected 4 draws or more"):
        convergence(torch.randn(4, 3))


SYMMETRIES = {
    "signs of one": (Symmetry("signs", ("U",)), lambda d, c: {"U": d["U"] @ c}),
    "signs of two": (Symmetry("signs", ("U", "V")), lambda d, c: {"U": d["U"] @ c, "V": d["V"] @ c}),
    "signs with a vector": (
        Symmetry("signs", ("U", "w"), ("w",)),
        lambda d, c: {"U": d["U"] @ c, "w": (d["w"][..., None, :] @ c)[..., 0, :]},
    ),
    "signs of three": (
        Symmetry("signs", ("U", "V", "w"), ("w",)),
        lambda d, c: {"U": d["U"] @ c, "V": d["V"] @ c, "w": (d["w"][..., None, :] @ c)[..., 0, :]},
    ),
    "a unit vector": (Symmetry("signs", ("w",), ("w",)), lambda d, c: {"w": -d["w"]}),
    "order with scales": (
        Symmetry("permutations", ("U",), (), ("w",)),
        lambda d, c: {"U": (d["U"] @ c).flip(-1), "w": d["w"].flip(-1)},
    ),
    "order with two": (
        Symmetry("permutations", ("U",), (), ("w", "s")),
        lambda d, c: {"U": (d["U"] @ c).flip(-1), "w": d["w"].flip(-1), "s": d["s"].flip(-1)},
    ),
    "rotations": (Symmetry("rotations", ("U",)), lambda d, c: {"U": d["U"] @ Stiefel().random_point(2, 2)}),
}


@pytest.mark.parametrize("name", SYMMETRIES)
def test_what_is_known_does_not_change_under_the_symmetry(name):
    symmetry, change = SYMMETRIES[name]
    draws = {
        "U": Stiefel().random_point(2, 6, 5, 2),
        "V": Stiefel().random_point(2, 6, 4, 2),
        "w": torch.rand(2, 6, 2),
        "s": torch.rand(2, 6, 2),
    }
    before = known_quantities(draws, [symmetry])
    after = known_quantities({**draws, **change(draws, torch.diag(torch.tensor([1.0, -1.0])))}, [symmetry])
    assert before.keys() == after.keys()
    assert not set(symmetry.sites + symmetry.reordered) & set(before)
    for key, value in before.items():
        torch.testing.assert_close(after[key], value)
    partly = known_quantities({"U": draws["U"]}, [symmetry])  # the others were not kept
    assert ("U" in partly) == ("U" not in symmetry.sites)
