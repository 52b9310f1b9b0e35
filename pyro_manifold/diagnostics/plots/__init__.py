"""Plots of draws of orthonormal matrices, loadings, scores, latent positions and evidences."""

from pyro_manifold.diagnostics.plots.biplot import plot_biplot
from pyro_manifold.diagnostics.plots.columns import plot_columns
from pyro_manifold.diagnostics.plots.credible import (
    credible_ellipses,
    credible_mass,
    in_percent,
    shortest_interval,
    smallest_radius,
)
from pyro_manifold.diagnostics.plots.evidence import plot_evidence
from pyro_manifold.diagnostics.plots.latent_positions import plot_latent_positions
from pyro_manifold.diagnostics.plots.loadings import plot_loadings
from pyro_manifold.diagnostics.plots.principal_angles import plot_principal_angles
from pyro_manifold.diagnostics.plots.ranks import draw_ranks
from pyro_manifold.diagnostics.plots.scree import plot_scree
from pyro_manifold.diagnostics.plots.subspace_cone import plot_subspace_cone

__all__ = [
    "plot_biplot",
    "plot_columns",
    "plot_evidence",
    "plot_latent_positions",
    "plot_loadings",
    "plot_principal_angles",
    "plot_scree",
    "plot_subspace_cone",
]
