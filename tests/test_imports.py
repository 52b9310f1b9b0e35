"""`import pyro_manifold` leaves out packages that take long to import; they are imported on first use."""

import subprocess
import sys

import pytest

HEAVY = (
    "arviz",
    "matplotlib",
    "numba",
    "pandas",
    "scipy.stats",
    "sklearn",
    "torch._dynamo",
    "torch._inductor",
    "xarray",
)


def heavy_imports(statement):
    code = f"import sys, torch, pyro\nbefore = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return set(printed) & set(HEAVY)


def test_heavy_packages_are_imported_on_first_use():
    assert heavy_imports("import pyro_manifold") == set()


@pytest.mark.long
def test_heavy_packages_are_seen():
    assert heavy_imports("import pandas, scipy.stats") >= {"pandas", "scipy.stats"}
