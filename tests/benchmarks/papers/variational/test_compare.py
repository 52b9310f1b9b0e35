"""Guides are compared with long runs, small: tables, figures on disk and the picture of them."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks.papers.variational import compare, figure, methods, problems, truth

pytest.importorskip("numpyro")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Random numbers in place of long runs, kept in a folder of the test's."""

    def sample(model, x, y):
        draws = {"coefficients": np.random.standard_normal((2, 50, x.shape[-1]))}
        if model is truth.numpyro_spline:
            draws |= {name: np.random.uniform(0.1, 0.9, (2, 50)) for name in ("smoothing", "noise", "outliers")}
        return draws | {"seconds": np.array(1.0), "divergences": np.array(0)}

    for program in (truth, compare, figure):
        monkeypatch.setattr(program, "CACHE", tmp_path)
    monkeypatch.setattr(truth, "sample", sample)
    monkeypatch.setattr(methods, "elbo", partial(methods.elbo, draws=3))
    monkeypatch.setattr(compare, "draws", lambda guide, data: methods.draws(guide, data, 5))
    return tmp_path


def test_splines_are_compared_and_drawn(small, capsys):
    rows = compare.main(["spline", "--steps", "70", "--methods", compare.MEAN_FIELD, "Stiefel Adam", "--ranks", "1"])
    assert [row["method"] for row in rows] == ["NUTS", compare.MEAN_FIELD, "Stiefel Adam"]
    assert json.loads((small / "spline.json").read_text())[1]["method"] == compare.MEAN_FIELD
    assert capsys.readouterr().out.count("| NUTS |") == 2
    figure.main(str(small / "elbo.png"), rank=1)
    assert (small / "elbo.png").exists()


def test_reference_values_are_reported(small, monkeypatch, capsys):
    """The folds of other data stand for the ionosphere's, which CI does not have."""

    def folds(*_):
        x, y = torch.randn(2, 12, 3), torch.bernoulli(torch.full((2, 12), 0.5))
        return [problems.Split(x[k], y[k], x[1 - k], y[1 - k]) for k in range(2)]

    monkeypatch.setattr(truth, "ionosphere_folds", folds)
    truth.main()
    out = capsys.readouterr().out
    assert out.count("most frequent") == out.count("lowest") == 2
    assert "smoothing: " in out
