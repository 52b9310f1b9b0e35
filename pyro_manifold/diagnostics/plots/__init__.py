"""Plots of draws of loadings, scores and scales; axes and colours for other plots."""

from pyro_manifold.diagnostics.plots.axes import COLOURS, axes_for, legend_below
from pyro_manifold.diagnostics.plots.biplot import plot_biplot
from pyro_manifold.diagnostics.plots.credible import (
    credible_ellipses,
    credible_mass,
    in_percent,
    shortest_interval,
    smallest_radius,
)
from pyro_manifold.diagnostics.plots.loadings import plot_loadings
from pyro_manifold.diagnostics.plots.scree import plot_scree

__all__ = [
    "plot_biplot",
    "plot_loadings",
    "plot_scree",
]
