"""Masses learned in warm-up: the formula, the distribution that they must not change, and runs that are resumed."""

import math
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from problems.targets import LANGEVIN
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OSGHMC, PSGLD, SGHMC, SGLD, SGNHT
from pyro_manifold.infer.mcmc.sgmcmc import cancellation, windows

STIEFEL = LANGEVIN["V(3,2)"]
ROWS, SIZE = 1000, 50
Y = torch.randn(ROWS, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2


def two_scales(size=SIZE):
    """Posterior standard deviations 0.03 and 1000, independent."""
    known = pyro.sample("known", dist.Normal(0.0, 10.0))
    pyro.sample("vague", dist.Normal(torch.zeros(4), 1000.0).to_event(1))
    with pyro.plate("rows", ROWS, subsample_size=size) as rows:
        pyro.sample("y", dist.Normal(known, 1.0), obs=Y[rows])


PRECISION = ROWS + 0.01
MEAN = float(Y.sum() / PRECISION)
NOISE = float(Y.var(correction=0)) * ROWS**2 / SIZE
"""Variance of the gradient of a batch that is drawn with replacement."""
START = {"known": torch.full((8,), MEAN, dtype=torch.float64), "vague": torch.zeros(8, 4, dtype=torch.float64)}


def components(x):
    U = pyro.sample("U", StiefelUniform(3, 2))
    sizes = pyro.sample("sizes", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", 60, subsample_size=len(x)):
        covariance = U * sizes, torch.ones(3)
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(3), *covariance), obs=x)


def sampled(kernel, draws, warmup_steps, chains, **options):
    mcmc = MCMC(kernel, draws, warmup_steps, num_chains=chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def masses(mcmc):
    return {name: float(mass) for name, mass in mcmc.kernel.run.tuning.masses.mass.items()}


@pytest.mark.parametrize("warmup_steps", [0, 1, 2, 3, 7, 100])
def test_windows_cover_warm_up_and_end_with_its_half(warmup_steps):
    found = windows(warmup_steps)
    assert [k for window in found for k in window] == list(range(warmup_steps))
    if warmup_steps > 1:
        assert len(found[-1]) == (warmup_steps + 1) // 2


@pytest.mark.parametrize(("friction", "steps"), [(0.1, 5), (0.3, 2), (0.05, 40)])
def test_the_noise_of_shuffled_batches_cancels(friction, steps):
    """The variance from the covariance of all noise, epoch by epoch, for each phase of the present epoch."""
    epoch = (torch.eye(steps) - 1 / steps) * steps / (steps - 1)
    epochs = math.ceil(20 / (friction * steps))
    covariance = torch.block_diag(*[epoch] * epochs)
    ages = torch.arange(epochs * steps)
    each = []
    for used in range(1, steps + 1):
        noise = covariance[steps - used :, steps - used :]  # newest first; what is not used yet is left out
        weights = torch.exp(-friction * ages[: len(noise)])
        each.append(float(weights @ noise @ weights))
    independent = 1 / (1 - math.exp(-2 * friction))
    assert cancellation(friction, steps) == pytest.approx(sum(each) / steps / independent, rel=1e-6)


@pytest.mark.parametrize(
    ("kernel", "options", "heating"),
    [
        (SGHMC, {"friction": 0.2, "integrator": "euler"}, 1 / 0.4),
        (SGLD, {}, 0.25),
        pytest.param(OSGHMC, {"friction": 0.2}, 1 / (4 * math.tanh(0.1)), marks=pytest.mark.long),
        pytest.param(SGNHT, {"friction": 0.2}, 1 / (4 * math.tanh(0.1)), marks=pytest.mark.long),
    ],
)
def test_masses_are_curvature_and_noise(kernel, options, heating):
    """λ and σ² are known: the gradient of a batch is ROWS times the mean of SIZE data drawn with replacement."""
    options = {**options, "minibatches": "independent", "per_chain_minibatches": True}
    made = kernel(two_scales, step_size=0.1, num_steps=2, scales="adapt", **options)
    found = masses(sampled(made, 1, 200, 8, initial_params=START))
    squares = 8 * 100  # of normal numbers in the last window: half of warm-up, one of each chain and coordinate
    assert found["known"] == pytest.approx(PRECISION + heating * NOISE, rel=STANDARD_ERRORS * (2 / squares) ** 0.5)
    assert found["vague"] == pytest.approx(1e-6, rel=STANDARD_ERRORS * (2 / (4 * squares)) ** 0.5)


@pytest.mark.long
def test_the_temperature_of_sites_is_bounded_by_the_step_size():
    """1 + ε² for independent batches if noise dominates, of the precise site; the vague one has no noise."""
    ε, start = 0.5, {"known": torch.full((64,), MEAN), "vague": 1000 * torch.randn(64, 4)}
    options = {"num_steps": 10, "minibatches": "independent", "per_chain_minibatches": True}
    mcmc = sampled(SGHMC(two_scales, step_size=ε, scales="adapt", **options), 100, 100, 64, initial_params=start)
    draws = mcmc.get_samples(group_by_chain=True)
    temperature = PRECISION * (draws["known"] - MEAN).square()
    expected = 1 + ε**2 * NOISE / (4 * math.tanh(0.05)) / masses(mcmc)["known"]
    assert expected == pytest.approx(1 + ε**2, abs=0.05)
    assert_mean(temperature, expected)
    assert_mean((draws["vague"] / 1000).square().mean(-1), 1.0)


def three_sites():
    pyro.sample("small", dist.Normal(torch.zeros(3), 0.01).to_event(1))
    pyro.sample("large", dist.Normal(0.0, 100.0))
    STIEFEL.model()()


@pytest.mark.long
def test_the_distribution_is_that_of_the_model():
    """Exact moments: nine comparisons of 4 standard errors each, a false alarm in one of 1,800 runs.

    Chains begin up to 200 standard deviations away.
    """
    kernel = OSGHMC(three_sites, step_size=0.2, num_steps=10, friction=0.3, scales="adapt")
    mcmc = sampled(kernel, 150, 60, 64)
    draws = mcmc.get_samples(group_by_chain=True)
    assert_mean(STIEFEL.statistic(draws["X"]), *STIEFEL.expectation())
    for name, scale in {"small": 0.01, "large": 100.0}.items():
        value = draws[name].reshape(64, 150, -1) / scale
        for k in range(value.shape[-1]):
            assert_mean(value[..., k], 0.0)
            assert_mean(value[..., k].square(), 1.0)
    assert mcmc.kernel.scales["small"] == pytest.approx(0.01, rel=0.05)
    assert mcmc.kernel.scales["large"] == pytest.approx(100, rel=0.05)


def loader():
    data = TensorDataset(Y[:180].reshape(60, 3))
    return DataLoader(data, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(0))


@pytest.mark.long
def test_a_saved_run_continues_bit_for_bit():
    """In a window of warm-up, with sites of several kinds."""

    def prepared():
        pyro.set_rng_seed(0)
        kernel = OSGHMC(components, step_size=0.2, num_steps=3, scales="adapt")
        return kernel.prepare(2, 20, None, data_loader=loader())

    whole, first, second = prepared(), prepared(), prepared()
    for _ in range(30):
        whole.advance()
    for _ in range(13):
        first.advance()
    second.load_state_dict(first.state_dict())
    for _ in range(17):
        second.advance()
    for name, value in whole.sites.items():
        assert torch.equal(second.sites[name], value)
    for name, mass in whole.tuning.masses.mass.items():
        assert torch.equal(second.tuning.masses.mass[name], mass)


def test_masses_are_constant_after_warm_up_and_start_another_run():
    made = SGHMC(two_scales, step_size=0.2, num_steps=3, scales="adapt")
    with pytest.raises(RuntimeError, match="no run"):
        made.scales  # noqa: B018
    run = made.prepare(2, 12, None)
    seen = []
    for _ in range(20):
        run.advance()
        seen.append(float(run.tuning.masses.mass["known"]))
    assert len(set(seen[11:])) == 1
    assert len(set(seen)) > 3, "a window has its own masses"
    made.run = run
    again = SGHMC(two_scales, step_size=0.2, num_steps=3, scales=made.scales)
    assert again.scales == made.scales
    metrics = again.prepare(2, 0, None).transitions[0]._metrics
    for block, metric in run.tuning.masses.metrics.items():
        torch.testing.assert_close(metrics[block].inverse_mass, metric.inverse_mass)


def test_they_are_reported(capsys):
    mcmc = sampled(SGHMC(two_scales, step_size=0.2, num_steps=3, scales="adapt"), 10, 12, 8, initial_params=START)
    reported = mcmc.diagnostics()["site_scales"]
    assert set(reported) == {"known", "vague"}
    assert reported["known"]["scale"] == pytest.approx(reported["known"]["mass"] ** -0.5)
    assert reported["known"]["noise_share"] > 0.5
    assert reported["vague"]["noise_share"] == 0
    mcmc.summary()
    assert "Scales of sites from warm-up: " in capsys.readouterr().out
    assert pickle.loads(pickle.dumps(mcmc)).diagnostics()["site_scales"] == reported


def test_a_run_without_warm_up_warns_where_its_scales_are_from():
    with pytest.warns(UserWarning, match="scales='adapt' without warm-up: scales are those of the initial position"):
        sampled(SGHMC(two_scales, step_size=0.2, scales="adapt"), 2, 0, 8, initial_params=START)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SGLD(two_scales, step_size=0.1, scales="adapted"), "scales='adapted', expected {site: scale} or 'ada"),
        (lambda: SGLD(two_scales, step_size=0.1, scales=2.0), "scales=2.0, expected"),
        (lambda: PSGLD(two_scales, step_size=0.1, scales="adapt"), "PSGLD, which adapts a scale"),
    ],
)
def test_bad_input(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
