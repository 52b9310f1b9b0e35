"""Scree plots show means and shortest intervals."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray

from pyro_manifold.diagnostics import plot_scree
from tests.diagnostics.either_arviz import shortest_interval
from tests.diagnostics.plots.drawing import draw

SCALES = torch.tensor([3.0, 2.0, 0.5])


@pytest.fixture
def scales():
    return SCALES * (0.3 * torch.randn(4, 250, 3)).exp()


@pytest.mark.parametrize("mass", [0.5, 0.94])
def test_points_are_means_and_lines_are_intervals(scales, mass):
    ax = draw(plot_scree(scales, prob=mass))
    points = next(line for line in ax.lines if line.get_marker() == "o")
    np.testing.assert_allclose(points.get_ydata(), scales.mean((0, 1)))
    segments = ax.collections[0].get_segments()
    for k, segment in enumerate(segments):
        np.testing.assert_allclose(segment[:, 1], shortest_interval(scales[..., k], mass))
        np.testing.assert_allclose(segment[:, 0], k)
    assert ax.get_ylabel() == f"scale, shortest {100 * mass:g} % intervals"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "3"]
    assert ax.get_ylim()[0] == 0


def test_noise_is_a_band(scales):
    noise = torch.randn(4, 250).exp()
    ax = draw(plot_scree(scales, noise, prob=0.8))
    (band,) = ax.patches
    corners = band.get_bbox()
    np.testing.assert_allclose([corners.y0, corners.y1], shortest_interval(noise, 0.8))
    line = next(line for line in ax.lines if len(line.get_ydata()) == 2)
    assert line.get_ydata() == pytest.approx([float(noise.mean())] * 2)
    assert [text.get_text() for text in ax.texts] == ["noise"]


def test_variables_of_inferencedata_bring_their_names(scales):
    labelled = xarray.DataArray(scales.numpy(), dims=("chain", "draw", "axis"), coords={"axis": ["x", "y", "z"]})
    ax = draw(plot_scree(labelled))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y", "z"]
    named = draw(plot_scree(labelled, column_names=["a", "b", "c"]))
    assert [label.get_text() for label in named.get_xticklabels()] == ["a", "b", "c"]


def test_draws_on_given_axes_and_returns_them(scales):
    ax = plt.subplots()[1]
    assert plot_scree(scales.float().requires_grad_(), ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scales": torch.ones(10, 3)}, r"scales has shape \(10, 3\), expected \(chains, draws, p\)"),
        ({"scales": torch.ones(1, 1, 3)}, r"scales has shape .* at least two draws"),
        ({"noise": torch.ones(4, 249)}, r"noise has shape \(4, 249\), expected \(4, 250\)"),
        ({"noise": torch.ones(1000)}, r"noise has shape \(1000,\), expected \(chains, draws\)"),
        ({"column_names": "abc"}, r"column_names is 'abc', expected a list of 3 names"),
        ({"prob": 1.0}, r"prob is 1.0, expected a number between 0 and 1"),
    ],
)
def test_bad_input_gets_one_sentence(scales, arguments, message):
    with pytest.raises(ValueError, match=f"^plot_scree: {message}"):
        plot_scree(**{"scales": scales, **arguments})
    with pytest.raises(TypeError, match=r"^plot_scree: scales is a list, expected a torch tensor"):
        plot_scree([1.0, 2.0])
