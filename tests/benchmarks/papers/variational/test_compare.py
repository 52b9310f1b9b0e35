"""Guides are compared with long runs, small: tables, figures on disk and the picture of them."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.papers.variational import compare, figure, methods, problems, truth
from tests.benchmarks.requirements import needs


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Random numbers in place of long runs, kept in a folder of the test's."""

    def sample(model, x, y):
        draws = {"coefficients": np.random.standard_normal((2, 50, x.shape[-1]))}
        if model is truth.numpyro_spline:
            names = "persistence", "prior_variance", "noise_variance"
            draws |= {name: np.random.uniform(0.1, 0.9, (2, 50)) for name in names}
        return draws | {"seconds": np.array(1.0), "divergences": np.array(0)}

    for program in (truth, compare, figure):
        monkeypatch.setattr(program, "CACHE", tmp_path)
    monkeypatch.setattr(truth, "sample", sample)
    monkeypatch.setattr(methods, "elbo", partial(methods.elbo, count=3))
    monkeypatch.setattr(compare, "draws", partial(methods.draws, count=5))
    return tmp_path


@pytest.mark.long
@needs("numpyro")  # for its R-hat
def test_splines_are_compared_and_drawn(small, monkeypatch, capsys):
    monkeypatch.setattr(figure, "RANK", 1)
    options = ["spline", "--steps", "70", "--seeds", "2", "--ranks", "0", "1", "--methods"]
    rows = compare.main([*options, compare.MEAN_FIELD, "Stiefel Adam", "Stiefel basic"])
    names = ["NUTS", "mean field basic", "mean field", "Stiefel Adam", "Stiefel basic"]
    assert [row["method"] for row in rows] == names
    assert [len(row["error to the curve"]) for row in rows[1:]] == [2] * 4
    assert json.loads((small / "spline.json").read_text())[1]["method"] == names[1]
    assert capsys.readouterr().out.count("| NUTS |") == 1
    figure.main([str(small)])
    assert {file.stem for file in small.glob("*.png")} == {f"variational_{name}" for name in ("elbo", "ranks", "fits")}


def made_up(*_):
    """Two folds of a regression, since CI has neither the ionosphere's data nor those of leukemia."""
    x, y = torch.randn(2, 12, 3), torch.bernoulli(torch.full((2, 12), 0.5))
    return [problems.Split(x[k], y[k], x[1 - k], y[1 - k]) for k in range(2)]


@pytest.mark.long
@pytest.mark.parametrize(("problem", "fits"), [("ionosphere", 2), ("leukemia", 3)])
def test_classifications_are_compared(problem, fits, small, monkeypatch, capsys):
    monkeypatch.setattr(compare, "data_of", lambda name, *_: made_up() if name == "ionosphere" else made_up()[0])
    seeds = ["--seeds", "3"] if problem == "leukemia" else []
    options = [problem, "--alone", "--steps", "70", "--ranks", "1", *seeds, "--methods"]
    rows = compare.main([*options, compare.MEAN_FIELD, "Grassmann RMSProp"])
    errors = "test errors of 34" if problem == "leukemia" else "test error %"
    assert [(row["method"], len(row[errors]), len(row["ELBO"])) for row in rows] == [
        (name, fits, fits) for name in (compare.MEAN_FIELD, "Grassmann RMSProp")
    ]
    whole = 34 if problem == "leukemia" else 100
    assert all(0 <= error <= whole for row in rows for error in row[errors])
    cases = torch.tensor([12 * error / whole for row in rows for error in row[errors]])
    torch.testing.assert_close(cases, cases.round())  # of 12 in the test
    assert capsys.readouterr().out.count("| Grassmann RMSProp |") == 1


def test_when_a_curve_is_flat_and_how_much_it_oscillates():
    falling = [(10 * k, -40.0 * 0.5**k) for k in range(1, 21)]  # within 5 after three halvings
    assert figure.flattening(falling)[0] == 30
    zigzag = [(k, 0.1 * (-1) ** k) for k in range(20)]
    assert figure.flattening(zigzag) == (0, pytest.approx(0.4))


@pytest.mark.long
@needs("numpyro")  # for its R-hat
def test_reference_values_are_reported(small, monkeypatch, capsys):
    monkeypatch.setattr(truth, "ionosphere_folds", made_up)
    truth.main()
    out = capsys.readouterr().out
    assert out.count("most frequent") == out.count("lowest") == 2
    assert "persistence: " in out
