"""Summaries of draws whose effective size and mean are known, and ratios of rates."""

import math

import numpy as np
import pytest

from benchmarks.estimates import mean_and_error, ratios, summary, worst_deviation
from problems.monte_carlo import STANDARD_ERRORS


def autoregressive(rng, correlation, chains=50, draws=2000):
    """Stationary chains of mean 3 and variance 1, whose effective size is n (1 - ρ) / (1 + ρ)."""
    x = np.empty((chains, draws))
    x[:, 0] = rng.standard_normal(chains)
    for k in range(1, draws):
        x[:, k] = correlation * x[:, k - 1] + (1 - correlation**2) ** 0.5 * rng.standard_normal(chains)
    return 3 + x


def test_errors_are_those_of_the_correlation():
    draws = autoregressive(np.random.default_rng(0), 0.6)
    mean, error = mean_and_error(draws)
    exact = (4.0 / draws.size) ** 0.5  # (1 + 0.6) / (1 - 0.6) = 4
    assert error == pytest.approx(exact, rel=0.1)
    assert abs(mean - 3) < STANDARD_ERRORS * exact


def test_the_smallest_size_and_the_worst_agreement_are_shown():
    rng = np.random.default_rng(1)
    values = {
        "independent": autoregressive(rng, 0.0),
        "slow": autoregressive(rng, 0.9),
        "apart": rng.standard_normal((50, 2000)) + np.linspace(-2, 2, 50)[:, None],
    }
    alone = {name: summary({name: value}) for name, value in values.items()}
    found = summary(values)
    assert found["ess_min"] == min(each["ess_min"] for each in alone.values())
    assert found["ess_median"] == alone["slow"]["ess_min"] == pytest.approx(100_000 / 19, rel=0.1)
    assert alone["independent"]["ess_min"] == pytest.approx(100_000, rel=0.1)
    assert found["rhat"] == alone["apart"]["rhat"] > 1.3
    assert alone["slow"]["rhat"] < 1.02


def test_the_worst_deviation_is_in_errors_of_both():
    means = {"a": (1.0, 0.3), "b": (0.0, 0.1), "unknown": (9.0, 0.1)}
    assert worst_deviation(means, {"a": (3.0, 0.4), "b": (0.2, 0.0)}) == pytest.approx(4.0)
    assert math.isnan(worst_deviation(means, {}))


def row(peer, ess, seconds=2.0):
    return {"peer": peer, "ess": ess, "seconds": seconds}


def test_ratios_are_to_the_best_of_the_others_and_failures_have_none():
    rows = [row("ours", 12.0), row("ours, compiled", 40.0, 4.0), row("good", 8.0), row("poor", 1.0)]
    rows.append({"peer": "late", "failed": "over 1 s"})
    found = ratios(rows, lambda row: row["ess"] / row["seconds"], "ours")
    assert found[:4] == [1.5, 2.5, 1.0, 0.125]
    assert math.isnan(found[4])


@pytest.mark.parametrize("others", [[], [{"peer": "late", "failed": "over 1 s"}]])
def test_without_figures_of_others_there_is_no_ratio(others):
    found = ratios([row("ours", 12.0), *others], lambda row: row["ess"], "ours")
    assert all(map(math.isnan, found))
