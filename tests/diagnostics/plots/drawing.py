"""What tests of plots share."""

import numpy as np


def draw(ax):
    """Layout errors and missing glyphs appear only now."""
    ax.figure.canvas.draw()
    return ax


def share_inside(ellipse, points):
    """Share of the points inside an ellipse of matplotlib, by its centre, width, height and angle alone."""
    turn = np.deg2rad(ellipse.angle)
    x, y = (np.asarray(points) - np.asarray(ellipse.center)).T
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    return np.mean((2 * along / ellipse.width) ** 2 + (2 * across / ellipse.height) ** 2 <= 1 + 1e-9)
