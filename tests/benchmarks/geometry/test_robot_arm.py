"""The robot arm: its data have MacKay's law, its measures are right where the answer is known, its programs run."""

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.geometry import robot_arm, robot_arm_cost, robot_arm_model, robot_arm_samplers
from problems.monte_carlo import assert_mean
from pyro_manifold.infer import OHMC


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(robot_arm_samplers, "RESULTS", tmp_path)
    return tmp_path


# ---- data ------------------------------------------------------------------------------------------------------


def test_angles_and_noise_have_their_laws():
    arm = robot_arm_model.simulate(3, train=20_000, test=1)
    x, residual = arm.x_train, arm.y_train - robot_arm_model.position(arm.x_train)
    (low, high), (lowest, highest) = robot_arm_model.FIRST_JOINT, robot_arm_model.SECOND_JOINT
    assert_mean(x[:, 0], 0.0)
    assert_mean(x[:, 0].abs(), (low + high) / 2)
    assert_mean(x[:, 0] ** 2, (high**3 - low**3) / (3 * (high - low)))
    assert_mean(x[:, 1], (lowest + highest) / 2)
    assert x[:, 0].abs().min() >= low
    assert x[:, 0].abs().max() <= high
    for component in residual.mT:
        assert_mean(component, 0.0)
        assert_mean(component**2, 0.05**2)


def test_the_arm_is_two_segments():
    straight, bent = robot_arm_model.position(torch.tensor([[math.pi / 2, 0.0], [0.0, math.pi / 2]]))
    torch.testing.assert_close(straight, torch.tensor([0.0, 3.3]))
    torch.testing.assert_close(bent, torch.tensor([2.0, 1.3]))


def test_data_depend_on_the_seed_alone():
    first, again, other = (robot_arm_model.simulate(seed) for seed in (0, 0, 1))
    torch.testing.assert_close(first, again)
    assert not torch.equal(first.x_test, other.x_test)
    assert (len(first.x_train), len(first.x_test)) == (200, 400)


# ---- measures --------------------------------------------------------------------------------------------------


def test_errors_are_in_units_of_the_noise():
    y = torch.randn(4, 2)
    prediction = y + 0.05 * torch.tensor([1.0, -3.0])
    torch.testing.assert_close(robot_arm.normalised_error(prediction.expand(3, 4, 2), y), torch.full((3,), 5.0))


def test_predictions_are_averaged_not_weights():
    """Two networks with opposite weights predict opposite values: their mean is the output bias."""
    sites = {name: torch.randn(1, 1, *shape) for name, shape in robot_arm_model.SHAPES.items()}
    opposite = {name: value if name == "output_bias" else -value for name, value in sites.items()}
    # tanh is odd: with both layers turned the network would be the same, so one is turned only.
    opposite["input_to_hidden"], opposite["hidden_bias"] = sites["input_to_hidden"], sites["hidden_bias"]
    draws = torch.cat([robot_arm_model.flatten(each, 2) for each in (sites, opposite)], 1)
    found = robot_arm.mean_prediction(draws, torch.randn(5, 2))
    torch.testing.assert_close(found, sites["output_bias"][:, 0].unsqueeze(1).expand(1, 5, 2))


def test_flat_draws_come_back():
    sites = {name: torch.randn(2, 3, *shape) for name, shape in robot_arm_model.SHAPES.items()}
    torch.testing.assert_close(robot_arm_model.unflatten(robot_arm_model.flatten(sites, 2)), sites)


def test_autocorrelation_of_waves():
    """Mean of a wave of period 2 and one of period 4, in equal shares; a run that never moves counts as 1."""
    draws = np.ones((2, 4000, 42))
    draws[0, :, ::2] = np.resize([1.0, -1.0], 4000)[:, None]
    draws[0, :, 1::2] = np.resize([1.0, 1.0, -1.0, -1.0], 4000)[:, None]
    found = robot_arm.autocorrelation(draws, "input_to_hidden")
    assert found[0, :5] == pytest.approx([1.0, -0.5, 0.0, -0.5, 1.0], abs=0.005)
    assert (found[1] == 1).all()


# ---- starts ----------------------------------------------------------------------------------------------------


def test_starts_are_near_modes_of_their_own():
    """At a mode no weight has a gradient, and no two runs share a mode."""
    arm = robot_arm_model.simulate(0, train=30)
    weights = robot_arm_model.descended(robot_arm_model.small_weights(2, 0), arm, evaluations=300)
    for value in weights.values():
        value.requires_grad_()
    misfit = robot_arm_model.network(weights, arm.x_train) - arm.y_train
    energy = 0.5 * (misfit.square().sum() / 0.05**2 + sum(value.square().sum() for value in weights.values()))
    gradients = torch.autograd.grad(energy, list(weights.values()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-2 * float(energy.detach())
    assert not torch.allclose(*weights["output_bias"])


# ---- samplers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_size", "num_steps"), [(0.55, 1), (0.45, 4)])
def test_persistent_hmc_keeps_a_gaussian(step_size, num_steps):
    """At steps so long that trajectories are rejected: turning back then is what keeps the law (else 14 errors off)."""
    scales = torch.tensor([1.0, 0.3])

    def model(*_):
        pyro.sample("z", dist.Normal(0.0, scales).to_event(1))

    options = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_jitter": 0}
    kernel = OHMC(model, step_size=step_size, num_steps=num_steps, persistence=0.95, **options)
    start = {"z": scales * torch.randn(500, 2)}
    mcmc, _ = robot_arm_samplers.advance(kernel, robot_arm_model.simulate(0), start, 100, 100)
    z = mcmc.get_samples(group_by_chain=True)["z"]
    for index in (0, 1):
        assert_mean(z[..., index] ** 2, scales[index] ** 2)
    rates = mcmc.diagnostics()["acceptance rate"].values()
    assert np.mean(list(rates)) < 0.95


def test_momenta_persist():
    """Where the step is so short that nothing changes but momenta, these have autocorrelation cos θ."""
    kernel = robot_arm_samplers.hmc(1e-9, 1, jit_compile=False, persistence=0.95)
    arm = robot_arm_model.simulate(0)
    run = kernel.prepare(200, 0, robot_arm_model.small_weights(200, 0), arm.x_train, arm.y_train)
    momenta = []
    for _ in range(102):
        run.advance()
        momenta.append(torch.cat([p.flatten(1) for p in run.state.momentum.values()], 1))
    assert_mean((momenta[-2] * momenta[-1]).mean(1), 0.95)


# ---- programs --------------------------------------------------------------------------------------------------


def test_the_comparison_runs_and_reads_its_draws_back(here, monkeypatch, capsys):
    arguments = ["--runs", "2", "--draws", "24", "--dropped", "4", "--samplers", "HMC30, persistent"]
    compiled = robot_arm_samplers.hmc
    monkeypatch.setattr(robot_arm_samplers, "hmc", lambda *a, **_: compiled(*a, jit_compile=False))
    first = robot_arm.main([*arguments, "--write", str(here / "table.md")])
    monkeypatch.setattr(robot_arm_samplers, "sample", None)
    assert robot_arm.main(arguments) == first
    assert "| true function | 1.0" in capsys.readouterr().out
    assert (here / "table.md").read_text().count("\n| HMC30, persistent |") == 1


def test_operations_are_those_of_the_steps():
    """A gradient of the network: three products for each layer, but for none with the inputs."""
    cases, layers = 200, (2 * 8, 8 * 2)
    products, by_hand, entries = robot_arm_cost.operations("HMC30")
    forward = 2 * cases * sum(layers)
    assert products == pytest.approx(30 * (2 * forward + 2 * cases * layers[1]) / 1e6)
    assert by_hand == 0
    assert entries > 30 * cases * 8 / 1e6
