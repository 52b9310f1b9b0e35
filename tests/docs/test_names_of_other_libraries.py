"""The table of names in "From NumPyro, Stan and PyMC" has names that exist."""

import importlib
import re

import pyro
import pytest

from pyro_manifold import diagnostics, distributions, infer
from pyro_manifold.infer import autoguide

from .tables import rows

PAGE = "docs/how_to/from_other_libraries.md"
HERE = (pyro, distributions, infer, autoguide, diagnostics)
ROOTS = {"pm": "pymc", "az": "arviz", "jax": "jax"}
NOT_INSTALLED = ("pymc_extras",)


def cells(column):
    """Names of a column, without arguments and words between names; a name is `sample` or `handlers.mask`."""
    spans = [span for row in rows(PAGE, "forty-names") for span in re.findall(r"`([^`]+)`", row[column])]
    names = [re.match(r"[A-Za-z_][\w.]*(?![\w.]*=)", span) for span in spans]
    return [name[0] for name in names if name and name[0].partition(".")[0] not in ("idata", *NOT_INSTALLED)]


def has(root, name):
    """Whether an attribute of an object or of a module is there, modules below it included."""
    for part in name.split("."):
        found = getattr(root, part, None)
        if found is None:
            try:
                found = importlib.import_module(f"{root.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        root = found
    return True


def test_names_of_this_package():
    assert len(cells("here")) >= 30
    for name in cells("here"):
        name = name.removeprefix("pyro.").replace("mcmc.", "MCMC.")
        assert any(has(root, name) for root in HERE), name


@pytest.mark.long
@pytest.mark.parametrize(("column", "root"), [("NumPyro", "numpyro"), ("PyMC", "pymc")])
def test_names_of_others(column, root):
    pytest.importorskip(root)
    assert len(cells(column)) >= 15
    for name in cells(column):
        first, _, rest = name.partition(".")
        where = importlib.import_module(ROOTS.get(first, root))
        assert has(where, rest if first in ROOTS else name.replace("mcmc.", "infer.MCMC.")), name
