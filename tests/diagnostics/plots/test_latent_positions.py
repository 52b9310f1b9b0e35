"""Nodes, links and ellipses of latent positions are those of the draws."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from pyro_manifold.diagnostics import plot_latent_positions
from tests.diagnostics.plots.drawing import draw, share_inside

LINKS = [(0, 1), (0, 3), (2, 3)]


@pytest.fixture
def positions():
    return 3 * torch.randn(4, 3) + 0.5 * torch.randn(4, 100, 4, 3).exp()


@pytest.fixture
def adjacency():
    matrix = torch.zeros(4, 4)
    for i, j in LINKS:
        matrix[i, j] = matrix[j, i] = 1.0
    return matrix


def test_nodes_are_means_and_lines_are_links(positions, adjacency):
    ax = draw(plot_latent_positions(positions, adjacency, columns=(0, 2)))
    lines, nodes = ax.collections
    means = positions.mean((0, 1))[:, [0, 2]].numpy()
    np.testing.assert_allclose(nodes.get_offsets(), means)
    for (i, j), segment in zip(LINKS, lines.get_segments(), strict=True):
        np.testing.assert_allclose(segment, means[[i, j]])
    assert ax.get_ylabel() == "position, column 3"
    assert not ax.texts


def test_a_link_in_one_direction_is_a_line(positions):
    directed = torch.zeros(4, 4, dtype=torch.long)
    directed[3, 1] = 1
    lines = draw(plot_latent_positions(positions, directed)).collections[0]
    means = positions.mean((0, 1))[:, :2].numpy()
    np.testing.assert_allclose(lines.get_segments(), [means[[1, 3]]])


@pytest.mark.parametrize("mass", [0.5, 0.94])
def test_ellipses_hold_the_share_of_the_draws(positions, mass):
    ax = draw(plot_latent_positions(positions, prob=mass))
    for k, ellipse in enumerate(ax.patches):
        assert share_inside(ellipse, positions[..., k, :2].reshape(-1, 2)) == pytest.approx(mass, abs=1 / 400)
    assert len(ax.patches) == 4
    assert ax.get_legend().get_title().get_text() == f"each ellipse: {100 * mass:g} % of the draws"


def test_groups_and_names(positions, adjacency):
    ax = draw(plot_latent_positions(positions, adjacency, ["a", "", "c", ""], groups=np.array([1, 2, 2, 1])))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["1", "2"]
    assert [text.get_text() for text in ax.texts] == ["a", "c"]
    np.testing.assert_allclose(ax.collections[1].get_offsets(), positions.mean((0, 1))[[0, 3], :2])


def test_names_are_on_the_side_without_links():
    """The names of the ends of a star are outside of it."""
    ends = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])
    adjacency = torch.zeros(4, 4)
    adjacency[0, 1:] = 1
    star = torch.cat([torch.zeros(1, 2), ends]) + 0.01 * torch.randn(2, 200, 4, 2)
    texts = draw(plot_latent_positions(star, adjacency, ["", "right", "left", "top"])).texts
    for text, end in zip(texts, ends, strict=True):
        np.testing.assert_allclose(text.get_position(), 2.5 * end, atol=0.1)  # offset in points
    assert [text.get_ha() for text in texts] == ["left", "right", "center"]
    assert [text.get_va() for text in texts] == ["center", "center", "bottom"]


def test_draws_on_given_axes_and_returns_them(positions):
    ax = plt.subplots()[1]
    assert plot_latent_positions(positions.float().requires_grad_().detach().numpy(), ax=ax) is ax
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": torch.ones(4, 3)}, r"positions has shape \(4, 3\), expected \(chains, draws"),
        ({"positions": torch.ones(4, 100, 4, 1)}, "positions has one column, expected at least two"),
        ({"adjacency": torch.ones(3, 4)}, r"adjacency has shape \(3, 4\), expected a matrix of shape \(4, 4\)"),
        ({"adjacency": "links"}, r"adjacency is 'links', expected a matrix"),
        ({"row_names": ["a"]}, r"row_names is .* expected a list of 4 names"),
        ({"columns": (0, 5)}, r"columns is \(0, 5\), expected two different indices from 0 to 2"),
        ({"prob": 0}, r"prob is 0, expected a number between 0 and 1"),
    ],
)
def test_bad_input_gets_one_sentence(positions, arguments, message):
    with pytest.raises(ValueError, match=f"^plot_latent_positions: {message}"):
        plot_latent_positions(**{"positions": positions, **arguments})
