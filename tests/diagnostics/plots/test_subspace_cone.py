"""The cone is around the mean subspace and holds the share of the draws."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from pyro_manifold.diagnostics import plot_subspace_cone
from pyro_manifold.manifolds import Stiefel
from tests.diagnostics.plots.drawing import draw


def cloud(n, p, noise=0.15):
    return Stiefel().projection(torch.linalg.qr(torch.randn(n, p))[0] + noise * torch.randn(4, 250, n, p))


def directions(draws):
    """Unit vectors of lines, or normals of planes in space, by NumPy."""
    flat = draws.reshape(-1, *draws.shape[-2:]).numpy()
    return flat[:, :, 0] if flat.shape[-1] == 1 else np.cross(flat[:, :, 0], flat[:, :, 1])


def half_angle_and_axis(draws, mass):
    """By the leading eigenvector of the second moment, and the quantile of angles to it."""
    units = directions(draws)
    axis = np.linalg.eigh(units.T @ units)[1][:, -1]
    angles = np.arccos(np.clip(np.abs(units @ axis), 0, 1))
    return np.sort(angles)[math.ceil(mass * len(angles)) - 1], axis


@pytest.mark.parametrize("mass", [0.5, 0.94])
@pytest.mark.parametrize("p", [1, 2])
def test_the_cone_in_space_holds_the_share(p, mass):
    draws = cloud(3, p)
    ax = draw(plot_subspace_cone(draws, prob=mass))
    angle, axis = half_angle_and_axis(draws, mass)
    rims = [np.array(line.get_data_3d()).T for line in ax.lines if len(line.get_data_3d()[0]) == 61]
    assert len(rims) == 2
    for rim in rims:
        np.testing.assert_allclose(np.linalg.norm(rim, axis=1), 1.0)
        np.testing.assert_allclose(np.abs(rim @ axis), math.cos(angle), atol=1e-6)
    middle = next(np.array(line.get_data_3d()).T for line in ax.lines if len(line.get_data_3d()[0]) == 2)
    assert abs(middle[1] @ axis) == pytest.approx(1.0)
    text = ax.get_legend().get_texts()[-1].get_text()
    assert text.startswith(f"{100 * mass:g} % cone: ± ")
    assert float(text.split("± ")[1].rstrip("°")) == pytest.approx(math.degrees(angle), abs=0.51)


def test_the_cone_in_the_plane_holds_the_share():
    draws = cloud(2, 1)
    ax = draw(plot_subspace_cone(draws, prob=0.9))
    angle, axis = half_angle_and_axis(draws, 0.9)
    assert len(ax.patches) == 2
    for wedge in ax.patches:
        assert wedge.theta2 - wedge.theta1 == pytest.approx(2 * math.degrees(angle))
        middle = math.radians((wedge.theta1 + wedge.theta2) / 2)
        assert abs(math.cos(middle) * axis[0] + math.sin(middle) * axis[1]) == pytest.approx(1.0)


@pytest.mark.parametrize(("n", "p"), [(2, 1), (3, 1), (3, 2)])
def test_signs_and_rotations_do_not_matter(n, p):
    draws = cloud(n, p)
    turned = draws @ torch.linalg.qr(torch.randn(4, 250, p, p))[0]
    labels = [draw(plot_subspace_cone(each)).get_legend().get_texts()[-1].get_text() for each in (draws, turned)]
    first, second = (float(label.split("± ")[1].rstrip("°")) for label in labels)
    assert first == pytest.approx(second, abs=1 if first >= 9.5 else 0.1)  # the last digit that is printed


def test_at_most_the_draws_asked_for_are_shown_on_both_sides():
    ax = draw(plot_subspace_cone(cloud(3, 1), most_draws=90))
    shown = next(artist for artist in ax.collections if artist.get_label() == "draws")
    assert len(shown._offsets3d[0]) == 2 * 84  # every twelfth


def test_draws_on_given_axes_and_returns_them():
    ax = plt.subplots()[1]
    assert plot_subspace_cone(cloud(2, 1).float().requires_grad_(), ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 2)])
def test_other_sizes_are_refused(shape):
    with pytest.raises(ValueError, match=r"^plot_subspace_cone: draws has shape .* only lines .* have a cone to draw"):
        plot_subspace_cone(cloud(*shape))


def test_bad_input_gets_one_sentence():
    draws = cloud(3, 1)
    with pytest.raises(ValueError, match=r"^plot_subspace_cone: ax has the wrong number of dimensions"):
        plot_subspace_cone(draws, ax=plt.subplots()[1])
    with pytest.raises(ValueError, match=r"^plot_subspace_cone: prob is 2, expected a number between 0 and 1"):
        plot_subspace_cone(draws, prob=2)
    with pytest.raises(ValueError, match=r"^plot_subspace_cone: most_draws=0, expected at least 1"):
        plot_subspace_cone(draws, most_draws=0)
    with pytest.raises(ValueError, match=r"^plot_subspace_cone: draws has linearly dependent columns"):
        plot_subspace_cone(torch.ones(2, 5, 3, 2))
