"""Points, arrows and ellipses of biplots are those of the draws."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import xarray
from matplotlib.colors import to_rgba

from pyro_manifold.diagnostics import plot_biplot
from tests.diagnostics.plots.drawing import draw, share_inside


@pytest.fixture
def loadings():
    return torch.tensor([[1.0, 0.0, 0.2], [0.0, 0.5, 0.1], [-0.6, 0.6, 0.0]]) + 0.1 * torch.randn(4, 100, 3, 3)


@pytest.fixture
def scores():
    return 3 * torch.randn(5, 3) + 0.5 * torch.randn(4, 100, 5, 3)


def arrows(ax):
    return [text for text in ax.texts if text.arrow_patch is not None]


def test_points_and_arrows_are_means(loadings, scores):
    ax = draw(plot_biplot(loadings, scores, row_names=["a", "b", "c"]))
    (points,) = ax.collections
    np.testing.assert_allclose(points.get_offsets(), scores.mean((0, 1))[:, :2])
    tips = np.array([text.xy for text in arrows(ax)])
    means = loadings.mean((0, 1))[:, :2].numpy()
    factor = tips[0, 0] / means[0, 0]
    np.testing.assert_allclose(tips, factor * means)
    # The secondary axes undo the factor, and the longest arrow is as long as the longest score.
    np.testing.assert_allclose(ax.child_axes[0].get_xlim(), np.array(ax.get_xlim()) / factor)
    lengths = np.linalg.norm(tips, axis=1), scores.mean((0, 1))[:, :2].norm(dim=-1)
    assert max(lengths[0]) == pytest.approx(float(max(lengths[1])))
    assert [text.get_text() for text in ax.texts if text.get_text()] != []
    assert {text.get_text() for text in ax.texts} == {"", "a", "b", "c"}


@pytest.mark.parametrize("mass", [0.5, 0.94])
def test_ellipses_hold_the_share_of_the_draws(loadings, scores, mass):
    ax = draw(plot_biplot(loadings, scores, columns=(2, 0), prob=mass))
    of_scores, of_loadings = ax.patches[:5], ax.patches[5:]
    for k, ellipse in enumerate(of_scores):
        assert share_inside(ellipse, scores[..., k, [2, 0]].reshape(-1, 2)) == pytest.approx(mass, abs=1 / 400)
    factor = arrows(ax)[0].xy[1] / float(loadings.mean((0, 1))[0, 0])
    for k, ellipse in enumerate(of_loadings):
        inside = share_inside(ellipse, factor * loadings[..., k, [2, 0]].reshape(-1, 2))
        assert inside == pytest.approx(mass, abs=1 / 400)
    assert ax.get_xlabel() == "score on column 3"
    assert ax.get_legend().get_title().get_text() == f"each ellipse: {100 * mass:g} % of the draws"


def test_groups_have_colours_and_a_legend(loadings, scores):
    ax = draw(plot_biplot(loadings, scores, groups=["red", "white", "red", "white", "red"]))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["red", "white"]
    red, white = ax.collections
    np.testing.assert_allclose(red.get_offsets(), scores.mean((0, 1))[[0, 2, 4], :2])
    assert to_rgba(red.get_facecolor()[0]) != to_rgba(white.get_facecolor()[0])


def test_names_do_not_overlap(scores):
    """Five variables in nearly one direction."""
    loadings = torch.tensor([1.0, 0.0]) + 0.02 * torch.randn(1, 1, 5, 2) + 0.01 * torch.randn(4, 100, 5, 2)
    ax = draw(plot_biplot(loadings, scores[..., :2], row_names=["first", "second", "third", "fourth", "fifth"]))
    boxes = [text.get_window_extent() for text in ax.texts if text.get_text()]
    assert len(boxes) == 5
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])


def test_variables_of_inferencedata_bring_their_names(loadings, scores):
    labelled = xarray.DataArray(
        loadings.numpy(), dims=("chain", "draw", "variable", "axis"), coords={"variable": ["x", "y", "z"]}
    )
    ax = draw(plot_biplot(labelled, scores.numpy()))
    assert {text.get_text() for text in ax.texts} == {"", "x", "y", "z"}


def test_draws_on_given_axes_and_returns_them(loadings, scores):
    ax = plt.subplots()[1]
    assert plot_biplot(loadings.float().requires_grad_(), scores.float(), ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": torch.zeros(4, 99, 5, 3)}, r"scores has shape .* expected the same chains, draws and columns"),
        ({"scores": torch.zeros(5, 3)}, r"scores has shape \(5, 3\), expected \(chains, draws"),
        ({"loadings": torch.zeros(4, 100, 1, 3, 3)}, r"loadings has shape .* plate one at a time"),
        ({"loadings": torch.ones(4, 100, 3, 1), "scores": torch.ones(4, 100, 5, 1)}, "loadings has one column"),
        ({"columns": (0, 3)}, r"columns is \(0, 3\), expected two different indices from 0 to 2"),
        ({"columns": (1, 1)}, r"columns is \(1, 1\), expected two different indices"),
        ({"groups": ["a"]}, r"groups is .* expected a list of 5 names"),
        ({"row_names": ["a"]}, r"row_names is .* expected a list of 3 names"),
        ({"prob": 94}, r"prob is 94, expected a number between 0 and 1"),
        ({"ax": "3d"}, r"ax has three dimensions, expected two"),
    ],
)
def test_bad_input_gets_one_sentence(loadings, scores, change, message):
    if change.get("ax") == "3d":
        change = {"ax": plt.subplots(subplot_kw={"projection": "3d"})[1]}
    with pytest.raises(ValueError, match=f"^plot_biplot: {message}"):
        plot_biplot(**{"loadings": loadings, "scores": scores, **change})


def test_long_names_are_inside(loadings, scores):
    ax = draw(plot_biplot(loadings, scores, row_names=["a name that is long", "b", "another name that is long"]))
    inside = ax.get_window_extent()
    for text in ax.texts:
        if text.get_text():
            box = text.get_window_extent()
            assert inside.x0 <= box.x0
            assert box.x1 <= inside.x1


def test_names_and_arrows_are_legible_in_a_dark_style(loadings, scores):
    with plt.style.context("dark_background"):
        ax = plot_biplot(loadings, scores)
    for text in ax.texts:
        outlines = [effect._gc["foreground"] for effect in text.get_path_effects()]
        assert text.get_color() == "white"
        assert all(outline == ax.get_facecolor() for outline in outlines)
    assert ax.get_facecolor() == (0, 0, 0, 1)
