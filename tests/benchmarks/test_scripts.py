"""Every script of the benchmarks runs: small, by the table below, or in a test of its own."""

import ast
import itertools
import os
import runpy
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyro
import pytest
import torch

from benchmarks import machine, timing
from benchmarks.papers.msd import robot_arm_model
from benchmarks.papers.variational import methods
from pyro_manifold.compiled.native import loop
from tests.benchmarks.papers.test_reproduction import SMALL
from tests.benchmarks.requirements import needs
from tests.infer.mcmc.compilers import native_code

ROOT = Path(__file__).parents[2]
COMMANDS = {
    "accuracy.evidence study --problems 'normal, inverse gamma' --seeds 2 --particles 32 --runs 2": (),
    "accuracy.evidence.peers 'normal, inverse gamma' pyro_manifold 32 2": (),
    "accuracy.false_alarms --seeds 0 --only orientations": (),
    "accuracy.guides.equal_time --problems 'Gaussian, 30' --seconds 0.01 --seeds 1": (),
    "accuracy.guides.recovery --problems 1 --steps 8 --families Stiefel --methods Adam": (),
    "accuracy.guides.second_moment --steps 1 --methods Adam --families Grassmann": (),
    "accuracy.modes.groups_of_chains --sets 1": (),
    "accuracy.modes.robot_arm --runs 1 --particles 8 --states 4 --looked-at 1": (),
    "accuracy.modes.shares orientations --init prior --seeds 1 --particles 16": (),
    "accuracy.modes.unvisited --sets 1 --entries 1 --draws 20 --effective 20 --particles 16": (),
    "accuracy.msd.starts --posteriors banana --radii 0.1 --chains 4 --short": (),
    "accuracy.networks.priors --only iris --gains auto --scales 4 --seeds 1 --draws 20 --warmup 20": (),
    "accuracy.pathfinder --only dugongs --seeds 0 --draws 20": (),
    "speed.drift --short": (),
    "speed.drift --geodesics --short": (),
    "speed.expansions --shape 3 2": ("jax",),
    "speed.gradients 2 --problem 'entries near 1 or 2, V(2,2)'": ("numpyro",),
    "speed.msd.step_profile 2": (),
    "speed.native V(10,3) 2": (),
    "speed.native_kernels --short": (),
    "speed.normaliser --short": (),
    "speed.optimisers Procrustes": ("geoopt",),
    "speed.cointegration --ranks 1 --seeds 0 --sizes 60 20": ("statsmodels",),
    "speed.set_up --here": (),
    "speed.square_matrices O 3 0": (),
    "speed.set_up --network": (),
    "speed.stochastic_gradients --short": (),
    "speed.storing.cost --pairs 2 --draws 20 --chains 2": (),
    "speed.svi '64 rows' AutoNormal": (),
    "speed.sparse_inputs --only Branin --samplers 'OHMC, one' --seeds 0 --sizes 2 4": (),
    "speed.pyro_scripts --only 'schools, non' --seeds 0 --sizes 20 20": (),
    "speed.tall --shape 200 5 --chains 1 --seconds 0": (),
    "speed.tuning.low_rank --only 'polynomial|pumps' --seeds 0 --sizes 2 20 20": (),
    "speed.tuning.first_look --only dugongs --seeds 0 --draws 20 --lengths 20": (),
    "speed.tuning.centring --only funnel --seeds 0 --sizes 2 150 20": (),
    "speed.tuning.lengths --only hierarchy --chains 1 --seeds 0 --warmup 20 --many 2 20 8 2": (),
    "speed.tuning.one_chain --only dugongs --seeds 0 --sizes 20 20": (),
    "speed.tuning.random_starts --only hierarchy": (),
    "speed.tuning.warmup --only matrices --sizes 2 5 8": (),
}
"""Each script as one may run it, small, and packages without which it does not."""
IN_C = ("speed.gradients", "speed.native", "speed.native_kernels", "speed.normaliser")
SHORT = ("accuracy.guides.recovery", "speed.drift --short")
"""Beginnings of the commands that `make test` runs; `make test-all` runs all."""


def marks(command):
    name = command.split()[0]
    yield needs(*COMMANDS[command])
    if name in IN_C:
        yield native_code
    if not command.startswith(SHORT):
        yield pytest.mark.long


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Clocks stop after one call, torch compiles nothing, data are made up, and what a script sets is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(machine, "confine", lambda threads: None)
    monkeypatch.setattr(timing, "best_time", lambda function, seconds=0.0, clock=None: timing.process_time(function))
    monkeypatch.setattr(robot_arm_model, "original", lambda: robot_arm_model.simulate(0))
    monkeypatch.setattr(methods, "elbo", partial(methods.elbo, count=2))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(loop, "compiled", loop.compiled)
    validated = pyro.settings.get()
    yield
    pyro.settings.set(**validated)


@pytest.mark.filterwarnings("ignore")  # of runs that are too short for what they say
@pytest.mark.parametrize("command", [pytest.param(command, marks=[*marks(command)]) for command in COMMANDS])
def test_scripts_run(command, small, monkeypatch, capsys):
    name, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, f"benchmarks.{name}", raising=False)
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert capsys.readouterr().out


def is_script(source: str) -> bool:
    """Whether Python does more with a module that is run than with one that is imported."""
    compared = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare))
    return any(ast.unparse(node) == "__name__ == '__main__'" for node in compared)


def run_by(source: str) -> Iterator[str]:
    """Modules whose `main` is called, and those that are run as `python -m` or by `run_apart`."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, function = ast.unparse(node.func).rpartition(".")
            if function == "main":
                yield imported.get(owner) or imported.get("main", "").removesuffix(".main")
            elif function == "run_apart":
                yield ast.unparse(node.args[0]).strip("'")
        elif isinstance(node, ast.List):
            words = [ast.unparse(element).strip("'") for element in node.elts]
            yield from (module for option, module in itertools.pairwise(words) if option == "-m")


def test_every_script_is_run():
    """By the tables here and of the papers, or by a test that calls its `main`; a new one has to be put into one."""
    files = (ROOT / "benchmarks").rglob("*.py")
    scripts = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if is_script(file.read_text())}
    run = {f"benchmarks.{command.split()[0]}" for command in COMMANDS} | {f"benchmarks.papers.{name}" for name in SMALL}
    run |= {f"{module}.__main__" for module in run}
    run |= {module for file in Path(__file__).parent.rglob("test_*.py") for module in run_by(file.read_text())}
    assert len(scripts) > 50
    assert not scripts - run


def test_ways_to_run_a_script_are_seen():
    source = """
from benchmarks import one, three
from benchmarks.two import main

one.main(["--short"])
main()
three.rows()
command = [sys.executable, "-m", "benchmarks.four", "--short"]
run_apart("benchmarks.five", threads=1)
answers = {"benchmarks.six": None}
"""
    found = {f"benchmarks.{name}" for name in ("one", "two", "four", "five")}
    assert set(run_by(source)) == found
    assert not is_script(source)
    assert is_script(source + 'if __name__ == "__main__":\n    main()')
