"""The programs run end to end at tiny size, and their figures are right for draws of a known distribution."""

import json

import numpy as np
import pytest
import torch

from benchmarks.accuracy.msd import agreement, starts
from benchmarks.peers import PEERS
from benchmarks.problems.coefficient_moments import gaussian
from benchmarks.problems.coefficients import POSTERIORS, banana
from benchmarks.speed.msd import collinear, pilot, step_cost

LINEAR = POSTERIORS["collinear linear"]


def draws_of(truth, chains=20, draws=200):
    normal = np.random.default_rng(0).standard_normal((chains, draws, len(truth.mean)))
    return truth.mean + normal @ np.linalg.cholesky(truth.covariance).T


def test_figures_of_independent_draws_of_the_truth():
    """22 deviations of the right distribution, below 4 standard errors but for 1.4 of 1,000 seeds."""
    truth = gaussian(LINEAR)
    found = collinear.figures(draws_of(truth), truth)
    assert max(found["z"], found["z_squares"]) < 4.0
    assert 0.8 < found["ess_min"] / 4000 <= found["ess_median"] / 4000 < 1.2
    assert 0.8 < found["ess_squares"] / 4000 < 1.2
    assert found["variances"] == pytest.approx([1, 1], abs=0.1)
    assert found["rhat"] < 1.01


def test_figures_see_a_distribution_that_is_too_narrow_along_one_axis():
    truth = gaussian(LINEAR)
    _, axes = truth.principal_axes()
    w = draws_of(truth)
    shortest = ((w - truth.mean) @ axes[:, -1])[..., None] * axes[:, -1]
    found = collinear.figures(w - 0.2 * shortest, truth)
    assert found["z_squares"] > 4.0
    assert found["variances"][1] == pytest.approx(0.64, abs=0.07)


def test_ratios_are_to_the_best_of_the_other_packages():
    row = {"sizes": "1 × (1 + 1)", "rhat": 1.0, "z": 0.0, "z_squares": 0.0, "bias": 0.0, "memory_mb": 1.0}
    row |= {"ess_median": 9.0, "ess_squares": 8.0, "variances": [1.0, 1.0], "seconds": 2.0, "cpu_seconds": 1.0}
    rows = [
        row | {"peer": "pyro_manifold MSD", "ess_min": 6.0},
        row | {"peer": "good", "ess_min": 4.0},
        row | {"peer": "poor", "ess_min": 1.0},
        {"peer": "late", "sizes": "1 × (1 + 1)", "failed": "over 1 s"},
    ]
    lines = collinear.table_of(rows).splitlines()
    columns = [name.strip() for name in lines[0].split("|")]
    ratios = [line.split("|")[columns.index("ratio")].strip() for line in lines[2:5]]
    assert ratios == ["1.50", "1.00", "0.25"]
    assert "over 1 s" in lines[5]
    assert {line.count("|") for line in lines} == {len(columns) - 1}


def test_collinear_runs_end_to_end(capsys, monkeypatch):
    def in_this_process(problems, name, setting, threads, limit):
        values = LINEAR.values({"w": draws_of(gaussian(LINEAR), setting.chains, setting.draws)})
        return values, {"seconds": 1.0, "cpu_seconds": 1.0, "memory_mb": 1.0}

    monkeypatch.setattr(collinear, "measure_apart", in_this_process)
    collinear.main(["--posteriors", "collinear linear", "--only", "OHMC", "--draws", "10"])
    printed = capsys.readouterr().out
    assert "condition number 9998" in printed
    assert "| pyro_manifold OHMC, full mass | 64 × (300 + 10) | 1.0 |" in printed


def test_every_peer_is_known_and_names_its_options():
    rows = [*collinear.msd_peers(), *collinear.other_peers()]
    assert {row.peer for row in rows} <= set(PEERS)
    assert all(json.loads(json.dumps(peer.options)) == peer.options for peer in rows)


def test_agreement_runs_end_to_end(capsys, monkeypatch):
    monkeypatch.setattr(agreement, "small_posteriors", lambda: [banana()])
    monkeypatch.setattr(agreement, "long_nuts", lambda posterior, draws: torch.randn(4, draws, 2).numpy())
    monkeypatch.setattr(agreement, "exact_msd", lambda posterior, chains, draws: (torch.randn(4, 50, 2).numpy(), 1.0))
    agreement.main(["--nuts", "100"])
    assert "5 moments" in capsys.readouterr().out


def test_comparisons_see_a_shift():
    ours, theirs = torch.randn(4, 1000, 2).numpy(), torch.randn(4, 1000, 2).numpy()
    found, sizes = agreement.compare(ours, theirs)
    assert max(abs(each.z) for each in found) < 4.0  # of five: 3 of 10,000 seeds
    assert min(sizes) > 2000
    found, _ = agreement.compare(ours + 0.2, theirs)
    assert found[0].z > 4.0


@pytest.mark.long
def test_chains_that_never_accept_are_stuck(monkeypatch):
    monkeypatch.setattr(starts, "DRAWS", 20)
    monkeypatch.setattr(starts, "WARMUP", 2)
    with pytest.warns(UserWarning, match="moved in fewer than 5 % of iterations"):
        assert starts.stuck(POSTERIORS["Poisson"], 2.0, 0.5, 3, chains=50) > 0.2
    assert starts.stuck(POSTERIORS["Poisson"], 0.1, 0.1, 1, chains=50) == 0


@pytest.mark.long
def test_pilot_and_step_cost_print_a_row_each(capsys):
    pilot.main("banana", grid=[(0.5, 1)], chains=2, draws=6, warmup=1)
    step_cost.main((3,), ((False, False),))
    printed = capsys.readouterr().out
    assert "| 0.5 | 1 |" in printed
    assert "| unadjusted | 3 |" in printed
