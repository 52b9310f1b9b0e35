"""Long runs that are kept, and not used for another run, and refused where chains disagree."""

import json

import numpy as np
import pytest

from benchmarks.measure import Setting
from benchmarks.problems import truths

RUN = Setting("truth", "NumPyro", 2, 3, 4, {})


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Runs that were made; the draws are independent."""
    made = []

    def measure_apart(problems, name, setting, threads, limit):
        made.append(setting)
        draws = np.random.default_rng(0).standard_normal((4, 500))
        return {"x": draws}, {"seconds": 1.0}

    monkeypatch.setattr(truths, "FOLDER", tmp_path)
    monkeypatch.setattr(truths, "measure_apart", measure_apart)
    return made


def test_a_run_is_made_once_and_again_for_another_length(runs, tmp_path):
    first = truths.long_run("a problem", RUN)
    assert truths.long_run("a problem", RUN) == first
    assert len(runs) == 1
    assert json.loads((tmp_path / "a problem.json").read_text())["run"] == list(RUN)
    mean, error = first["x"]
    assert abs(mean) < 4 * error < 0.2
    truths.long_run("a problem", RUN._replace(draws=5))
    assert len(runs) == 2


def test_chains_that_disagree_are_no_truth(runs, monkeypatch, tmp_path):
    apart = np.random.default_rng(0).standard_normal((4, 500)) + np.arange(4)[:, None]
    monkeypatch.setattr(truths, "measure_apart", lambda *_, **__: ({"x": apart}, {"seconds": 1.0}))
    with pytest.raises(RuntimeError, match="disagree"):
        truths.long_run("a problem", RUN)
    monkeypatch.setattr(truths, "measure_apart", lambda *_, **__: (None, {"failed": "over 1 s"}))
    with pytest.raises(RuntimeError, match="failed: over 1 s"):
        truths.long_run("a problem", RUN)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_means(runs, capsys):
    truths.main("a problem")
    assert len(runs) == 1
    assert capsys.readouterr().out.count("| x |") == 1
