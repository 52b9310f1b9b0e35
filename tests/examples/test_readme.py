"""The README prints what its example prints, and the figures of its table of speed are those of the benchmarks."""

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RATES, PUBLISHED = ((ROOT / "docs" / "benchmarks" / f"{name}.md").read_text() for name in ("rates", "published"))
HEADER = ["mean", "std", "median", "hdi90_lb", "hdi90_ub", "ess_bulk", "ess_tail", "r_hat"]


def summary_table(text):
    """``{row: {column: number}}`` of what `summary` prints."""
    lines = [line.split() for line in text.splitlines()]
    start = lines.index(HEADER)
    rows = {}
    for line in lines[start + 1 :]:
        if len(line) != len(HEADER) + 1:
            break
        rows[line[0]] = dict(zip(HEADER, map(float, line[1:]), strict=True))
    return rows


def test_the_example_prints_the_table(capsys):
    """The same rows and columns; numbers within Monte Carlo error of two runs, and of rounding to two digits."""
    printed = summary_table(re.search(r"```text\n(.*?)```", README, re.DOTALL)[1])
    exec(re.search(r"```python\n(.*?)```", README, re.DOTALL)[1], {})
    run = summary_table(capsys.readouterr().out)
    assert list(run) == list(printed)
    for name, expected in printed.items():
        found, least = run[name], min(expected["ess_bulk"], expected["ess_tail"])
        assert found["r_hat"] <= 1.01, name
        assert expected["r_hat"] <= 1.01, name
        error = math.sqrt(2 / least) * expected["std"]  # of the difference of two means
        assert abs(found["mean"] - expected["mean"]) < 4 * error + 0.01, name
        for quantile in ("median", "hdi90_lb", "hdi90_ub"):  # the density there is at least 0.1 / std
            assert abs(found[quantile] - expected[quantile]) < 4 * 2.2 * error + 0.01, (name, quantile)
        assert found["std"] == pytest.approx(expected["std"], rel=4 / math.sqrt(least), abs=0.01), name
        assert 0.5 < found["ess_bulk"] / expected["ess_bulk"] < 2, name


def best_ratios(title):
    """The smallest median ratio of `OHMC` by a NumPyro row of a table: compiling counted, and once compiled."""
    table = RATES.split(f"#### {title}\n")[1].split("####")[0].split("<!--")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| NumPyro")]
    return [min(float(row[column].split()[0]) for row in rows) for column in (7, 9)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("mixture with 16 modes, V(3,2)", "mixture of the OHMC paper, V(3,2)"),
        ("matrix Langevin, V(10,3)", "Langevin V(10,3)"),
        ("matrix Langevin, V(50,5)", "Langevin V(50,5)"),
    ],
)
def test_rates_are_those_of_the_benchmarks(row, problem):
    cells = re.search(rf"\| {re.escape(row)} \|(.*)\|", README)[1].split("|")
    expected = best_ratios(f"{problem}: 4 chains, 500 + 500 iterations")
    expected += best_ratios(f"{problem}: 4 chains, 500 + 10,000 iterations")
    assert [cell.strip() for cell in cells] == [f"{ratio:.2g}" for ratio in expected]


@pytest.mark.parametrize("problem", ["20 matrices V(5,2) in a plate", "Bayesian PCA 200×50, rank 5"])
def test_rates_of_larger_problems_are_those_of_the_benchmarks(problem):
    cells = re.search(rf"\| {re.escape(problem)}, 1,000 \+ 1,000 \|(.*)\|", README)[1].split("|")
    expected = best_ratios(f"{problem}: 4 chains, 1,000 + 1,000 iterations")
    assert [cell.strip() for cell in cells[:2]] == [f"{ratio:.2g}" for ratio in expected]


def test_geometric_means_are_those_of_the_benchmarks():
    cells = re.search(r"\| 14 published models, geometric mean \|(.*)\|", README)[1].split("|")
    rows = re.findall(r"\| NumPyro \| ESS/s \| \d+ of 14 \| ([\d.]+) \|", PUBLISHED)
    assert [cell.strip() for cell in cells[:2]] == [f"{float(mean):.2g}" for mean in rows]
