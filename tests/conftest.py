"""Shared by all tests: float64, and one thread or ``OMP_NUM_THREADS``; their seeds are in ../conftest.py."""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

# Code that torch keeps on disk is wrong under another ATEN_CPU_CAPABILITY, which torch does not notice.
CAPABILITY = torch.backends.cpu.get_cpu_capability()
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / f"torchinductor-{CAPABILITY}")
)

LONGEST = (
    "test_shards.py::test_dask_with_a_worker_killed",
    "test_shards.py::test_a_pool_of_two_whose_worker_is_killed",
    "test_shards.py::test_two_ranks_of_openmpi",
    "test_interruptions.py::test_runs_that_are_killed_are_those_that_are_not",
    "test_on_disk.py::test_a_process_may_end_at_any_file_operation",
    "test_examples.py::test_collinear_regression",
    "test_site.py::test_the_site",
    "test_autoguide.py::test_stiefel_guide_recovers_a_gaussian_and_its_factor_from_any_start",
    "test_conformance.py::test_another_process_continues_bit_for_bit",
    "test_documentation.py::test_blocks_run",
    "test_attacks.py::test_a_branch_that_a_tracer_cannot_see",
    "test_examples.py::test_social_networks",
    "test_autoguide.py::test_unconstrained_factors_depend_on_the_start",
    "test_kernel.py::test_several_processes",
    "test_mechanics.py::test_a_hundred_thousand_steps_stay_on_the_manifold",
    "test_attacks.py::test_gradients_that_depend_on_memory_layout",
    "test_distributions_of_draws.py::test_two_matrices_and_a_scale",
    "test_distributions_of_draws.py::test_nuts_of_pyro_with_the_registered_transforms",
    "test_kernel.py::test_dense_masses_learn_a_correlated_posterior",
    "test_autoguide.py::test_neutra",
    "test_bayesian_pca.py::test_every_printed_row_has_converged",
    "test_distributions_of_draws.py::test_matrix_langevin",
    "test_langevin_normaliser.py::test_concentrations_of_groups_are_inferred",
    "test_calibration.py::test_ranks_are_uniform",
    "test_modes.py::test_groups_of_a_run_and_their_probability",
    "test_cross_validation.py::test_folds_of_a_conjugate_model",
)
"""Run first, so that no worker is left with one of them at the end."""


@pytest.fixture(autouse=True)
def _in_double_precision():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _with_the_environment_restored():
    """Restore environment variables that a script sets, such as PYRO_MANIFOLD_NATIVE=0, for the tests after it."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(autouse=True)
def _without_open_figures():
    """Close figures after each test: matplotlib warns of more than twenty, in whichever test opens the next one."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_collection_modifyitems(items):
    rank = {name: position for position, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(f"{item.path.name}::{getattr(item, 'originalname', '')}", len(rank)))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here; CI has none")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
