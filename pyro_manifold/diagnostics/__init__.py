"""Diagnostics of draws: convergence, alignment of loadings, subspaces, plots, export to ArviZ."""

from typing import TYPE_CHECKING

from pyro_manifold.compiled import NotTraced
from pyro_manifold.density import Program
from pyro_manifold.diagnostics.aligned import AlignedDraws, align_draws
from pyro_manifold.diagnostics.alignment import (
    Alignment,
    align_rotations,
    align_signs,
    align_signs_and_permutations,
    nearest_proper_permutations,
    nearest_signs,
)
from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.diagnostics.checks import check_flag, check_same_number
from pyro_manifold.diagnostics.convergence import Measure, check_superchains, convergence, nested_r_hat, varies
from pyro_manifold.diagnostics.deterministic import deterministic_by_chain, deterministic_values
from pyro_manifold.diagnostics.disagreement import (
    disagreements,
    named,
    stuck_chains,
    temperature_of_hot_chains,
    temperature_of_hottest_coordinate,
)
from pyro_manifold.diagnostics.divergences import divergence_advice
from pyro_manifold.diagnostics.frechet import dispersion, frechet_mean
from pyro_manifold.diagnostics.guide_quality import guide_khat
from pyro_manifold.diagnostics.installed_arviz import (
    autocorrelations,
    check_elpd_data,
    default_probability,
    effective_sizes,
    elpd_data,
    imported_arviz,
    inference_data,
    is_before_1,
    of_datasets,
    pareto_shape,
    smoothed_weights,
)
from pyro_manifold.diagnostics.invariance import Invariance
from pyro_manifold.diagnostics.invariants import Convergence, invariants, summarise_invariants
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.likelihood import (
    PointwiseLikelihood,
    observed_values,
    pointwise_likelihood,
    pointwise_log_likelihood,
    warn_of_factors,
)
from pyro_manifold.diagnostics.missed_regions import find_missed_regions
from pyro_manifold.diagnostics.modes import Modes, modes
from pyro_manifold.diagnostics.notebook import in_html
from pyro_manifold.diagnostics.plots import (
    plot_biplot,
    plot_loadings,
    plot_scree,
)
from pyro_manifold.diagnostics.posterior import Notes, Posterior, found_symmetries, of_pyro
from pyro_manifold.diagnostics.reasons import agreement, alignment_note, disagreement_warning, not_finite, unexplained
from pyro_manifold.diagnostics.replay import (
    Node,
    Values,
    first_draw,
    over_draws,
    without_draws,
)
from pyro_manifold.diagnostics.report import Diagnostics, chain_entries, diagnose
from pyro_manifold.diagnostics.rotation import ObliqueRotation, promax, varimax
from pyro_manifold.diagnostics.sampler_warnings import (
    HotMomenta,
    MissedMass,
    RunsDiffer,
    SamplerWarning,
    StuckChains,
)
from pyro_manifold.diagnostics.shares import Particles, comparable_log_density, shares_of_particles
from pyro_manifold.diagnostics.stored import open_posterior, open_run
from pyro_manifold.diagnostics.stored_symmetries import has_record, record_symmetries, recorded_symmetries
from pyro_manifold.diagnostics.subspaces import SubspaceSummary, mean_projector, principal_angles, subspace_summary
from pyro_manifold.diagnostics.summary import summarise
from pyro_manifold.diagnostics.symmetries import symmetries
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry
from pyro_manifold.diagnostics.table import table
from pyro_manifold.lookup import looked_up

if TYPE_CHECKING:
    from pyro_manifold.contrib.calibration import Calibration

__all__ = [
    "AlignedDraws",
    "Alignment",
    "Calibration",
    "Convergence",
    "HotMomenta",
    "MissedMass",
    "Modes",
    "NotTraced",
    "ObliqueRotation",
    "Posterior",
    "Program",
    "RunsDiffer",
    "SamplerWarning",
    "StuckChains",
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
    "open_posterior",
    "open_run",
    "plot_biplot",
    "plot_loadings",
    "plot_scree",
    "principal_angles",
    "promax",
    "subspace_summary",
    "summarise",
    "summarise_invariants",
    "to_inferencedata",
    "varimax",
]

__getattr__, __dir__ = looked_up(__name__, {"calibration": ["Calibration"]}, of_pyro=False)
