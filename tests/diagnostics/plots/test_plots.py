"""Pictures hold what they say: the right artists, at the right places, with the right labels."""

import sys

import matplotlib.pyplot as plt
import pytest
import torch
import xarray
from matplotlib.colors import to_rgba

from pyro_manifold.diagnostics import plot_columns, plot_loadings, plot_principal_angles
from pyro_manifold.manifolds import Stiefel
from tests.diagnostics.plots.drawing import draw

PLOTS = {"plot_columns": plot_columns, "plot_loadings": plot_loadings, "plot_principal_angles": plot_principal_angles}


def cloud(chains, draws, n, p, noise=0.1):
    return Stiefel().projection(torch.eye(n, p) + noise * torch.randn(chains, draws, n, p))


class TestFrames:
    def test_circle_has_a_cloud_and_an_arrow_for_each_column(self):
        draws = cloud(2, 100, 2, 2)
        ax = draw(plot_columns(draws))
        assert [cloud.get_label() for cloud in ax.collections] == ["column 1", "column 2"]
        for j, shown in enumerate(ax.collections):
            torch.testing.assert_close(torch.as_tensor(shown.get_offsets().data), draws[..., j].reshape(-1, 2))
            torch.testing.assert_close(torch.tensor(ax.texts[j].xy), draws[..., j].mean((0, 1)))

    def test_sphere_shows_at_most_the_draws_asked_for(self):
        ax = draw(plot_columns(cloud(4, 100, 3, 2), most_draws=90))
        clouds = [artist for artist in ax.collections if artist.get_label().startswith("column")]
        assert len(clouds) == 2
        assert all(len(shown._offsets3d[0]) == 80 for shown in clouds)  # every fifth

    def test_other_sizes_and_axes_are_refused(self):
        with pytest.raises(ValueError, match=r"^plot_columns: draws has shape .* only columns of length 2 or 3"):
            plot_columns(cloud(1, 5, 4, 2))
        with pytest.raises(ValueError, match=r"^plot_columns: ax has the wrong number of dimensions .*projection"):
            plot_columns(cloud(1, 5, 3, 2), ax=plt.subplots()[1])
        with pytest.raises(ValueError, match=r"^plot_columns: draws must have orthonormal columns"):
            plot_columns(torch.ones(1, 5, 3, 2))

    @pytest.mark.parametrize(("n", "p"), [(2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
    def test_axes_have_names_and_ticks_and_a_title_has_its_place(self, n, p):
        ax = plot_columns(cloud(1, 20, n, p))
        ax.set_title("Columns of the loadings")
        draw(ax)
        axes = [ax.xaxis, ax.yaxis, *([ax.zaxis] if n == 3 else [])]
        for k, axis in enumerate(axes):
            assert axis.get_label_text() == f"row {k + 1}"
            assert axis.get_ticklocs().tolist() == [-1, 0, 1]
        assert getattr(ax, "_axis3don", ax.axison)
        legend = ax.get_legend().get_window_extent()
        assert not legend.overlaps(ax.title.get_window_extent())
        for axis in axes:
            assert not legend.overlaps(axis.label.get_window_extent())
            assert not any(legend.overlaps(label.get_window_extent()) for label in axis.get_ticklabels())
        inside = ax.figure.bbox
        assert all(inside.contains(*corner) for corner in legend.corners())

    @pytest.mark.parametrize("n", [2, 3])
    def test_rounded_draws_are_projected_when_asked(self, n):
        draws = cloud(1, 20, n, 2)
        rounded = (draws * 1e4).round() / 1e4
        with pytest.raises(ValueError, match=r"^plot_columns: draws must have orthonormal columns.*use project=True"):
            plot_columns(rounded)
        ax = draw(plot_columns(rounded, project=True))
        first = next(artist for artist in ax.collections if artist.get_label() == "column 1")
        points = (
            first.get_offsets().data if n == 2 else torch.stack([torch.as_tensor(x.data) for x in first._offsets3d], -1)
        )
        points = torch.as_tensor(points)
        torch.testing.assert_close(points.norm(dim=-1), torch.ones(20), atol=1e-12, rtol=0)
        torch.testing.assert_close(points, draws[0, :, :, 0], atol=1e-3, rtol=0)
        with pytest.raises(
            ValueError, match=r"^plot_columns: project=True is for .* nearly orthonormal.*plot_loadings"
        ):
            plot_columns(2 * draws, project=True)


class TestPrincipalAngles:
    def test_a_title_has_its_place(self):
        ax = plot_principal_angles(cloud(3, 20, 5, 2))
        ax.set_title("Angles of the draws")
        legend = draw(ax).get_legend().get_window_extent()
        assert not legend.overlaps(ax.title.get_window_extent())
        assert not legend.overlaps(ax.xaxis.label.get_window_extent())

    def test_a_line_for_each_chain_in_degrees(self):
        turned = torch.tensor([0.0, 30.0, 90.0]).deg2rad()
        draws = torch.stack([turned.cos(), turned.sin()], -1).reshape(3, 1, 2, 1).expand(3, 7, 2, 1)
        ax = draw(plot_principal_angles(draws, reference=torch.tensor([[1.0], [0.0]])))
        assert [line.get_label() for line in ax.lines] == ["chain 0", "chain 1", "chain 2"]
        for line, degrees in zip(ax.lines, (0.0, 30.0, 90.0), strict=True):
            assert line.get_ydata() == pytest.approx([degrees] * 7)
        assert ax.get_ylabel() == "angle to\nthe reference (°)"

    def test_the_largest_angle_is_shown(self):
        """One direction is shared, the other turned by 30 degrees."""
        turned = torch.tensor([[1.0, 0.0], [0.0, 0.75**0.5], [0.0, 0.5]]).expand(1, 4, 3, 2)
        ax = draw(plot_principal_angles(turned, reference=torch.eye(3, 2)))
        assert ax.lines[0].get_ydata() == pytest.approx([30.0] * 4)

    def test_dependent_columns_are_named(self):
        with pytest.raises(ValueError, match=r"^plot_principal_angles: draws has linearly dependent"):
            plot_principal_angles(torch.ones(1, 5, 3, 2))
        with pytest.raises(ValueError, match=r"^plot_principal_angles: reference has linearly dependent"):
            plot_principal_angles(cloud(1, 5, 3, 2), reference=torch.ones(3, 2))

    def test_a_chain_elsewhere_is_above_the_others(self):
        draws = cloud(4, 50, 6, 2)
        draws[2] = Stiefel().projection(draws[2] + torch.ones(6, 2))
        ax = draw(plot_principal_angles(draws))
        heights = [line.get_ydata().mean() for line in ax.lines]
        assert heights.index(max(heights)) == 2
        assert ax.get_ylabel() == "largest angle to\nthe mean subspace (°)"


class TestLoadings:
    def test_cells_hold_mean_and_deviation(self):
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
    def test_digits_follow_the_size(self, size, text):
        ax = draw(plot_loadings(torch.full((1, 4, 2, 1), 2 * size)))
        assert ax.texts[0].get_text() == text

    def test_colour_scale_is_symmetric(self):
        image = draw(plot_loadings(torch.tensor([[3.0], [-1.0]]).expand(1, 4, 2, 1))).images[0]
        assert image.get_clim() == (-3.0, 3.0)
        assert image.get_array().tolist() == [[3.0], [-1.0]]

    def test_large_tables_mark_doubtful_signs_by_dots(self):
        mean = torch.ones(100, 3)
        mean[[7, 50], [2, 0]] = 0.0
        ax = draw(plot_loadings(mean + 0.1 * torch.randn(2, 100, 100, 3)))
        assert not ax.texts
        assert ax.collections[0].get_offsets().tolist() == [[2, 7], [0, 50]]
        assert len(ax.get_yticks()) <= 40

    def test_variables_of_inferencedata_bring_their_names(self):
        draws = xarray.DataArray(
            cloud(1, 5, 3, 2).numpy(), dims=("chain", "draw", "variable", "axis"), coords={"variable": ["a", "b", "c"]}
        )
        ax = draw(plot_loadings(draws))
        assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c"]
        assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2"]

    @pytest.mark.parametrize("names", [["a"], "abc"])
    def test_wrong_names_get_one_sentence(self, names):
        with pytest.raises(ValueError, match=r"^plot_loadings: row_names is .* expected a list of 3 names"):
            plot_loadings(cloud(1, 5, 3, 2), row_names=names)


@pytest.mark.parametrize("name", PLOTS)
class TestAll:
    def test_draws_on_given_axes_and_returns_them(self, name):
        ax = plt.subplots()[1]
        draws = cloud(2, 10, 2, 1).float().requires_grad_()
        assert PLOTS[name](draws, ax=ax) is ax
        assert len(plt.get_fignums()) == 1
        draw(ax)

    def test_sites_in_plates_and_single_draws_are_refused(self, name):
        with pytest.raises(ValueError, match=rf"^{name}: draws has shape .* plate one at a time"):
            PLOTS[name](cloud(2, 10, 3, 2).unsqueeze(2))
        with pytest.raises(ValueError, match=rf"^{name}: draws has shape \(3, 2\)"):
            PLOTS[name](torch.eye(3, 2))

    def test_says_what_to_install(self, name, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
        with pytest.raises(ImportError, match=f"^{name}: matplotlib is not installed; pip install matplotlib"):
            PLOTS[name](cloud(2, 10, 2, 1))
