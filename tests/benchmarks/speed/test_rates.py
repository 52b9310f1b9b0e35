"""Rates: which runs are asked for, and what their ratio is."""

import numpy as np

from benchmarks.speed import rates


def test_ratios_are_to_the_fastest_of_the_others(monkeypatch, capsys):
    asked = []

    def known(problems, name, setting, threads, limit):
        asked.append((problems, setting.name))
        draws = np.random.default_rng(0).standard_normal((4, 50))
        return {"x": draws}, {"seconds": 1.0 if setting.name == rates.OURS else 3.0 - len(asked) / 4, "compiling": 0.0}

    monkeypatch.setattr(rates, "measure_apart", known)
    rates.main(["--only", "V(10,3)", "--chains", "4", "--runs", "whole"])
    problems = "benchmarks.problems.page:PROBLEMS"
    assert asked == [(problems, peer) for peer in (rates.OURS, rates.NUMPYRO, rates.IN_TURN, rates.NUMPYRO_HMC)]
    assert capsys.readouterr().out.splitlines()[-1].endswith("| 2.00 |")
    asked.clear()
    rates.main(["--only", rates.MATRICES, "--runs", "whole"])
    assert {problems for problems, _ in asked} == {"benchmarks.speed.larger:PROBLEMS"}
