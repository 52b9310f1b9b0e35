"""The self-test passes here, and fails for a wrong sampler, a wrong distribution, chains that stay and an error."""

import json
import math
import subprocess
import sys

import pytest
import torch
from pyro import poutine
from scipy import integrate

from pyro_manifold.check import (
    Comparison,
    comparisons,
    installation,
    langevin_chains,
    langevin_draws,
    langevin_moments,
    principal_component_moments,
    report,
    uniform_draws,
)
from pyro_manifold.distributions import MatrixLangevin
from pyro_manifold.graphs.native import compiler
from pyro_manifold.infer import OHMC


def failures(found):
    return [each.name for each in found if not each.passed]


def main(capsys, monkeypatch, *checks):
    """Exit status and report of the command with these comparisons."""
    monkeypatch.setattr(report, "COMPARISONS", checks)
    status = report.main(["--json"])
    return status, json.loads(capsys.readouterr().out)


def test_moments_of_matrix_langevin_are_symmetric_and_agree_with_exact_draws():
    constant, first, second = langevin_moments(3.0, 1.0)
    assert (constant, second, first) == pytest.approx(langevin_moments(1.0, 3.0), abs=1e-12)
    assert failures(langevin_draws()) == []


def test_moments_of_principal_components_by_another_integral():
    data = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.0, 0.5], [0.0, -1.0]])  # principal axis (1, 0)

    def density(angle, s):
        u = (math.cos(angle), math.sin(angle))
        covariance = s**2 * torch.tensor([[u[0] ** 2, u[0] * u[1]], [u[0] * u[1], u[1] ** 2]]) + 0.49 * torch.eye(2)
        log_likelihood = -len(data) / 2 * torch.logdet(covariance) - (data @ covariance.inverse() * data).sum() / 2
        return math.exp(float(log_likelihood) - s**2 / (2 * 1.5**2))

    def integral(function):
        points = [2 * math.pi * k / 32 for k in range(32)]  # exact for periodic functions
        return integrate.quad_vec(lambda s: sum(function(a, s) * density(a, s) for a in points), 0, 9, epsrel=1e-8)[0]

    total = integral(lambda angle, s: 1)
    scale, cosine = principal_component_moments(data, 0.7, 1.5)
    assert scale == pytest.approx(integral(lambda angle, s: s) / total, rel=1e-6)
    assert cosine == pytest.approx(integral(lambda angle, s: math.cos(angle) ** 2) / total, rel=1e-6)


@pytest.mark.long
def test_the_command():
    command = [sys.executable, "-m", "pyro_manifold.check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    assert {"pyro_manifold", "python", "torch", "pyro-ppl", "C compiler", "native code", "CUDA"} <= set(found["facts"])
    assert all(0 < row["error"] <= row["largest_error"] for row in found["comparisons"] if row["largest_error"])


class Hot(OHMC):
    """OHMC of a wrong density, the square root."""

    def __init__(self, model):
        super().__init__(poutine.scale(model, scale=0.5))


def test_a_wrong_kernel_fails(capsys, monkeypatch):
    monkeypatch.setattr(comparisons, "OHMC", Hot)
    status, found = main(capsys, monkeypatch, uniform_draws, comparisons.langevin_by_ohmc)
    assert status == 1
    assert [row["passed"] for row in found["comparisons"]] == [True] * 3 + [False] * 2


def test_chains_that_hardly_move_fail():
    def stuck(model):
        return OHMC(model, step_size=1e-4, num_steps=1, adapt_step_size=False)

    found = langevin_chains(stuck)
    assert all(each.error > each.largest_error for each in found)
    assert len(failures(found)) == 2


def test_a_wrong_distribution_fails(capsys, monkeypatch):
    monkeypatch.setattr(comparisons, "MatrixLangevin", lambda F: MatrixLangevin(1.2 * F))
    status, found = main(capsys, monkeypatch, langevin_draws)
    assert status == 1
    assert not any(row["passed"] for row in found["comparisons"][:2])


def test_an_error_is_reported_and_fails(capsys, monkeypatch):
    def broken():
        raise RuntimeError("no draws")

    status, found = main(capsys, monkeypatch, broken, uniform_draws)
    assert status == 1
    assert "broken: RuntimeError: no draws" in found["errors"][0]
    assert len(found["comparisons"]) == 3, "the others run on"
    monkeypatch.setattr(report, "COMPARISONS", (broken,))
    assert report.main([]) == 1
    assert "1 FAILED" in capsys.readouterr().out


def test_nan_fails(capsys, monkeypatch):
    status, found = main(capsys, monkeypatch, lambda: [Comparison("x", math.nan, 0.0, 0.1, 1.0)])
    assert status == 1
    assert found["comparisons"][0]["estimate"] is None


def _forget_the_compiler():
    compiler.path_of_compiler.cache_clear()
    compiler._signature.cache_clear()


def test_without_a_compiler(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    _forget_the_compiler()
    try:
        status, found = main(capsys, monkeypatch, comparisons.langevin_by_ohmc)
    finally:
        monkeypatch.undo()
        _forget_the_compiler()
    assert status == 0
    assert found["facts"]["C compiler"] == "none: there is no C compiler (cc, gcc or clang)"
    assert "there is no C compiler" in found["facts"]["native code"]
    assert any("there is no C compiler" in message for message in found["warnings"])


def test_native_code_is_turned_off(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
    assert "PYRO_MANIFOLD_NATIVE=0" in installation.native_code()


def test_dtype_is_restored():
    torch.set_default_dtype(torch.float32)
    report.self_test(comparisons=[uniform_draws])
    assert torch.get_default_dtype() == torch.float32
