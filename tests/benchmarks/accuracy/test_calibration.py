"""Kernels under simulation-based calibration, and what it does not let pass.

All comparisons of right kernels together are held to 1 %. NUTS, which takes minutes, is left to
``python -m benchmarks.accuracy.calibration``.
"""

import warnings

import numpy as np
import pytest
import scipy.stats

from benchmarks.accuracy.calibration import BROKEN, KERNELS, LEVEL, Outcome, calibrate, main, saved
from problems.calibration import QUANTITIES
from pyro_manifold.contrib.calibration import BINS, Uniformity
from tests.parameters import long_except

DATA_SETS, DRAWS = 500, 19
VECTORISED = [name for name, way in KERNELS.items() if not way.one_by_one]
THRESHOLD = LEVEL / (len(VECTORISED) * len(QUANTITIES))


@pytest.mark.long
@pytest.mark.parametrize("name", VECTORISED)
def test_ranks_are_uniform(name):
    assert min(calibrate(name, DATA_SETS, DRAWS).p_values) > THRESHOLD


@pytest.mark.parametrize("name", long_except(BROKEN, "a short warm-up"))
@pytest.mark.long
def test_what_is_broken_is_found_out(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains that hardly moved, which is what is asked for
        # More data sets than above, so that the power is far from the threshold.
        outcome = calibrate(name, 2 * DATA_SETS, DRAWS)
    assert min(outcome.p_values) <= THRESHOLD


def test_p_values_are_exact():
    """They are those of simulated uniform ranks, and discrete: a p-value p comes at most as often as p says."""
    uniformity, random = Uniformity(100), np.random.default_rng(0)
    statistics = np.array([uniformity.statistic(random.integers(0, 40, 100), 39) for _ in range(1000)])
    for level in (0.02, 0.1, 0.5):
        threshold = uniformity.threshold(level)
        exact = uniformity.p_value(threshold)
        assert level / 3 < exact <= level
        found = int((statistics <= threshold).sum())
        error = (exact * (1 - exact) * len(statistics)) ** 0.5
        assert abs(found - exact * len(statistics)) < 4 * error
    low, high = uniformity.band(uniformity.threshold(0.1))
    assert (low < 100 * np.arange(1, BINS) / BINS).all()
    assert (high > 100 * np.arange(1, BINS) / BINS).all()


def test_p_values_see_a_shift_and_another_width():
    """True values a quarter of a standard deviation off, or spread by a quarter less, among 1000 data sets."""
    random = np.random.default_rng(1)
    draws = random.standard_normal((1000, 99))
    uniformity = Uniformity(1000)
    for truth in (random.standard_normal(1000) + 0.25, 0.75 * random.standard_normal(1000)):
        ranks = (draws < truth[:, None]).sum(1)
        assert uniformity.p_value(uniformity.statistic(ranks, 99)) < THRESHOLD
        assert scipy.stats.kstest((ranks + random.random(1000)) / 100, "uniform").pvalue < 1e-3


def test_the_command_reports_deviations(tmp_path, capsys, monkeypatch):
    """A variant that is wrong on purpose, and whose ranks are uniform."""
    uniform = Outcome(np.arange(20).repeat(len(QUANTITIES)).reshape(20, -1), 19, 1.0)
    monkeypatch.setattr("benchmarks.accuracy.calibration.calibrate", lambda *_: uniform)
    path = tmp_path / "ranks.png"
    assert main(["--only", "a short warm-up", "--data-sets", "20", "--picture", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "| a short warm-up | 20 | 19 |" in printed
    assert printed.endswith("Not as expected: a short warm-up\n")
    assert path.stat().st_size > 1000


def test_ranks_are_kept_and_read(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "ranks.npz"
    arguments = ["--only", "a short warm-up", "--data-sets", "20", "--results", str(path)]
    main(arguments)
    kept = saved(path)["a short warm-up"]
    again = calibrate("a short warm-up", 20)
    assert (kept.ranks == again.ranks).all()
    assert kept.draws == again.draws == 19

    def not_again(*_):
        raise AssertionError("the row is in the file")

    monkeypatch.setattr("benchmarks.accuracy.calibration.calibrate", not_again)
    picture = tmp_path / "ranks.png"
    main([*arguments, "--picture", str(picture)])
    assert picture.stat().st_size > 1000
