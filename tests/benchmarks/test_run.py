"""The headline benchmark: its tables from figures that are known, and a run of one problem at tiny size."""

import json

import numpy as np
import pytest

from benchmarks import run
from benchmarks.machine import machine
from benchmarks.measure import Setting
from benchmarks.peers import PEERS
from benchmarks.problems import PROBLEMS

pytest.importorskip("numpyro")
pytest.importorskip("mici")


def figures(peer, ess_min, seconds, **others):
    row = {"peer": peer, "sizes": "4 × (300 + 1000)", "seconds": seconds, "ess_min": ess_min, "ess_median": 2 * ess_min}
    row |= {"rhat": 1.0049, "means": {"x": (1.0, 0.3)}, "gradients": 20_000, "memory_mb": 512.4}
    return row | others


def cells_of(text):
    """``{peer: {column: cell}}`` of a Markdown table."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    columns, _, *rows = lines
    assert {len(line) for line in lines} == {len(columns)}
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def test_a_table_has_rates_ratios_and_deviations():
    rows = [
        figures(run.OURS, 900.0, 3.0),
        figures(run.COMPILED, 50.0, 10.0),
        figures("NumPyro NUTS, vectorised", 1000.0, 5.0),
        figures("Pyro NUTS", 20.0, 2.0, gradients=float("nan")),
        {"peer": "Mici constrained NUTS", "sizes": "4 × (300 + 1000)", "failed": "over 80 s"},
    ]
    found = cells_of(run.table_of(rows, {"x": (3.0, 0.4)}))
    assert list(found) == [row["peer"] for row in rows]
    assert found[run.OURS] == {
        "peer": run.OURS,
        "chains × (warm-up + draws)": "4 × (300 + 1000)",
        "seconds": "3.0",
        "min ESS/s": "300.0",
        "median ESS/s": "600.0",
        "ratio": "1.50",
        "R-hat": "1.005",
        "worst z": "4.0",
        "gradients": "2e+04",
        "µs/gradient": "150.0",
        "MB": "512",
    }
    assert [row["ratio"] for row in found.values()] == ["1.50", "0.03", "1.00", "0.05", ""]
    assert found["Pyro NUTS"]["gradients"] == "nan"
    late = found["Mici constrained NUTS"]
    assert (late["seconds"], late["min ESS/s"]) == ("over 80 s", "")


def test_without_peers_and_truths_a_table_says_so():
    found = cells_of(run.table_of([figures(run.OURS, 900.0, 3.0)], {}))[run.OURS]
    assert (found["ratio"], found["worst z"]) == ("nan", "nan")


def test_plans_are_of_known_peers_and_mici_is_where_it_can_be():
    for name in [*PROBLEMS, "network 270×3"]:
        settings = run.plan(name)
        assert {setting.peer for setting in settings} <= set(PEERS)
        assert any(setting.name.startswith(run.OURS) for setting in settings)
        assert any(not setting.name.startswith(run.OURS) for setting in settings)
        assert any(setting.peer == "Mici" for setting in settings) == (name == "mixture V(3,2)")


def test_a_peer_that_fails_has_a_row(monkeypatch):
    monkeypatch.setattr(run, "measure_apart", lambda *_: (None, {"failed": "over 1 s"}))
    found = run.row("mixture V(2,2)", Setting("Pyro NUTS", "Pyro NUTS", 1, 2, 3, {}), 1, 1)
    assert found == {"peer": "Pyro NUTS", "sizes": "1 × (2 + 3)", "failed": "over 1 s"}


def test_one_problem_runs_end_to_end_and_is_written(tmp_path, capsys):
    arguments = ["--only", "V(3,2)", "--sizes", "4", "20", "30", "--write", str(tmp_path)]
    run.main([*arguments, "--peers", "Mici"])
    (page,) = tmp_path.iterdir()
    text = page.read_text()
    assert machine(1) in text
    assert capsys.readouterr().out.count("## mixture V(3,2)") == text.count("\n## ") == 1
    found = cells_of(text.split("## mixture V(3,2)")[1].strip())["Mici constrained NUTS"]
    assert found["chains × (warm-up + draws)"] == "4 × (20 + 30)"
    assert float(found["min ESS/s"]) > 0
    assert found["ratio"] == "1.00"
    assert float(found["gradients"]) >= 4 * 50


def test_options_and_names_reach_the_process(monkeypatch):
    asked = []

    def in_this_process(problems, name, setting, threads, limit):
        asked.append((problems, name, json.loads(json.dumps(setting)), threads, limit))
        draws = np.random.default_rng(0).standard_normal((4, 50))
        return dict.fromkeys(PROBLEMS[name].functionals, draws), figures(setting.name, 1.0, 1.0)

    monkeypatch.setattr(run, "measure_apart", in_this_process)
    run.main(["--only", "V(2,2)", "--peers", "sequential", "--threads", "2", "--limit", "7"])
    setting = ["NumPyro NUTS, sequential", "NumPyro", 4, 500, 2000, {"chain_method": "sequential"}]
    assert asked == [("benchmarks.problems:PROBLEMS", "mixture V(2,2)", setting, 2, 7)]
