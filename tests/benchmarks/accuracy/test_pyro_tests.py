"""The script that runs Pyro's tests, on a checkout of a few lines."""

import subprocess
import sys
import textwrap

import pytest

from benchmarks.accuracy import pyro_tests

OURS = """
    from pyro.infer import Predictive
    from pyro.infer.mcmc import HMC, MCMC, NUTS
    from pyro.infer.mcmc.api import MCMC as again
    from pyro.infer.mcmc.hmc import HMC as another
    import pyro.infer
    from pyro_manifold.infer import OHMC

    def test_classes():
        assert {MCMC, HMC, Predictive}.isdisjoint({pyro.infer.MCMC, pyro.infer.HMC, pyro.infer.Predictive})
        assert (again, another) == (MCMC, HMC)

    def test_arguments():
        kernel = NUTS(potential_fn=lambda sites: sites["x"].square(), step_size=None, max_tree_depth=3)
        assert isinstance(kernel, OHMC)
        assert HMC is OHMC

    def test_to_be_left_out():
        assert False
"""


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "tests" / "infer" / "mcmc"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "test_hmc.py").write_text(textwrap.dedent(OURS))
    return tmp_path


def run(*arguments):
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.accuracy.pyro_tests", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.long
def test_classes_are_replaced(checkout):
    finished = run(str(checkout), "--", "-k", "classes or arguments")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "2 passed, 1 deselected" in finished.stdout


@pytest.mark.long
def test_pyros_own_classes_and_failures(checkout):
    finished = run(str(checkout), "--pyro")
    assert finished.returncode == 1
    assert "3 failed" in finished.stdout


def test_a_folder_without_pyros_tests(tmp_path, capsys):
    (tmp_path / "tests").mkdir()
    with pytest.raises(SystemExit):
        pyro_tests.main([str(tmp_path)])
    assert "has none of Pyro's tests" in capsys.readouterr().err
