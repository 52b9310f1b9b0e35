"""Tables of loadings hold what they say: numbers at the right places, with the right labels."""

import sys

import matplotlib.pyplot as plt
import pytest
import torch
import xarray
from matplotlib.colors import to_rgba

from pyro_manifold.diagnostics import plot_loadings
from pyro_manifold.manifolds import Stiefel
from tests.diagnostics.plots.drawing import draw


def cloud(chains, draws, n, p, noise=0.1):
    return Stiefel().projection(torch.eye(n, p) + noise * torch.randn(chains, draws, n, p))


def test_cells_hold_mean_and_deviation():
    signs = torch.tensor([1.0, -1.0]).reshape(1, 2, 1, 1)
    draws = torch.tensor([[2.0, -1.0], [0.0, 1.0], [0.5, 0.1]]) + 0.25 * signs
    ax = draw(plot_loadings(draws, row_names=["a", "b", "c"], column_names=["x", "y"]))
    assert [text.get_text() for text in ax.texts[:3]] == ["2.00 ± 0.25", "−1.00 ± 0.25", "0.00 ± 0.25"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y"]
    # Grey where the sign is in doubt: 0 ± 0.25 and 0.1 ± 0.25.
    assert [to_rgba(text.get_color()) == to_rgba("0.5") for text in ax.texts] == [
        False, False, True, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "text"), [(1e-3, "0.0020 ± 0.0000"), (1e3, "2000 ± 0")])
def test_digits_follow_the_size(size, text):
    ax = draw(plot_loadings(torch.full((1, 4, 2, 1), 2 * size)))
    assert ax.texts[0].get_text() == text


def test_colour_scale_is_symmetric():
    image = draw(plot_loadings(torch.tensor([[3.0], [-1.0]]).expand(1, 4, 2, 1))).images[0]
    assert image.get_clim() == (-3.0, 3.0)
    assert image.get_array().tolist() == [[3.0], [-1.0]]


def test_large_tables_mark_doubtful_signs_by_dots():
    mean = torch.ones(100, 3)
    mean[[7, 50], [2, 0]] = 0.0
    ax = draw(plot_loadings(mean + 0.1 * torch.randn(2, 100, 100, 3)))
    assert not ax.texts
    assert ax.collections[0].get_offsets().tolist() == [[2, 7], [0, 50]]
    assert len(ax.get_yticks()) <= 40


def test_variables_of_inferencedata_bring_their_names():
    draws = xarray.DataArray(
        cloud(1, 5, 3, 2).numpy(), dims=("chain", "draw", "variable", "axis"), coords={"variable": ["a", "b", "c"]}
    )
    ax = draw(plot_loadings(draws))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]


@pytest.mark.parametrize("names", [["a"], "abc"])
def test_wrong_names_get_one_sentence(names):
    with pytest.raises(ValueError, match=r"^plot_loadings: row_names is .* expected a list of 3 names"):
        plot_loadings(cloud(1, 5, 3, 2), row_names=names)


def test_draws_on_given_axes_and_returns_them():
    ax = plt.subplots()[1]
    assert plot_loadings(cloud(2, 10, 2, 1).float().requires_grad_(), ax=ax) is ax
    assert len(plt.get_fignums()) == 1
    draw(ax)


def test_sites_in_plates_and_single_draws_are_refused():
    with pytest.raises(ValueError, match=r"^plot_loadings: draws has shape .* plate one at a time"):
        plot_loadings(cloud(2, 10, 3, 2).unsqueeze(2))
    with pytest.raises(ValueError, match=r"^plot_loadings: draws has shape \(3, 2\)"):
        plot_loadings(torch.eye(3, 2))


def test_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"^plot_loadings: matplotlib is not installed; pip install matplotlib"):
        plot_loadings(cloud(2, 10, 2, 1))
