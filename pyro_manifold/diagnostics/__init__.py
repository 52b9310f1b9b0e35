"""Diagnostics of draws: convergence, alignment of loadings, subspaces, plots, export to ArviZ."""

from pyro_manifold.diagnostics.aligned import AlignedDraws, align_draws
from pyro_manifold.diagnostics.alignment import Alignment, align_rotations, align_signs, align_signs_and_permutations
from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.diagnostics.calibration import Calibration
from pyro_manifold.diagnostics.convergence import nested_r_hat
from pyro_manifold.diagnostics.disagreement import disagreements
from pyro_manifold.diagnostics.frechet import dispersion, frechet_mean
from pyro_manifold.diagnostics.guide_quality import guide_khat
from pyro_manifold.diagnostics.invariants import Convergence, invariants, summarise_invariants
from pyro_manifold.diagnostics.modes import Modes, modes
from pyro_manifold.diagnostics.plots import (
    plot_biplot,
    plot_columns,
    plot_evidence,
    plot_latent_positions,
    plot_loadings,
    plot_principal_angles,
    plot_scree,
    plot_subspace_cone,
)
from pyro_manifold.diagnostics.rotation import ObliqueRotation, promax, varimax
from pyro_manifold.diagnostics.stored import open_run
from pyro_manifold.diagnostics.subspaces import SubspaceSummary, mean_projector, principal_angles, subspace_summary

__all__ = [
    "AlignedDraws",
    "Alignment",
    "Calibration",
    "Convergence",
    "Modes",
    "ObliqueRotation",
    "SubspaceSummary",
    "align_draws",
    "align_rotations",
    "align_signs",
    "align_signs_and_permutations",
    "disagreements",
    "dispersion",
    "frechet_mean",
    "guide_khat",
    "invariants",
    "mean_projector",
    "modes",
    "nested_r_hat",
    "open_run",
    "plot_biplot",
    "plot_columns",
    "plot_evidence",
    "plot_latent_positions",
    "plot_loadings",
    "plot_principal_angles",
    "plot_scree",
    "plot_subspace_cone",
    "principal_angles",
    "promax",
    "subspace_summary",
    "summarise_invariants",
    "to_inferencedata",
    "varimax",
]
