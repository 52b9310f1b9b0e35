"""A summary reports symmetries of columns, and disagreement of chains for other reasons."""

import re

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.diagnostics import Symmetry, agreement, convergence, disagreement_warning, invariants, unexplained
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC


def two_places():
    """Columns known up to signs, and c in two modes that chains do not leave, each with its own U."""
    c = pyro.sample("c", dist.Normal(0.0, 4.0))
    U = pyro.sample("U", StiefelUniform(4, 2))
    pyro.factor("two", torch.logsumexp(-8 * (c - torch.tensor([-4.0, 4.0])) ** 2, 0))
    share = torch.sigmoid(8 * c)
    strengths = share * torch.tensor([40.0, 5.0]) + (1 - share) * torch.tensor([5.0, 40.0])
    pyro.factor("columns", (strengths * (U[0].square() - U[3].square())).sum())


def summary(starts, capsys):
    mcmc = MCMC(
        OHMC(two_places),
        100,
        100,
        num_chains=4,
        initial_params={"c": torch.tensor(starts), "U": StiefelUniform(4, 2).sample((4,))},
        disable_progbar=True,
    )
    mcmc.run()
    mcmc.summary(align=False)
    return mcmc.get_samples(group_by_chain=True), capsys.readouterr().out.splitlines()


def test_a_site_and_invariants_that_disagree_for_another_reason_are_named(capsys):
    draws, lines = summary([-4.0, 4.0, -4.0, 4.0], capsys)
    place = next(k for k, line in enumerate(lines) if line.startswith("`U` is known only up to the signs"))
    found = [convergence(x, ("r_hat", "ess_bulk")) for x in invariants(draws["U"], "signs").values()]
    worst = max(float(each["r_hat"].nan_to_num().max()) for each in found)
    least = min(float(each["ess_bulk"].nan_to_num(nan=torch.inf).min()) for each in found)
    assert worst > 1.2
    sentence = r"R-hat of the invariants is at most ([\d.]+), and their effective sample size at least (\d+)\."
    printed = [float(each) for each in re.fullmatch(sentence, lines[place + 1]).groups()]
    assert printed == [pytest.approx(worst, abs=1e-3), pytest.approx(least, abs=1)]
    assert lines[place + 2].startswith("No symmetry explains the R-hat of ")
    named = {name: float(value) for name, value in re.findall(r"(?:of|,|and) ([^()]+) \(([\d.]+)\)", lines[place + 2])}
    assert named["c"] == pytest.approx(float(convergence(draws["c"], ("r_hat",))["r_hat"]), abs=0.01)
    assert max(value for name, value in named.items() if name.startswith("U, ")) == pytest.approx(worst, abs=0.01)
    assert "U, squared entries" in named
    assert "chains may be in different modes" in lines[place + 2]


def test_what_only_symmetry_explains_has_no_other_reason():
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0]).reshape(4, 1, 1, 1)
    draws = {"U": signs * (1 + 0.1 * torch.randn(4, 400, 3, 2)), "c": torch.randn(4, 400)}
    density = torch.randn(4, 400)
    symmetry = Symmetry("signs", ("U",))
    assert unexplained(draws, [symmetry], density) is None
    assert unexplained(draws, [], density).startswith("No symmetry explains the R-hat of U (")
    density[2] += 2
    assert unexplained(draws, [symmetry], density).startswith("No symmetry explains the R-hat of log density (1.")
    assert "chains may be in different modes, may not have converged" in unexplained(draws, [symmetry], density)


def test_one_chain_many_short_ones_and_constants():
    x = torch.randn(1, 400)
    assert unexplained({"x": x, "constant": torch.ones(1, 400)}, []) is None
    x[:, 200:] += 3
    assert "the chain may have changed modes, may not have converged, or may mix slowly" in unexplained({"x": x}, [])
    short = {"x": torch.randn(64, 4)}
    assert unexplained(short, [], num_superchains=8) is None
    short["x"][:8] += 4
    assert "R-hat of x (" in unexplained(short, [], num_superchains=8)


def test_another_order_is_a_cause_only_where_sorted_values_agree():
    centres = torch.tensor([[-5.0, 5.0], [5.0, -5.0], [-5.0, 5.0], [5.0, -5.0]]).unsqueeze(1)
    density = torch.randn(4, 400)
    for draws, named in [
        (centres + torch.randn(4, 400, 2), True),
        (centres.abs() * torch.tensor([1.0, 2.0, 1.0, 2.0]).reshape(4, 1, 1) + torch.randn(4, 400, 2), False),
        (centres[..., 0] + torch.randn(4, 400), False),
    ]:
        said = disagreement_warning({"means": draws}, [], density)
        assert said.startswith("Chains disagree, R-hat of means (")
        assert ("Sorted values of `means` agree, and so does the log density" in said) is named
        assert ("order" in said) is named
    assert "another order" not in disagreement_warning({"means": centres + torch.randn(4, 400, 2)}, [], None)


def test_divergences_come_before_several_modes():
    draws = {"x": torch.randn(4, 400) + torch.tensor([0.0, 0.0, 0.0, 3.0]).unsqueeze(-1)}
    for said in (disagreement_warning(draws, [], divergences=2), unexplained(draws, [], divergences=2)):
        assert "2 divergences, " in said
        assert "modes" not in said
    assert "SMC(kernel)" in disagreement_warning(draws, [])


def test_too_few_draws_are_no_agreement():
    symmetry = Symmetry("signs", ("U",))
    assert agreement({"U": torch.randn(1, 5, 3, 2)}, symmetry).startswith("There are too few draws to compare chains")
    assert agreement({"U": torch.ones(4, 50, 3, 2)}, symmetry) == "All draws of the invariants are equal."


def test_nothing_is_reported_where_symmetries_cannot_be_evaluated(capsys):
    kernel = OHMC(
        lambda: (
            pyro.sample("U", StiefelUniform(4, 2)) + pyro.sample("c", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
        )
    )
    mcmc = MCMC(kernel, 5, 5, num_chains=3, save_params=["c"], disable_progbar=True)
    mcmc.run()
    mcmc.summary()
    assert "No symmetry" not in capsys.readouterr().out
