"""Sequential Monte Carlo, against evidences and posteriors that are known without it."""

import itertools
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from pyro_manifold.compiled import vectorisation
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MSD, OHMC, SMC, Shards
from pyro_manifold.infer.smc import annealing
from tests.infer.models import F, langevin, linear


def run(model, *args, kernel=OHMC, **options):
    smc = SMC(kernel(model), **{"num_particles": 512, "num_runs": 8, "disable_progbar": True, **options})
    smc.run(*args)
    return smc


def assert_evidence(smc, truth):
    """Within the suite's standard errors, by what runs differ: of 8 runs, so Student's t with 7 degrees of freedom."""
    allowed = STANDARD_ERRORS * 8.47 / 4  # the quantile of t₇ where the normal has 4 standard errors
    z = (smc.log_evidence - truth) / smc.log_evidence_error
    assert abs(z) < allowed, f"log evidence {smc.log_evidence}, truth {truth}: {z:.1f} standard errors"


def assert_mean_of_runs(draws, truth):
    """The mean over runs of ``(runs, particles)``, by what runs differ."""
    means = draws.mean(1)
    z = float((means.mean() - truth) / (means.std() / len(means) ** 0.5))
    assert abs(z) < 8.47, f"mean {float(means.mean())}, truth {truth}: {z:.1f} standard errors"


@pytest.mark.parametrize("kernel", [OHMC, pytest.param(GHMC, marks=pytest.mark.long)])
def test_evidence_and_posterior_of_a_matrix_langevin(kernel):
    pyro.set_rng_seed(0)
    smc = run(langevin, kernel=kernel)
    assert_evidence(smc, 1.607)
    U = smc.get_samples(group_by_chain=True)["U"]
    assert U.shape == (8, 512, 3, 2)
    assert_mean_of_runs((F * U).sum((-2, -1)), 2.809)


def test_chains_of_the_last_level_can_be_longer():
    pyro.set_rng_seed(2)
    smc = run(langevin, num_particles=128, last_states=64)
    assert_evidence(smc, 1.607)
    U = smc.get_samples(group_by_chain=True)["U"]
    assert U.shape == (8, 8 * 64, 3, 2)
    assert_mean_of_runs((F * U).sum((-2, -1)), 2.809)


@pytest.mark.long
def test_evidence_and_posterior_of_linear_regression():
    pyro.set_rng_seed(1)
    x, y = torch.randn(30, 4), torch.randn(30)
    smc = run(linear, x, y)
    covariance = 4 * x @ x.T + 0.25 * torch.eye(30)
    truth = dist.MultivariateNormal(torch.zeros(30), covariance).log_prob(y)
    assert_evidence(smc, float(truth))
    precision = x.T @ x / 0.25 + torch.eye(4) / 4
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    w = smc.get_samples(group_by_chain=True)["w"]
    for k in range(4):
        assert_mean_of_runs(w[..., k], float(mean[k]))
        assert_mean_of_runs((w[..., k] - mean[k]).square(), float(precision.inverse()[k, k]))


@pytest.mark.long
def test_modes_have_the_particles_that_their_masses_earn():
    def two_modes():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 5.0).to_event(1))
        left = dist.Normal(torch.tensor(-4.0), 0.1).log_prob(x).sum(-1) + math.log(0.3)
        right = dist.Normal(torch.tensor(4.0), 0.1).log_prob(x).sum(-1) + math.log(0.7)
        pyro.factor("modes", torch.logaddexp(left, right))

    pyro.set_rng_seed(2)
    smc = run(two_modes, num_particles=2048)
    # The prior has the same density at both but for the width of the modes, by symmetry exactly the same mass.
    prior = dist.Normal(0.0, (25 + 0.01) ** 0.5).log_prob(torch.tensor(4.0)) * 2
    assert_evidence(smc, float(prior))
    assert_mean_of_runs((smc.get_samples(group_by_chain=True)["x"][..., 0] > 0).double(), 0.7)


@pytest.mark.long
def test_discrete_sites_are_summed_out():
    y = torch.tensor([-2.0, -1.5, 2.0, 2.5, 3.0])

    def mixture():
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.4), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(torch.where(z > 0, mean, -mean), 1.0), obs=y)

    grid = torch.linspace(-20, 20, 40_001).unsqueeze(-1)
    right, left = dist.Normal(grid, 1.0).log_prob(y), dist.Normal(-grid, 1.0).log_prob(y)
    density = torch.logaddexp(right + math.log(0.4), left + math.log(0.6)).sum(-1)
    density = density + dist.Normal(0.0, 3.0).log_prob(grid.squeeze(-1))
    pyro.set_rng_seed(3)
    assert_evidence(run(mixture), float(density.logsumexp(0) + math.log(40 / 40_000)))


@pytest.mark.long
def test_both_components_of_the_orthogonal_group():
    def square():
        U = pyro.sample("U", StiefelUniform(2, 2))
        pyro.factor("l", 6 * U[..., 0, 0])

    pyro.set_rng_seed(4)
    smc = run(square)
    assert_evidence(smc, math.log(torch.special.i0(torch.tensor(6.0))))
    determinants = torch.linalg.det(smc.get_samples(group_by_chain=True)["U"])
    assert_mean_of_runs((determinants > 0).double(), 0.5)


def test_factors_of_the_prior_are_no_evidence():
    def ordered():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("order", -2 * x[0].square())  # makes the first N(0, 1/5)
        pyro.sample("y", dist.Normal(x[0], 0.5), obs=torch.tensor(1.0))

    pyro.set_rng_seed(5)
    smc = run(ordered, prior_factors=["order"])
    assert_evidence(smc, float(dist.Normal(0.0, (0.2 + 0.25) ** 0.5).log_prob(torch.tensor(1.0))))


def test_a_likelihood_that_is_zero_somewhere_costs_its_share_of_the_prior():
    def half():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("l", torch.where(x > 0, -x, -torch.inf))

    pyro.set_rng_seed(6)
    truth = 0.5 + math.log(dist.Normal(0.0, 1.0).cdf(torch.tensor(-1.0)))  # ∫ φ(x) e^(-x) over x > 0
    assert_evidence(run(half), truth)


def test_single_precision_and_one_run():
    smc = run(lambda: langevin(), num_runs=1)
    assert 0 < smc.log_evidence_error < 0.2

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3, dtype=torch.float32), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x, 0.1).to_event(1), obs=torch.ones(3, dtype=torch.float32))

    draws = run(model).get_samples()["x"]
    assert draws.dtype == torch.float32
    assert torch.isfinite(draws).all()


def test_what_users_call_after_a_run(capsys):
    pyro.set_rng_seed(7)
    smc = run(linear, torch.randn(10, 2), torch.randn(10), num_particles=512, num_runs=2)
    smc.summary()
    assert "log evidence" in capsys.readouterr().out
    assert dict(smc.to_inferencedata().posterior.sizes)["chain"] == 2
    assert [level.inverse_temperature.shape for level in smc.levels] == [(2,)] * len(smc.levels)
    assert float(smc.levels[-1].inverse_temperature.min()) == 1
    pickle.dumps(smc.get_samples())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_particles": 100}, "num_particles=100, chain_length=16.*such as num_particles=112"),
        ({"num_particles": 16}, "num_particles=16, chain_length=16.*such as num_particles=32"),
        ({"ess_threshold": 1.0}, "ess_threshold=1.0"),
        ({"num_runs": 0}, "num_runs=0"),
        ({"init": "somewhere"}, "init='somewhere'"),
        ({"prior_factors": "order"}, "prior_factors='order'"),
        ({"prior_factors": 5}, "prior_factors=5"),
        ({"ess_threshold": "half"}, "ess_threshold='half'"),
        ({"init": None}, "init=None, expected 'prior', 'modes' or a guide"),
    ],
)
def test_bad_arguments_are_sentences(options, words):
    with pytest.raises(ValueError, match=words):
        SMC(OHMC(langevin), **options)


def test_other_kernels_and_models_without_data_are_sentences():
    with pytest.raises(ValueError, match="expected OHMC"):
        SMC(MSD(langevin))
    with pytest.raises(ValueError, match="potential_fn"):
        SMC(OHMC(potential_fn=lambda sites: sites["x"].sum(), manifolds={}))
    with pytest.raises(ValueError, match="no likelihood"):
        run(lambda: pyro.sample("U", StiefelUniform(3, 2)))
    with pytest.raises(ValueError, match="prior_factors names"):
        run(langevin, prior_factors=["l"])
    with pytest.raises(ValueError, match=r"call smc\.run"):
        SMC(OHMC(langevin)).get_samples()
    with pytest.raises(RuntimeError, match="after 1 levels"):
        run(linear, torch.randn(30, 4), torch.randn(30), max_levels=1)


def improper():
    x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))


def masked():
    x = pyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1).mask(False))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.ones(2))


def masked_in_part():
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).mask(torch.tensor([True, False])).to_event(1))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.ones(2))


def within(handler):
    """A prior within a handler of Pyro, and a likelihood."""

    def model():
        with handler:
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))

    return model


def with_factor(value):
    def model():
        pyro.factor("l", value(pyro.sample("x", dist.Normal(0.0, 1.0))))

    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (improper, "site 'x' has an improper prior"),
        (masked, "site 'x' has an improper prior"),
        (masked_in_part, "site 'x' has an improper prior"),
        (within(poutine.mask(mask=False)), "site 'x' has an improper prior"),
        (within(poutine.mask(mask=torch.tensor(False))), "site 'x' has an improper prior"),
        (within(poutine.scale(scale=0.5)), "prior of site 'x' is scaled"),
        (with_factor(lambda x: torch.where(x > 0, torch.nan, -x)), "log density of the model is nan"),
        (with_factor(lambda x: x * torch.nan), "log density of the model is nan"),
        (with_factor(lambda x: torch.where(x > 0, torch.inf, -x)), "log density of the model is inf"),
        (with_factor(lambda x: torch.where(x > 100, -x, -torch.inf)), r"likelihood of \['l'\] is zero"),
        (lambda: pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.ones(())), "no continuous site"),
    ],
)
def test_models_without_an_evidence_are_sentences(model, words):
    with pytest.raises(ValueError, match=words):
        run(model, num_particles=64, num_runs=2)


def test_a_density_that_is_nan_where_the_prior_is_finite_is_reported():
    """It counted as zero in silence: a third of the mass is beyond 4."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("f", torch.where(x > 4.0, torch.nan, dist.Normal(4.0, 0.2).log_prob(x)))

    with pytest.warns(UserWarning, match="NaN at [0-9]+ of 512 points near the particles"):
        SMC(OHMC(model), disable_progbar=True).run()


@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_prior_at_the_edge_of_floating_point_is_reported(shards):
    """Draws of Beta(0.05, 0.05) that are nearer to 1 than ε are there: evidence is off by 2.5 to 7 errors."""

    def model():
        p = pyro.sample("p", dist.Beta(0.05, 0.05))
        pyro.sample("y", dist.Binomial(10, p), obs=torch.tensor(0.0))

    options = {"shards": Shards(ThreadPoolExecutor(1), 2)} if shards == 2 else {}
    with pytest.warns(UserWarning, match="draws from the prior are at the limit of floating-point"):
        SMC(OHMC(model), 512, disable_progbar=True, **options).run()


def test_an_interrupt_reports_progress_and_leaves_no_draws(monkeypatch):
    smc = SMC(OHMC(linear), 64, 2, disable_progbar=True)
    x, y = torch.randn(30, 4), torch.randn(30)
    smc.run(x, y)
    resample, calls = annealing.systematic_resampling, itertools.count()

    def interrupted(*arguments):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return resample(*arguments)

    monkeypatch.setattr(annealing, "systematic_resampling", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        smc.run(x, y)
    assert "before there were draws" in caught.value.__notes__[0]
    assert len(smc.levels) == 3
    with pytest.raises(ValueError, match=r"call smc\.run"):
        smc.get_samples()  # not those of the run before


@pytest.mark.long
def test_particles_are_a_part_at_a_time_where_memory_asks(monkeypatch):
    """Chains whose intermediate values would be mapped anew at each call are moved in parts."""
    pyro.set_rng_seed(9)
    x, y = torch.randn(30, 4), torch.randn(30)
    monkeypatch.setattr(vectorisation, "_LARGEST_KEPT_BLOCK", 30 * 8 * 24)  # 24 chains of 32 · 4
    smc = run(linear, x, y, num_runs=4)
    covariance = 4 * x @ x.T + 0.25 * torch.eye(30)
    assert_evidence(smc, float(dist.MultivariateNormal(torch.zeros(30), covariance).log_prob(y)))


def signs():
    """A sign, by the only matrices with one row and one column."""
    U = pyro.sample("U", StiefelUniform(1, 1))
    pyro.sample("y", dist.Normal(U[..., 0, 0], 1.0), obs=torch.tensor(0.5))


@pytest.mark.filterwarnings("ignore:The standard error of the log evidence")  # of so few particles
def test_a_sign_alone_has_its_evidence():
    weights = torch.tensor([0.5, -0.5]).exp()  # the ratio of the likelihoods
    likelihoods = dist.Normal(torch.tensor([1.0, -1.0]), 1.0).log_prob(torch.tensor(0.5))
    # The error is estimated from runs: of eight, one in two hundred is 4 estimated standard errors from the truth.
    smc = SMC(OHMC(signs), 128, 32, disable_progbar=True)
    smc.run()
    draws = smc.get_samples(group_by_chain=True)["U"].flatten(2)[..., 0]
    assert set(draws.unique().tolist()) == {-1.0, 1.0}
    assert_mean(draws.mean(1), float((weights[0] - weights[1]) / weights.sum()))
    truth = float(likelihoods.logsumexp(0)) - math.log(2)
    assert_mean(smc.log_evidences.exp(), math.exp(truth))
    with pytest.raises(ValueError, match=r"no site can move, as the matrices of V\(1, 1\).*use init='prior'"):
        SMC(OHMC(signs), 32, 2, init="modes", disable_progbar=True).run()
