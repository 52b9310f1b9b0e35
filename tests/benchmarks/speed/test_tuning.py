"""Posteriors for questions of tuning, and the figures of runs on them."""

import numpy as np
import pytest
import torch

from benchmarks.problems.posterior import Posterior, all_entries
from benchmarks.speed.tuning import acceptance
from benchmarks.speed.tuning.acceptance import worth
from benchmarks.speed.tuning.lengths import of_best
from benchmarks.speed.tuning.one_run import measured
from benchmarks.speed.tuning.posteriors import of_components, of_matrices, plate_of_matrices, stretched_langevin
from problems.models import orthonormal


def test_functionals_of_components_do_not_see_their_signs_and_order():
    draws = {
        "U": torch.stack([orthonormal(5, 3)[None]] * 2, 1),
        "scales": torch.rand(1, 2, 3),
        "noise": torch.rand(1, 2),
    }
    order = torch.tensor([2, 0, 1])
    changed = {
        "U": (draws["U"] * torch.tensor([1.0, -1.0, -1.0]))[..., order],
        "scales": draws["scales"][..., order],
        "noise": draws["noise"],
    }
    found, expected = of_components(changed), of_components(draws)
    assert set(found) == set(expected)
    assert all(torch.allclose(found[name], expected[name]) for name in found)


@pytest.mark.long
def test_a_run_reports_its_gradients_and_its_draws():
    found = measured(Posterior(stretched_langevin(), all_entries), chains=2, warmup=15, draws=10)
    assert found["warmup"] >= 15
    assert found["sampling"] >= 10
    assert 0 < found["ess_min"] <= found["ess_median"]
    plate = measured(Posterior(plate_of_matrices(groups=2), of_matrices), chains=2, warmup=15, draws=10)
    assert plate["rhat"] > 0


def test_a_length_between_two_of_the_curve_is_worth_what_lies_between():
    curve = {1.0: 10.0, 2.0: 40.0, 4.0: 10.0}
    assert of_best(curve, 2.0) == pytest.approx(1.0)
    assert of_best(curve, 2**0.5) == pytest.approx(0.5)
    assert of_best(curve, 100.0) == pytest.approx(0.25)


@pytest.mark.long
def test_worths_of_pairs_are_effective_draws_by_draw_and_by_gradient():
    posterior = Posterior(stretched_langevin(), all_entries)
    by_draw, by_gradient = worth(posterior, (0.8, 0.5), [0], (2, 30, 20))
    assert by_gradient <= by_draw  # a draw takes a gradient or more


def test_every_pair_is_held_against_the_first(monkeypatch, capsys):
    def known(posterior, pair, seeds, sizes):
        return np.log([1.0 if pair == acceptance.PAIRS[0] else 2.0, 1.0])

    monkeypatch.setattr(acceptance, "worth", known)
    acceptance.main(["--only", "hierarchy", "--seeds", "0"])
    rows = [row.strip("| ").split(" | ") for row in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[name, kind] for name in ("hierarchy", "all") for kind in ("draw", "gradient")]
    assert rows[0][2:] == ["1.00"] + ["2.00"] * (len(acceptance.PAIRS) - 1)
