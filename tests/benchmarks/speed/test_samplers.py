"""The tables of samplers: figures that are known, and a run of one problem at tiny size."""

import json

import numpy as np
import pytest

from benchmarks.measure import Setting
from benchmarks.problems.page import PROBLEMS
from benchmarks.speed import samplers
from benchmarks.speed.plan import COMPILED, MICI, NUMPYRO, OURS, PYRO

pytest.importorskip("numpyro")
pytest.importorskip("mici")


def figures(peer, ess_min, seconds, compiling=0.0, **others):
    row = {"peer": peer, "seconds": seconds, "compiling": compiling, "cpu_seconds": seconds, "ess_min": ess_min}
    row |= {"ess_median": 2 * ess_min, "rhat": 1.0049, "means": {"x": (1.0, 0.3)}, "gradients": 20_000}
    return row | {"memory_mb": 512.4} | others


def cells_of(text):
    """``{peer: [cells]}`` of the Markdown table in a text, and its columns."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    columns, _, *rows = lines
    assert {len(line) for line in lines} == {len(columns)}
    return columns, {row[0]: row for row in rows}


def test_a_table_has_rates_and_ratios_with_and_without_compiling():
    rows = [
        figures(OURS, 900.0, 3.0, 1.0),
        figures(COMPILED, 90.0, 10.0, 9.0),
        figures(NUMPYRO, 1000.0, 5.0, 4.0),
        figures(PYRO, 20.0, 2.0, gradients=float("nan")),
        {"peer": MICI, "failed": "over 1800 s"},
    ]
    columns, found = cells_of(samplers.table_of(rows, {"x": (3.0, 0.4)}))
    assert list(found) == [row["peer"] for row in rows]
    assert dict(zip(columns[:7], found[OURS], strict=False)) == {
        "peer": OURS,
        "seconds": "3.0",
        "compiling": "1.0",
        "CPU seconds": "3.0",
        "min ESS": "900",
        "median ESS": "1800",
        "min ESS/s": "300.0",
    }
    assert columns[7:11] == ["ratio", "min ESS/s, once compiled", "ratio", "R-hat"]
    assert found[OURS][7:] == ["1.50", "450.0", "0.45", "1.005", "4.0", "2e+04", "512"]
    assert [row[7] for row in found.values()] == ["1.50", "0.04", "1.00", "0.05", ""]
    assert [row[9] for row in found.values()] == ["0.45", "0.09", "1.00", "0.01", ""]
    assert found[PYRO][12] == "nan"
    assert found[MICI][1:3] == ["over 1800 s", ""]


def test_a_table_may_compare_medians():
    columns, found = cells_of(samplers.table_of([figures(OURS, 900.0, 3.0)], {}, "ess_median"))
    assert columns[6] == "median ESS/s"
    assert found[OURS][6:8] == ["600.0", "nan"]
    assert found[OURS][11] == "nan"


def test_a_peer_that_fails_has_a_row(monkeypatch):
    monkeypatch.setattr(samplers, "measure_apart", lambda *_: (None, {"failed": "over 1 s"}))
    found = samplers.row("Langevin V(10,3)", Setting("Pyro NUTS", "Pyro NUTS", 1, 2, 3, {}), 1, 1)
    assert found == {"peer": "Pyro NUTS", "failed": "over 1 s"}


def test_ratios_stay_inside_their_table(monkeypatch, capsys):
    """With rates that grow with chains, a row of many chains is compared with none of few."""

    def known(problems, name, setting, threads, limit):
        draws = np.random.default_rng(0).standard_normal((4, 50))
        return dict.fromkeys(PROBLEMS[name].functionals, draws), figures(setting.name, 1.0, 1.0 / setting.chains)

    monkeypatch.setattr(samplers, "measure_apart", known)
    samplers.main(["--only", "V(10,3)"])
    tables = capsys.readouterr().out.split("\n**")[1:]
    assert [table.split(":")[0] for table in tables] == ["Like with like", "Like with like", "Many chains"]
    for table in tables:
        _, found = cells_of(table)
        assert {row[7] for row in found.values()} == {"1.00"}


def test_options_and_names_reach_the_process(monkeypatch):
    asked = []

    def in_this_process(problems, name, setting, threads, limit):
        asked.append((problems, name, json.loads(json.dumps(setting)), threads, limit))
        draws = np.random.default_rng(0).standard_normal((4, 50))
        return dict.fromkeys(PROBLEMS[name].functionals, draws), figures(setting.name, 1.0, 1.0)

    monkeypatch.setattr(samplers, "measure_apart", in_this_process)
    name = "mixture of the OHMC paper, V(3,2)"
    samplers.main(["--only", name, "--peers", "sequential", "--threads", "2", "--limit", "7", "--sizes", "4", "5", "6"])
    options = {"chain_method": "sequential", "max_tree_depth": 6}
    setting = ["NumPyro NUTS, sequential", "NumPyro", 4, 5, 6, options]
    assert asked == [("benchmarks.problems.page:PROBLEMS", name, setting, 2, 7)]


def test_one_problem_runs_end_to_end(capsys):
    samplers.main(["--only", "OHMC paper, V(3,2)", "--sizes", "4", "20", "30", "--peers", "Mici"])
    text = capsys.readouterr().out
    assert text.count("\n### ") == 1
    assert "Like with like: 4 chains × (20 + 30)" in text
    _, found = cells_of(text)
    assert found[MICI][7] == "1.00"
    assert float(found[MICI][12]) >= 4 * 50
