"""Estimates and their errors, and the bias of a step that is plainly too long is seen."""

import numpy as np
import pytest
import torch

from benchmarks.accuracy.msd import bias
from benchmarks.accuracy.msd.bias import (
    CURVED,
    Estimate,
    Row,
    Size,
    estimate,
    picture,
    rows_of_curved_problem,
    table_of,
)
from problems import curved_regression
from problems.monte_carlo import STANDARD_ERRORS


def test_estimates_have_the_errors_of_independent_chains():
    common = torch.randn(400, 1)  # chains that do not move: the number of chains is all that counts
    found = estimate(common.expand(400, 50))
    assert abs(found.value) < STANDARD_ERRORS * 400**-0.5
    assert 0.8 < found.error * 400**0.5 < 1.2


@pytest.mark.long
def test_a_long_step_has_the_bias_by_quadrature_and_a_shorter_one_less(monkeypatch):
    monkeypatch.setattr(bias, "WARMUP", 100)
    short, long = rows_of_curved_problem("posterior", (0.15, 0.35), Size(300, 150), compiled=False)
    at_long, at_short = (row.estimates["variance"] for row in (long, short))
    assert at_long.value > STANDARD_ERRORS * at_long.error
    assert abs(at_short.value) < abs(at_long.value)
    truth, _ = curved_regression.expectations("posterior")
    assert at_long.value == pytest.approx(long.estimates["q₁²"].value / truth - 1)
    assert 0 < long.acceptance < short.acceptance <= 1
    for line in ("| ε | q₁² | variance | divergences | adjusted accepts |", "| 0.15 |"):
        assert line in table_of([short, long])


def test_the_picture_takes_biases_that_are_not_seen(tmp_path):
    rows = [Row(size, {"variance": Estimate(size**2, 0.01)}, 0, 1.0) for size in (0.05, 0.2, 0.5)]
    names = ["logistic", "Poisson", "banana", *(f"{CURVED} {target}" for target in bias.TARGETS)]
    picture(dict.fromkeys(names, rows), tmp_path / "bias.png")
    assert (tmp_path / "bias.png").stat().st_size > 0


def test_biases_of_a_posterior_are_in_its_own_units(monkeypatch):
    """Draws of a distribution that is half a standard deviation off and twice as wide."""
    (posterior,) = [each for each in bias.small_posteriors() if each.name == "banana"]
    truth = bias.truth_of(posterior)

    def follow(run, step_size, adjusted, warmup, draws):
        normal = torch.randn(500, 100, 2).numpy()
        return truth.mean + truth.deviation * (0.5 + 2**0.5 * normal), 0, 1.0

    monkeypatch.setattr(bias, "prepared", lambda start, **options: None)
    monkeypatch.setattr(bias, "follow", follow)
    (row,) = bias.rows_of_posterior(posterior, (0.1,), Size())
    for name, expected in (("mean", 0.5), ("variance", 2.0 + 0.25 - 1)):
        found = row.estimates[name]
        assert abs(found.value - expected) < (STANDARD_ERRORS + 1) * found.error
        assert np.isfinite(found.error)


def test_every_problem_has_a_table_and_a_line_of_the_picture(monkeypatch, tmp_path, capsys):
    def rows(problem, step_sizes, size):
        assert size == Size(4, 5)
        return [Row(step_size, {"variance": Estimate(0.5, 0.01)}, 0, 1.0) for step_size in step_sizes]

    monkeypatch.setattr(bias, "rows_of_posterior", rows)
    monkeypatch.setattr(bias, "rows_of_curved_problem", rows)
    bias.main(["--size", "4", "5", "--step-sizes", "0.1", "0.2", "--picture", str(tmp_path / "bias.png")])
    assert capsys.readouterr().out.count("| 0.2 |") == len(bias.small_posteriors()) + len(bias.TARGETS)
    assert (tmp_path / "bias.png").exists()
