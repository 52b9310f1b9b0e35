"""The self-test passes here, and fails for a wrong sampler, a wrong distribution, chains that stay and an error."""

import json
import math
import subprocess
import sys
from functools import partial

import pytest
import torch
from pyro import poutine

from pyro_manifold import check
from pyro_manifold.compiled.native import compiler
from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.infer import MCMC, OHMC


def passed(*checks):
    report = check.self_test(comparisons=checks)
    assert report["passed"] == (not report["errors"] and all(row["passed"] for row in report["comparisons"]))
    return [row["passed"] for row in report["comparisons"]]


def test_moments_of_matrix_langevin_are_symmetric_and_agree_with_exact_draws():
    constant, first, second = check.langevin_moments(3.0, 1.0)
    assert (constant, second, first) == pytest.approx(check.langevin_moments(1.0, 3.0), abs=1e-12)
    assert passed(check.langevin_draws) == [True] * 3


@pytest.mark.long
def test_the_command():
    command = [sys.executable, "-m", "pyro_manifold.check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    assert {"pyro_manifold", "python", "torch", "pyro-ppl", "native code", "CUDA"} <= set(found["facts"])
    assert all(row["error"] <= row["largest_error"] for row in found["comparisons"] if row["largest_error"])


class Hot(OHMC):
    """OHMC of a wrong density, the square root."""

    def __init__(self, model):
        super().__init__(poutine.scale(model, scale=0.5))


@pytest.fixture
def few(monkeypatch):
    """A fifth of the draws, for mistakes of many standard errors."""
    monkeypatch.setattr(check, "MCMC", lambda kernel, draws, warmup, **more: MCMC(kernel, draws // 5, 100, **more))


@pytest.mark.usefixtures("few")
def test_a_wrong_kernel_fails():
    assert passed(check.uniform_draws, partial(check.langevin_chains, Hot)) == [True] * 3 + [False] * 2


@pytest.mark.usefixtures("few")
def test_chains_that_hardly_move_fail():
    found = check.langevin_chains(lambda model: OHMC(model, step_size=1e-4, num_steps=1, adapt_step_size=False))
    assert all(each.error > each.largest_error for each in found)
    assert not any(each.passed for each in found)


def test_a_wrong_distribution_fails(monkeypatch):
    monkeypatch.setattr(check, "MatrixLangevin", lambda F: MatrixLangevin(1.2 * F))
    assert passed(check.langevin_draws)[:2] == [False, False]


def test_an_error_is_reported_and_fails():
    def broken():
        raise RuntimeError("no draws")

    report = check.self_test(comparisons=[broken, check.uniform_draws])
    assert "broken: RuntimeError('no draws')" in report["errors"][0]
    assert len(report["comparisons"]) == 3, "the others run on"
    assert "1 FAILED" in check.as_text(report)


def test_nan_fails():
    report = check.self_test(comparisons=[lambda: [check.Comparison("x", math.nan, 0.0, 0.1, 1.0)]])
    assert not report["passed"]
    assert report["comparisons"][0]["estimate"] is None
    assert "1 FAILED" in check.as_text(report)


def _forget_the_compiler():
    compiler.path_of_compiler.cache_clear()
    compiler._signature.cache_clear()


@pytest.mark.long
def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    _forget_the_compiler()
    try:
        report = check.self_test(comparisons=[partial(check.langevin_chains, OHMC)])
    finally:
        monkeypatch.undo()
        _forget_the_compiler()
    assert report["passed"]
    assert "there is no C compiler" in report["facts"]["native code"]
    assert any("there is no C compiler" in message for message in report["warnings"])


def test_native_code_is_turned_off(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    assert "PYRO_MANIFOLD_NATIVE=0" in check.facts()["native code"]


def test_dtype_is_restored():
    torch.set_default_dtype(torch.float32)
    check.self_test(comparisons=[check.uniform_draws])
    assert torch.get_default_dtype() == torch.float32
