"""The test of uniformity of all quantities together: its false alarms, power, thinning and band."""

import matplotlib
import numpy as np
import pytest
import scipy.stats

from pyro_manifold.contrib.calibration import Calibration, autocorrelation, number_of_draws, ranks_of_points

matplotlib.use("Agg")
LEVEL = 0.01


def calibration(points, level=LEVEL):
    """Calibration of ``(data sets, 1 + draws, quantities)``."""
    return Calibration(
        {f"q{k}": points[..., k] for k in range(points.shape[2])}, range(len(points)), len(points), level, {}
    )


def test_p_values_are_uniform():
    """Also for strongly dependent quantities, of which the smallest p-value times their number is no p-value."""
    random = np.random.default_rng(0)
    found, bounds = [], []
    for _ in range(60):
        x = random.standard_normal((60, 20))
        result = calibration(np.stack([x, -x, x + 0.1 * random.standard_normal((60, 20))], -1))
        found.append(result.p_value)
        bounds.append(min(1.0, 3 * result.p_values.min()))
    assert scipy.stats.kstest(found, "uniform").pvalue > 1e-4
    assert scipy.stats.kstest(bounds, "uniform").pvalue < 1e-4


def test_resolution():
    """A shift of 5 / √200 standard deviations is found in 9 of 10 studies, as the documentation says."""
    random, found = np.random.default_rng(1), 0
    for _ in range(12):
        points = random.standard_normal((200, 100, 4))
        points[:, 0, 0] += 5 / 200**0.5
        found += calibration(points).alarm
    assert found >= 7  # 10.8 expected, with a standard deviation of 1


def autoregressive(random, data_sets, draws, rho):
    """Draws of stationary Gaussian chains, after a true value that is independent of them."""
    x = random.standard_normal((data_sets, 1 + draws, 1))
    for t in range(2, 1 + draws):
        x[:, t] = rho * x[:, t - 1] + (1 - rho**2) ** 0.5 * x[:, t]
    return x


def test_draws_are_thinned_to_near_independence():
    random = np.random.default_rng(2)
    points = autoregressive(random, 200, 99, 0.6)
    draws, rho, _ = number_of_draws(points[:, 1:])
    assert 9 <= draws <= 39
    assert rho < 0.1
    # That of ranks is 6 / π asin(0.6 / 2) = 0.58; two standard errors and the mean of 99 draws take 0.03.
    assert autocorrelation(points[:, 1:]) == pytest.approx(0.55, abs=0.03)
    assert number_of_draws(random.standard_normal((200, 99, 1)))[0] == 99


def test_chains_that_hardly_mix_are_reported(capsys):
    result = calibration(autoregressive(np.random.default_rng(3), 100, 99, 0.999))
    assert result.draws == 9
    result.summary()
    assert "Successive draws have an autocorrelation of at least 0." in capsys.readouterr().out


def test_lines_leave_the_band_exactly_at_an_alarm():
    random, alarms = np.random.default_rng(4), 0
    for shift in np.linspace(0, 0.6, 6):
        points = random.standard_normal((100, 40, 2))
        points[:, 0, 0] += shift
        result = calibration(points, 0.05)
        low, high = result._uniformity.band(result._threshold)
        counts = np.stack(
            [np.bincount(r * 20 // (result.draws + 1), minlength=20).cumsum()[:-1] for r in result.ranks.T.values]
        )
        assert bool(((counts < low) | (counts > high)).any()) == result.alarm
        alarms += result.alarm
    assert 0 < alarms < 6


def test_ties_are_broken_at_random_and_constants_are_left_out():
    random = np.random.default_rng(5)
    counts = random.poisson(0.5, (400, 20, 1)).astype(float)
    points = np.concatenate([counts, np.ones_like(counts)], -1)
    result = calibration(points)
    assert list(result.ranks.columns) == ["q0"]
    assert not result.alarm
    assert set(ranks_of_points(np.zeros((50, 2, 1)), random)[:, 0, 0]) == {0, 1}


def test_directions_of_errors():
    random = np.random.default_rng(6)
    points = random.standard_normal((400, 100, 4))
    points[:, 0] = points[:, 0] * [1, 1, 2, 0.5] + [1, -1, 0, 0]
    assert list(calibration(points).table().draws) == ["too low", "too high", "too narrow", "too wide"]


def test_the_plot():
    result = calibration(np.random.default_rng(7).standard_normal((50, 20, 12)))
    labels = [text.get_text() for text in result.plot().get_legend().get_texts()]
    assert labels[0] == result.p_values.idxmin()
    assert [text.get_text() for text in result.plot(["q3"]).get_legend().get_texts()] == ["q3"]
    with pytest.raises(ValueError, match="expected a list of some of its columns"):
        result.plot(["x"])
