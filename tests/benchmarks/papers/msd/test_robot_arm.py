"""The robot arm: data from MacKay's model, measures where the answer is known, and programs that run."""

import math
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.papers.msd import (
    robot_arm,
    robot_arm_cost,
    robot_arm_figure,
    robot_arm_model,
    robot_arm_modes,
    robot_arm_samplers,
    robot_arm_steps,
)
from problems.monte_carlo import assert_mean
from pyro_manifold.infer import OHMC


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.setattr(robot_arm_samplers, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture
def simulated(monkeypatch):
    """Simulated data where programs read MacKay's, which CI does not have."""
    arm = robot_arm_model.simulate(0)
    for program in (robot_arm, robot_arm_steps, robot_arm_figure):
        monkeypatch.setattr(program, "original", lambda: arm)
    return arm


# ---- data ------------------------------------------------------------------------------------------------------


def test_angles_and_noise_have_their_distributions():
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


def test_every_twentieth_draw_counts():
    """Of 2,000 draws 100, the first and the last of them the 20th and the 2,000th."""
    draws = torch.arange(1.0, 2001.0)[None, :, None].expand(3, 2000, 42)
    found = robot_arm.every_twentieth(draws)
    assert found.shape == (3, 100, 42)
    torch.testing.assert_close(found[1, :, 0], 20 * torch.arange(1.0, 101.0))


def test_errors_are_of_every_twentieth_draw():
    """Output biases of a million in all draws but these, which predict nought."""
    draws = torch.zeros(2, 40, 42)
    draws[..., -2:] = 1e6
    draws[:, 19::20] = 0
    x, y = torch.randn(5, 2), torch.full((5, 2), 0.1)
    assert robot_arm.errors(draws, x, y) == pytest.approx([4.0, 4.0])


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


# ---- criteria of step sizes --------------------------------------------------------------------------------------


def test_a_step_of_hmc_rejects_fewer_than_five_in_a_hundred():
    assert robot_arm_steps.largest_step({0.1: 0.0, 0.2: 0.049, 0.3: 0.05, 0.4: 0.01}) == 0.2
    assert robot_arm_steps.largest_step({0.1: 0.06}) is None


def test_a_step_of_msd_is_nearest_in_ratio():
    """0.026 is nearer in difference, 0.09 in ratio."""
    assert robot_arm_steps.nearest_step({0.1: 0.026, 0.2: 0.09, 0.3: 0.2}) == 0.2


def test_energy_errors_are_absolute_and_of_what_was_followed(monkeypatch):
    """Signs must not cancel, and an infinite error of a trajectory that is not followed must not count."""
    reported = {
        "accepted": torch.tensor([[True, True, False, True], [True, True, True, True]]),
        "energy_error": torch.tensor([[0.1, -0.3, torch.inf, 0.2], [0.0, 0.0, 0.0, -0.4]]),
        "diverging": torch.tensor([[False, False, True, False], [False, False, False, False]]),
    }
    sites = {name: torch.zeros(2, 4, *shape) for name, shape in robot_arm_model.SHAPES.items()}
    mcmc = SimpleNamespace(get_extra_fields=lambda **_: reported, get_samples=lambda **_: sites)
    monkeypatch.setattr(robot_arm_samplers, "advance", lambda *_: mcmc)
    runs = robot_arm_samplers.sample("HMC30", robot_arm_model.simulate(0), 2, 4, 0, 0.1, "small", 0)
    assert runs.energy_error == pytest.approx([0.2, 0.1])
    assert runs.rejections == pytest.approx([0.25, 0.0])
    assert runs.divergences.tolist() == [1, 0]


# ---- modes -----------------------------------------------------------------------------------------------------


def other_copy(vector, generator):
    """The same network: hidden units in another order, some with all signs turned."""
    sites = robot_arm_model.unflatten(vector)
    order = torch.randperm(robot_arm_model.HIDDEN, generator=generator)
    signs = torch.randint(0, 2, order.shape, generator=generator) * 2.0 - 1
    copy = {
        "hidden_bias": (sites["hidden_bias"] * signs)[order],
        "hidden_to_output": (sites["hidden_to_output"] * signs[:, None])[order],
        "input_to_hidden": (sites["input_to_hidden"] * signs)[:, order],
        "output_bias": sites["output_bias"],
    }
    return robot_arm_model.flatten(copy, 0)


def two_modes(arm):
    """Modes of different log densities, at which a trust-region method arrives from two of a few starts."""
    starts = robot_arm_model.flatten(robot_arm_model.small_weights(6, 0), 1)
    modes = (robot_arm_model.climbed(start, arm, max_nfev=500) for start in starts)
    first = next(modes)
    level = robot_arm_model.log_density(first, arm)
    return first, next(mode for mode in modes if abs(robot_arm_model.log_density(mode, arm) - level) > 1)


def test_log_density_is_the_models():
    arm = robot_arm_model.simulate(0, train=20)
    sites = {name: torch.randn(shape) for name, shape in robot_arm_model.SHAPES.items()}
    trace = pyro.poutine.trace(pyro.condition(robot_arm_model.model, sites)).get_trace(arm.x_train, arm.y_train)
    found = robot_arm_model.log_density(robot_arm_model.flatten(sites, 0), arm)
    torch.testing.assert_close(found, trace.log_prob_sum())


@pytest.mark.long
def test_copies_of_a_mode_have_one_label_and_other_modes_another():
    """From another copy of the network, and from a step aside, the same mode; from another start another one."""
    arm = robot_arm_model.simulate(0, train=60)
    generator = torch.Generator().manual_seed(0)
    first, second = two_modes(arm)
    copy = other_copy(first, generator)
    assert (copy - first).abs().max() > 0.1
    aside = copy + 1e-3 * torch.randn(42, generator=generator)
    levels = robot_arm_modes.mode_levels(torch.stack([first, second, copy, aside]), arm)
    named = robot_arm_modes.labels(levels)
    assert named[0] == named[2] == named[3]
    assert named[0] != named[1]


def test_labels_are_the_highest_of_their_mode():
    assert robot_arm_modes.labels([5.0, 7.02, 5.06, 7.0, 6.0]) == pytest.approx([5.06, 7.02, 5.06, 7.02, 6.0], abs=1e-9)


# ---- starts ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_starts_are_near_modes_of_their_own():
    """At a mode no weight has a gradient, and no two runs share a mode."""
    arm = robot_arm_model.simulate(0, train=30)
    weights = robot_arm_model.descended(robot_arm_model.small_weights(2, 0), arm, evaluations=300)
    for value in weights.values():
        value.requires_grad_()
    negative_log_likelihood = robot_arm_model.network(weights, arm.x_train) - arm.y_train
    energy = 0.5 * (
        negative_log_likelihood.square().sum() / 0.05**2 + sum(value.square().sum() for value in weights.values())
    )
    gradients = torch.autograd.grad(energy, list(weights.values()))
    assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-2 * float(energy.detach())
    assert not torch.allclose(*weights["output_bias"])


# ---- samplers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step_size", "num_steps"), [(0.55, 1), pytest.param(0.45, 4, marks=pytest.mark.long)])
def test_persistent_hmc_keeps_a_gaussian(step_size, num_steps):
    """At steps so long that trajectories are rejected; without reversal of momenta it would be 14 errors off."""
    scales = torch.tensor([1.0, 0.3])

    def model(*_):
        pyro.sample("z", dist.Normal(0.0, scales).to_event(1))

    options = {"adapt_step_size": False, "adapt_mass_matrix": False, "trajectory_jitter": 0}
    kernel = OHMC(model, step_size=step_size, num_steps=num_steps, persistence=0.95, **options)
    start = {"z": scales * torch.randn(500, 2)}
    mcmc = robot_arm_samplers.advance(kernel, robot_arm_model.simulate(0), start, 100, 100)
    z = mcmc.get_samples(group_by_chain=True)["z"]
    for index in (0, 1):
        assert_mean(z[..., index] ** 2, scales[index] ** 2)
    rates = mcmc.diagnostics()["acceptance_rate"].values()
    assert np.mean(list(rates)) < 0.95


def test_momenta_persist():
    """Where the step is so short that nothing changes but momenta, these have autocorrelation cos θ."""
    kernel = robot_arm_samplers.hmc(1e-9, 1, persistence=0.95)
    arm = robot_arm_model.simulate(0)
    run = kernel.prepare(200, 0, robot_arm_model.small_weights(200, 0), arm.x_train, arm.y_train)
    momenta = []
    for _ in range(102):
        run.advance()
        momenta.append(torch.cat([p.flatten(1) for p in run.state.momentum.values()], 1))
    assert_mean((momenta[-2] * momenta[-1]).mean(1), 0.95)


# ---- programs --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_comparison_runs_and_reads_its_draws_back(here, simulated, monkeypatch, capsys):
    arguments = ["--runs", "2", "--draws", "64", "--dropped", "4", "--samplers", "HMC30, persistent"]
    first = robot_arm.main([*arguments, "--write", str(here / "table.md")])
    monkeypatch.setattr(robot_arm_samplers, "sample", None)
    assert robot_arm.main(arguments) == first
    assert "| true function |  | 1.0" in capsys.readouterr().out
    assert (here / "table.md").read_text().count("\n| HMC30, persistent |") == 1


@pytest.mark.long
def test_modes_are_reported_with_their_runs(simulated):
    """Two runs in copies of one mode, one in another: errors of each, and a run that begins elsewhere has moved."""
    first, second = two_modes(simulated)
    copy = other_copy(first, torch.Generator().manual_seed(0))
    draws = torch.stack([mode.expand(40, 42) for mode in (first, copy, second)]).numpy().copy()
    draws[2, 0] = first
    found = {"MSD": robot_arm_samplers.Runs(draws, *np.zeros((3, 3)))}
    rows = robot_arm.by_mode(found, simulated).splitlines()[2:]
    rows.sort(key=lambda row: "(2)" not in row)
    for row, mode, runs in zip(rows, (first, second), (2, 1), strict=True):
        level, _, _, cell = (part.strip() for part in row.strip("|").split("|"))
        assert float(level) == pytest.approx(float(robot_arm_model.log_density(mode, simulated)), abs=0.15)
        expected = robot_arm.errors(mode.expand(1, 20, 42), *simulated[2:])[0]
        assert float(cell.split()[0]) == pytest.approx(expected, abs=1e-3)  # three digits are printed
        assert cell.endswith(f"({runs})")
    assert robot_arm.moved(found, simulated).endswith("MSD 1")


def test_step_sizes_are_found_by_a_program(simulated, monkeypatch, capsys):
    """A ladder of HMC's is left at the first step that rejects too much, one of MSD's is climbed to its end."""
    asked = []

    def reported(name, arm, *, step_size, **_):
        asked.append((name, step_size))
        nothing = np.zeros(2)
        return robot_arm_samplers.Runs(None, nothing + 100 * step_size, nothing, nothing + step_size)

    monkeypatch.setattr(robot_arm_steps, "sample_once", reported)
    robot_arm_steps.main(["--samplers", "HMC30", "MSD"])
    assert [step for name, step in asked if name == "HMC30"] == [
        0.0002,
        0.00025,
        0.0003,
        0.00035,
        0.0004,
        0.00045,
        0.0005,
    ]
    assert len(asked) == 7 + len(robot_arm_steps.MSD_LADDER)
    out = capsys.readouterr().out
    assert "| HMC30 | **0.00045** |" in out
    assert "| MSD | **0.07** |" in out


@pytest.mark.long
def test_operations_are_those_of_the_steps():
    """A gradient of the network: three products for each layer, but for none with the inputs."""
    cases, layers = 200, (2 * 8, 8 * 2)
    products, by_hand, entries = robot_arm_cost.operations("HMC30")
    forward = 2 * cases * sum(layers)
    assert products == pytest.approx(30 * (2 * forward + 2 * cases * layers[1]) / 1e6)
    assert by_hand == 0
    assert entries > 30 * cases * 8 / 1e6


def test_the_figure_has_every_sampler(simulated, monkeypatch, tmp_path):
    draws = torch.randn(3, 400, robot_arm_cost.DIMENSION).cumsum(1).numpy()
    asked = []

    def reported(name, arm):
        asked.append(name)
        return robot_arm_samplers.Runs(draws, *np.zeros((3, 3)))

    monkeypatch.setattr(robot_arm_figure, "sample_once", reported)
    robot_arm_figure.main([str(tmp_path / "arm.png")])
    assert asked == list(robot_arm_samplers.SAMPLERS)
    assert (tmp_path / "arm.png").exists()


@pytest.mark.long
def test_costs_are_reported_for_every_sampler(monkeypatch, capsys):
    monkeypatch.setattr(robot_arm_cost, "ROUNDS", 1)
    ms = robot_arm_cost.milliseconds("HMC30", 1, False)
    assert ms > 0
    monkeypatch.setattr(robot_arm_cost, "milliseconds", lambda *_: ms)
    monkeypatch.setattr(robot_arm_cost, "operations", lambda name: [2.0 if name == "MSD" else 1.0, 0.0, 3.0])
    robot_arm_cost.main([])
    out = capsys.readouterr().out
    assert all(out.count(f"| {name} |") == 2 for name in robot_arm_cost.KERNELS)
    assert "| MSD | 2.00 (2.00) | 0.000 | 3.00 (1.00) |" in out
