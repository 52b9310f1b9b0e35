"""Runners: each peer samples a known distribution, and its figures are those of the run."""

import json

import numpy as np
import pytest
import torch

from benchmarks import measure as measuring
from benchmarks.measure import Setting, measure, measure_apart
from benchmarks.peers import PEERS
from benchmarks.problems.coefficients import banana
from benchmarks.problems.page import langevin
from benchmarks.speed.rates import CONFIGURATIONS
from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import MatrixLangevin
from tests.benchmarks.problems.test_page import langevin_parameter
from tests.benchmarks.requirements import needs
from tests.parameters import long_except

NEEDED = {"NumPyro": ("numpyro",), "nutpie": ("nutpie", "pymc", "numba"), "Mici": ("mici",)}
over_peers = pytest.mark.parametrize("peer", [pytest.param(peer, marks=needs(*NEEDED.get(peer, ()))) for peer in PEERS])

# Chains, warm-up and draws that each peer makes in a few seconds.
SIZES = {"pyro_manifold": (16, 100, 100), "NumPyro": (16, 100, 100), "nutpie": (4, 200, 300)}
SIZES |= {"Pyro NUTS": (2, 50, 100), "Mici": (2, 50, 150)}


@pytest.mark.long
@over_peers
def test_peers_sample_a_langevin_distribution(peer):
    chains, warmup, draws = SIZES[peer]
    problem = langevin(4, 2)
    run = PEERS[peer](problem, chains=chains, warmup=warmup, draws=draws)
    X = run.draws["X"]
    assert X.shape == (chains, draws, 4, 2)
    np.testing.assert_allclose(X.swapaxes(-1, -2) @ X, np.broadcast_to(np.eye(2), (*X.shape[:2], 2, 2)), atol=1e-7)
    F = langevin_parameter(4, 2)
    truth = (F * MatrixLangevin(torch.as_tensor(F)).mean.numpy()).sum()
    assert_mean(torch.tensor(problem.values(run.draws)["tr FᵀX"]), truth)


@pytest.mark.long
@over_peers
def test_figures_are_those_of_the_run(peer):
    values, figures = measure(langevin(4, 2), Setting("name", peer, 2, 3, 4, {}))
    assert {value.shape for value in values.values()} == {(2, 4)}
    assert figures["seconds"] > figures["compiling"] >= 0
    assert (figures["compiling"] > 0) == (peer != "Mici")
    assert figures["cpu_seconds"] > 0
    assert figures["memory_mb"] > 50
    if peer == "Pyro NUTS":
        assert np.isnan(figures["gradients"])
    else:
        # Each draw needs a gradient, and no tree or trajectory has more than 2¹⁰ steps.
        assert 2 * (3 + 4) <= figures["gradients"] <= 1025 * 2 * (3 + 4)
    if "acceptance" in figures:
        assert len(figures["acceptance"]) == 2
        assert all(0 <= rate <= 1 for rate in figures["acceptance"])


@pytest.mark.parametrize("kernel", long_except(["OHMC", "MSD"], "OHMC"))
def test_gradients_are_steps_of_all_chains(kernel):
    options = {"kernel": kernel, "step_size": 0.1, "num_steps": 3}
    options |= {"OHMC": {"adapt_step_size": False, "trajectory_jitter": 0.0}, "MSD": {"metropolis": True}}[kernel]
    values, figures = measure(banana(), Setting("name", "pyro_manifold", 5, 2, 4, options))
    assert list(values) == ["w0", "w1"]
    assert figures["gradients"] == 5 * (2 + 4) * 3


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_configuration_is_of_a_peer_and_goes_to_another_process(name):
    peer, options = CONFIGURATIONS[name]
    assert peer in PEERS
    assert json.loads(json.dumps(options)) == options


@pytest.mark.long
def test_a_process_apart_measures_what_this_one_does():
    setting = Setting("name", "pyro_manifold", 2, 3, 4, {})
    apart, figures = measure_apart(
        "benchmarks.problems.page:PROBLEMS", "entries near 1 or 2, V(2,2)", setting, threads=1, limit=200
    )
    here, of_here = measure(
        measuring.pkgutil.resolve_name("benchmarks.problems.page:PROBLEMS")["entries near 1 or 2, V(2,2)"], setting
    )
    assert list(apart) == list(here)
    for name, value in here.items():
        np.testing.assert_allclose(apart[name], value)
    assert figures["gradients"] == of_here["gradients"]


@pytest.mark.long
def test_a_process_that_fails_or_is_late_is_reported():
    setting = Setting("name", "no such peer", 2, 3, 4, {})
    values, figures = measure_apart(
        "benchmarks.problems.page:PROBLEMS", "entries near 1 or 2, V(2,2)", setting, threads=1, limit=200
    )
    assert values is None
    assert figures == {"failed": "KeyError: 'no such peer'"}
    assert measuring.run_apart("benchmarks.measure", threads=1, limit=0.01) == {"failed": "over 0.01 s"}
