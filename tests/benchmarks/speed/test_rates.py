"""Rates: which runs are asked for, and what their ratios are."""

import json

import numpy as np
import pytest

from benchmarks.peers import PEERS
from benchmarks.problems.page import PROBLEMS
from benchmarks.speed import larger, rates

LANGEVIN = "Langevin V(10,3)"


@pytest.fixture
def asked(monkeypatch):
    """Settings by which runs are asked for; ours takes 1 second, others 3, half of it compiling."""
    settings = []

    def known(problems, name, setting, threads, limit):
        settings.append((problems, json.loads(json.dumps(setting))))
        seconds = 1.0 if setting.name == rates.OURS else 3.0
        draws = np.random.default_rng(0).standard_normal((4, 50))
        return {"x": draws}, {"seconds": seconds, "compiling": seconds / 2, "cpu_seconds": seconds}

    monkeypatch.setattr(rates, "measure_apart", known)
    monkeypatch.setattr(rates, "truths_of", lambda problem: {"x": (0.0, 1.0)})
    return settings


def figures(size=100.0, seconds=2.0, compiling=1.0):
    return rates.Figures(size, seconds, compiling, seconds, 1.0049, 1.26)


def test_rows_have_raw_figures_and_the_median_and_range_of_ratios():
    ours = [figures(), figures(200.0), figures(150.0)]
    theirs = [figures(50.0), figures(50.0, 4.0), figures(50.0, 1.5, 0.5)]
    row = dict(zip(rates.COLUMNS[:7], rates.cells("peer", theirs, ours), strict=False))
    assert row == {
        "sampler": "peer",
        "min ESS": "50, 50, 50",
        "seconds": "2.0, 4.0, 1.5",
        "compiling": "1.0, 1.0, 0.5",
        "CPU seconds": "2.0, 4.0, 1.5",
        "ESS/s": "25 [12.5, 33.3]",
        "ratio": "2.25 [2, 8]",
    }
    _, ratio, rhat, deviation = rates.cells("peer", theirs, ours)[-4:]
    assert ratio == "3 [2, 12]"
    assert (rhat, deviation) == ("1.005", "1.3")
    assert rates.cells("ours", ours, ours)[6] == ""


def test_a_run_that_fails_has_a_row():
    ours = [figures(), figures()]
    assert rates.cells("peer", [figures(), "over 1 s"], ours) == ["peer", "over 1 s"]
    assert rates.cells("peer", ours, ["over 1 s", figures()])[6] == "–"


def test_seeds_and_options_reach_every_run(asked, capsys):
    rates.main(["--only", "paper, V(3,2)", "--chains", "4", "--runs", "whole", "--seeds", "0", "2"])
    peers = [rates.OURS, rates.NUMPYRO, rates.IN_TURN, rates.NUMPYRO_HMC, rates.NUTPIE]
    assert [setting[0] for _, setting in asked] == [peer for peer in peers for _ in range(2)]
    assert [setting[-1]["seed"] for _, setting in asked] == [0, 2] * len(peers)
    assert all(setting[2:5] == [4, 500, 500] for _, setting in asked)
    assert ["max_tree_depth" in setting[-1] for _, setting in asked[::2]] == [False, True, True, False, True]
    assert capsys.readouterr().out.count("| 3 [3, 3] |") == 8  # two ratios of each of the four others


def test_larger_problems_have_their_own_sizes(asked):
    rates.main(["--only", larger.MATRICES, "--seeds", "1"])
    assert {problems for problems, _ in asked} == {"benchmarks.speed.larger:PROBLEMS"}
    assert {tuple(setting[2:5]) for _, setting in asked} == {(4, 1000, 1000)}
    asked.clear()
    rates.main(["--only", LANGEVIN, "--chains", "64", "--seeds", "1"])
    assert [setting[0] for _, setting in asked] == [rates.OURS, rates.NUMPYRO]


def test_peers_and_problems_are_known():
    assert {module for module, _ in rates.CONFIGURATIONS.values()} <= set(PEERS)
    assert set(rates.SMALL) <= set(PROBLEMS)
    assert set(rates.LARGER) <= set(larger.PROBLEMS)
    assert not rates.truths_of(larger.PROBLEMS[larger.MATRICES])
