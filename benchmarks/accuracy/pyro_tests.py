"""Pyro's own tests of HMC, NUTS, MCMC and Predictive, with this package's classes in place of Pyro's.

    git clone https://github.com/pyro-ppl/pyro && python -m benchmarks.accuracy.pyro_tests pyro
    python -m benchmarks.accuracy.pyro_tests pyro --pyro     # with Pyro's own classes, for comparison
    python -m benchmarks.accuracy.pyro_tests pyro -- -k enum # arguments after -- are pytest's

HMC and NUTS become `OHMC`, with arguments that only NUTS has left out. Tests and settings are copied to a temporary
folder, so that the installed Pyro is tested and not the checkout.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pyro.infer
import pyro.infer.mcmc
import pytest

from pyro_manifold.infer import MCMC, OHMC, Predictive

TESTS = ("infer/mcmc/test_hmc.py", "infer/mcmc/test_nuts.py", "infer/mcmc/test_mcmc_api.py",
         "infer/mcmc/test_mcmc_util.py", "infer/mcmc/test_valid_models.py", "infer/test_predictive.py")  # fmt: skip
_OF_NUTS = ("use_multinomial_sampling", "max_tree_depth")
_MODULES = (pyro.infer, pyro.infer.mcmc, pyro.infer.mcmc.api, pyro.infer.mcmc.hmc, pyro.infer.mcmc.nuts)


class NUTS(OHMC):
    """`OHMC` that takes, and leaves unused, the arguments that only NUTS has."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{name: value for name, value in kwargs.items() if name not in _OF_NUTS})


REPLACEMENTS = {"MCMC": MCMC, "HMC": OHMC, "NUTS": NUTS, "Predictive": Predictive}


class InPlaceOfPyros:
    """A plugin of pytest: test modules import this package's classes by the names of Pyro's."""

    def pytest_collection(self):
        self._originals = [(module, name, vars(module)[name]) for module in _MODULES for name in REPLACEMENTS
                           if name in vars(module)]  # fmt: skip
        for module, name, _ in self._originals:
            setattr(module, name, REPLACEMENTS[name])

    def pytest_collection_finish(self):
        # Pyro's own code goes on with Pyro's classes.
        for module, name, original in self._originals:
            setattr(module, name, original)


def copied_tests(checkout: Path, folder: Path) -> list[str]:
    """Copy tests and settings into a folder; return the tests that the checkout has."""
    shutil.copytree(checkout / "tests", folder / "tests")
    if (checkout / "setup.cfg").exists():
        shutil.copy(checkout / "setup.cfg", folder)
    return [f"tests/{name}" for name in TESTS if (folder / "tests" / name).exists()]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="folder of Pyro's sources")
    parser.add_argument("--pyro", action="store_true", help="with Pyro's own classes; options of pytest follow --")
    argv = sys.argv[1:] if argv is None else argv
    end = argv.index("--") if "--" in argv else len(argv)
    arguments, of_pytest = parser.parse_args(argv[:end]), argv[end + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        tests = copied_tests(arguments.checkout, Path(folder))
        if not tests:
            parser.error(f"{arguments.checkout} has none of Pyro's tests, such as tests/{TESTS[0]}.")
        os.chdir(folder)
        plugins = [] if arguments.pyro else [InPlaceOfPyros()]
        # WeighedPredictive is Pyro's alone; its tests would take most of the time.
        options = ["-p", "no:cacheprovider", "-q", "-k", "not WeighedPredictive", *of_pytest]
        return pytest.main([*options, *tests], plugins=plugins)


if __name__ == "__main__":
    sys.exit(main())
