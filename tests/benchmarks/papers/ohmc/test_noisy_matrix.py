"""The noisy matrix: both parametrisations draw from the distribution with exact draws, and the program runs."""

import pytest

from benchmarks.papers.ohmc import noisy_matrix

# Noise and long steps are what the program compares.
pytestmark = pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")


@pytest.fixture(autouse=True)
def few_exact_draws(monkeypatch):
    exact = noisy_matrix.truths(200_000)
    monkeypatch.setattr(noisy_matrix, "truths", lambda: exact)


@pytest.mark.parametrize("name", ["SGHMC, polar chart, splitting", "OSGHMC, splitting"])
def test_small_steps_have_little_bias(name):
    _, _, bias, error, _ = noisy_matrix.run(name, 0.1, 0.1, chains=256, burn_in=150, draws=50)
    assert bias < 0.1 + 4 * error
    assert error < 0.05


def test_noise_of_the_gradient_shows():
    _, _, bias, error, _ = noisy_matrix.run("OSGHMC, euler", 0.2, 3.0, chains=256, burn_in=80, draws=50)
    assert bias > 0.2 + 4 * error


def test_a_step_that_is_too_long_is_reported_in_its_row(capsys):
    chosen = noisy_matrix.grid(0.1, [100.0], "cpu", chains=2, burn_in=0, draws=50)
    assert not chosen
    assert capsys.readouterr().out.count("became NaN or infinite") == len(noisy_matrix.KERNELS)


def test_runs(monkeypatch, capsys):
    name = "OSGHMC, splitting"
    monkeypatch.setattr(noisy_matrix, "KERNELS", {name: noisy_matrix.KERNELS[name]})
    monkeypatch.setattr(noisy_matrix, "NOISES", (0.1,))
    noisy_matrix.main(["--short"])
    assert capsys.readouterr().out.count(f"| {name} |") == 2 + 1
