"""What the package asks of ArviZ, against truths that depend on no version of ArviZ."""

import importlib.abc
import importlib.machinery
import math
import os
import sys
from pathlib import Path

import arviz
import numpy as np
import pytest
import xarray

from pyro_manifold.diagnostics import (
    autocorrelations,
    default_probability,
    effective_sizes,
    elpd_data,
    imported_arviz,
    inference_data,
    installed_arviz,
    is_before_1,
    of_datasets,
    pareto_shape,
)
from tests.diagnostics.either_arviz import compare

QUANTILES = (np.arange(10_000) + 0.5) / 10_000


@pytest.mark.parametrize("k", [-1.0, 0.2, 0.5, 0.8, 1.3])
def test_the_shape_of_exact_pareto_weights(k):
    """Weights u^-k, u uniform: those above any limit are generalised Pareto of shape k; for k = -1 they are uniform.

    The draws are quantiles, so that nothing is random. The fit is to the largest 3 √10,000, with a prior that has the
    weight of ten at k = 1/2. Weights of the other sign of k have the shape -k.
    """
    expected = (300 * k + 10 * 0.5) / 310
    order = np.random.default_rng(0).permutation(len(QUANTILES))
    assert pareto_shape(-k * np.log(QUANTILES[order])) == pytest.approx(expected, abs=0.03)
    assert pareto_shape(700 - k * np.log(QUANTILES[order])) == pytest.approx(expected, abs=0.03)


def test_equal_weights_have_no_tail():
    assert pareto_shape(np.full(200, -3.2)) == -math.inf
    assert pareto_shape(1e6 + 1e-10 * np.random.default_rng(0).standard_normal(200)) == -math.inf


def test_the_probability_is_that_of_arviz():
    assert default_probability() == (0.94 if is_before_1() else 0.89)
    with arviz.rc_context({"stats.ci_prob": 0.8}):
        assert default_probability() == 0.8


def test_effective_sizes_of_tails_are_those_of_the_5_and_95_percent_quantiles():
    """Of the indicators of a draw below them, by their definition; of any other quantiles they differ."""
    generator = np.random.default_rng(0)
    values = np.cumsum(generator.standard_normal((4, 500)), axis=1) * 0.05 + generator.standard_normal((4, 500))
    indicators = [(values <= np.quantile(values, q)).astype(float) for q in (0.05, 0.95, 0.11, 0.89)]
    sizes = [float(effective_sizes(each, "mean")) for each in indicators]
    assert float(effective_sizes(values, "tail")) == pytest.approx(min(sizes[:2]), rel=1e-6)
    assert min(sizes[:2]) != pytest.approx(min(sizes[2:]), rel=0.05)
    table = xarray.Dataset({"x": (("chain", "draw"), values)})
    assert float(effective_sizes(table, "tail")["x"]) == pytest.approx(min(sizes[:2]), rel=1e-6)


def test_autocorrelations_of_a_wave():
    """Covariances at each lag are sums over the pairs, divided by the number of draws."""
    wave = np.cos(2 * np.pi * np.arange(400) / 8) * np.ones((2, 1))
    found = autocorrelations(wave)
    assert found.shape == wave.shape
    np.testing.assert_allclose(found[:, [0, 4, 8]], [[1.0, -396 / 400, 392 / 400]] * 2, atol=1e-10)


@pytest.mark.parametrize("folds", [5, None])
def test_scores_of_held_out_observations_have_one_set_of_names(folds):
    scores = np.array([-1.0, -2.0, -4.0])
    found = elpd_data(scores, 100, folds)
    assert found.elpd == -7.0
    assert found.se == pytest.approx(np.std(scores, ddof=1) * 3**0.5)
    assert found.elpd_i.values.tolist() == scores.tolist()
    assert (found.n_samples, found.n_data_points, found.scale, bool(found.warning)) == (100, 3, "log", False)
    assert "-7.00" in str(found)
    assert isinstance(found, arviz.ELPDData)


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of ArviZ, by pandas 3.1
@pytest.mark.parametrize("folds", [5, None])
def test_arviz_ranks_them_by_differences(folds):
    """The standard error of a difference that is the same for all observations is zero."""
    scores = np.random.default_rng(0).standard_normal(40)
    table = compare({"low": elpd_data(scores - 2, 10, folds), "high": elpd_data(scores, 10, folds)})
    assert table.index.tolist() == ["high", "low"]
    assert table.elpd_diff["low"] == pytest.approx(80.0)
    assert table.dse["low"] == pytest.approx(0.0, abs=1e-6)
    assert table.weight["high"] > 0.99


def test_a_format_that_is_not_known_is_an_error_in_words(monkeypatch):
    def other(**fields):
        raise TypeError("unexpected field")

    monkeypatch.setattr(installed_arviz, "elpd_data", lambda *_: other())
    with pytest.raises(ImportError, match=r"^ArviZ .* another format of arviz\.ELPDData .*\(unexpected field\): pip"):
        installed_arviz.check_elpd_data()


def test_groups_names_and_attributes_are_the_same_in_each_version():
    draws = np.zeros((200, 3, 2))  # more chains than draws
    data = {"posterior": {"x": draws}, "log_likelihood": {"y": draws}, "observed_data": {"y": np.zeros(2)}}
    idata = inference_data(data, {"axis": ["p", "q"]}, {"x": ["axis"]}, {"inference_library": "ours"})
    assert set(idata) == set(data)
    assert idata.attrs["inference_library"] == "ours"
    assert idata.posterior["x"].dims == ("chain", "draw", "axis")
    assert idata.posterior["x"].coords["axis"].values.tolist() == ["p", "q"]
    assert idata.observed_data["y"].shape == (2,)
    again = of_datasets({"posterior": xarray.Dataset({"x": (("chain", "draw"), draws[..., 0])})}, {"thinning": 2})
    assert set(again) == {"posterior"}
    assert again.posterior["x"].shape == (200, 3)
    assert again.attrs["thinning"] == 2


class _NeedsAFolder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An ArviZ that writes a note to a folder of the user when it is imported, as 0.23 does."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "arviz" else None

    def exec_module(self, module):
        folder = Path(os.environ["XDG_CACHE_HOME"])
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "note").write_text("today")


def test_a_home_that_cannot_be_written_is_no_error(monkeypatch):
    finder = _NeedsAFolder()
    monkeypatch.delitem(sys.modules, "arviz")
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/home")
    with pytest.raises(OSError, match="/dev/null"):
        import arviz  # noqa: F401
    assert imported_arviz().__loader__ is finder
    assert os.environ["XDG_CACHE_HOME"] == "/dev/null/home"
