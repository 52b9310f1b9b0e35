"""Diagnostics of draws: convergence and alignment of loadings, mean subspaces, plots, export to ArviZ."""

from pyro_manifold.diagnostics.agreement import disagreements
from pyro_manifold.diagnostics.alignment import Alignment, align_rotations, align_signs, align_signs_and_permutations
from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.diagnostics.frechet import dispersion, frechet_mean
from pyro_manifold.diagnostics.invariants import Convergence, invariants, summarise_invariants
from pyro_manifold.diagnostics.plots import plot_frames, plot_loadings, plot_principal_angles
from pyro_manifold.diagnostics.subspaces import SubspaceSummary, mean_projector, principal_angles, subspace_summary

__all__ = [
    "Alignment",
    "Convergence",
    "SubspaceSummary",
    "align_rotations",
    "align_signs",
    "align_signs_and_permutations",
    "disagreements",
    "dispersion",
    "frechet_mean",
    "invariants",
    "mean_projector",
    "plot_frames",
    "plot_loadings",
    "plot_principal_angles",
    "principal_angles",
    "subspace_summary",
    "summarise_invariants",
    "to_inferencedata",
]
