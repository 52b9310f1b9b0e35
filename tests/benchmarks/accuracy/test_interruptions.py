"""A few kills; `python -m benchmarks.accuracy.interruptions` has many."""

import random

import pytest

from benchmarks.accuracy import interruptions
from benchmarks.accuracy.interruptions import RUNS, check, run
from pyro_manifold.store import StoredRun
from tests.infer.mcmc.compilers import native_code


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks: the children have one thread
@pytest.mark.parametrize("name", ["OHMC, thinned", "OSGHMC with a loader"])
def test_runs_that_are_killed_are_those_that_are_not(name):
    where = check(name, 3, random.Random(name))
    assert where["before"] + where["warm-up"] + where["draws"] == 3


@pytest.mark.long
@native_code
def test_native_code_is_made_in_the_middle_and_stored(tmp_path):
    """Draws after it differ by rounding, so it belongs to the state: a resumed run makes it where the first did."""
    name = "OHMC, native code"
    mcmc = run(name, tmp_path)
    assert mcmc.kernel.run.policy.made
    assert StoredRun(tmp_path).draws == RUNS[name]()[1]["num_samples"]


def test_kills_are_spread_over_runs(monkeypatch, capsys):
    def reported(name, kills, chance):
        return {"before": 0, "warm-up": kills, "draws": 0, "runs": kills + 1}

    monkeypatch.setattr(interruptions, "check", reported)
    interruptions.main(["--kills", str(2 * len(RUNS)), "--seed", "0"])
    assert capsys.readouterr().out.count("| 0 | 2 | 0 | 3 |") == len(RUNS)
