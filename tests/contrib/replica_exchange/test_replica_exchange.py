"""Replica exchange, against posteriors and evidences that are known without it."""

import math
import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.accuracy.evidence.problems import unequal, unequal_truth
from problems.monte_carlo import STANDARD_ERRORS, assert_mean
from pyro_manifold.contrib.replica_exchange import PriorDraws
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC, OSGHMC, ReplicaExchange, Shards, Store, Superchains
from pyro_manifold.infer.mcmc.transitions import Layout
from tests.contrib.replica_exchange import gaussian_path
from tests.infer.models import F, langevin, linear

FEW_GROUPS = STANDARD_ERRORS * 8.47 / 4  # the quantile of Student's t₇ where the normal has 4 standard errors


def two_modes():
    """Far apart, and narrow: 0.3 and 0.7 of the mass."""
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    left = dist.Normal(torch.tensor(-4.0), 0.1).log_prob(x).sum(-1) + math.log(0.3)
    right = dist.Normal(torch.tensor(4.0), 0.1).log_prob(x).sum(-1) + math.log(0.7)
    pyro.factor("modes", torch.logaddexp(left, right))


def run(model, *args, kernel=OHMC, levels=6, samples=400, **options):
    options = {"warmup_steps": 120, "num_chains": 8, "disable_progbar": True, **options}
    mcmc = MCMC(kernel(model), samples, tempering=ReplicaExchange(levels=levels), **options)
    mcmc.run(*args)
    return mcmc


def exchange(mcmc):
    return mcmc.diagnostics()["replica_exchange"]


def assert_evidence(mcmc, truth):
    reported = exchange(mcmc)
    z = (reported["log_evidence"] - truth) / reported["log_evidence_error"]
    assert abs(z) < FEW_GROUPS, f"log evidence {reported['log evidence']}, truth {truth}: {z:.1f} standard errors"


def assert_mean_of_chains(draws, truth):
    """By what 8 chains differ, whatever their autocorrelation."""
    means = draws.mean(1)
    z = float((means.mean() - truth) / (means.std() / len(means) ** 0.5))
    assert abs(z) < FEW_GROUPS, f"mean {float(means.mean())}, truth {truth}: {z:.1f} standard errors"


@pytest.mark.parametrize("kernel", [OHMC, pytest.param(GHMC, marks=pytest.mark.long)])
def test_evidence_and_posterior_of_a_matrix_langevin(kernel):
    mcmc = run(langevin, kernel=kernel, levels=4, samples=200)
    assert_evidence(mcmc, 1.607)
    U = mcmc.get_samples(group_by_chain=True)["U"]
    assert U.shape == (8, 200, 3, 2)
    assert_mean_of_chains((F * U).sum((-2, -1)), 2.809)


@pytest.mark.long
def test_evidence_and_posterior_of_linear_regression():
    x, y = torch.randn(30, 4), torch.randn(30)
    mcmc = run(linear, x, y, levels=10)
    covariance = 4 * x @ x.T + 0.25 * torch.eye(30)
    assert_evidence(mcmc, float(dist.MultivariateNormal(torch.zeros(30), covariance).log_prob(y)))
    precision = x.T @ x / 0.25 + torch.eye(4) / 4
    mean = torch.linalg.solve(precision, x.T @ y / 0.25)
    w = mcmc.get_samples(group_by_chain=True)["w"]
    for k in range(4):
        assert_mean(w[..., k], float(mean[k]))
        assert_mean((w[..., k] - mean[k]).square(), float(precision.inverse()[k, k]))


@pytest.mark.long
def test_modes_that_no_chain_would_leave_have_their_weights():
    mcmc = run(two_modes, levels=10, samples=1500)
    prior = dist.Normal(0.0, (25 + 0.01) ** 0.5).log_prob(torch.tensor(4.0)) * 2
    assert_evidence(mcmc, float(prior))
    right = (mcmc.get_samples(group_by_chain=True)["x"][..., 0] > 0).double()
    assert_mean_of_chains(right, 0.7)
    assert (right.diff(dim=1) != 0).any(1).all()  # every chain passes between them
    assert mcmc.get_extra_fields(group_by_chain=True)["swapped"].double().mean() > 0.2


@pytest.mark.long
def test_a_narrow_mode_that_replicas_miss_is_covered_by_the_error_and_warned_of():
    """Errors of 0.03 to 0.1 beside a truth 0.7 away, in about six runs of ten: in one of eight but for 1e-3."""
    truth, _ = unequal_truth(3, 0.15)
    for _ in range(8):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            mcmc = run(lambda: unequal(3, 0.15), num_chains=4, levels=8)
        if mcmc._run_here.bound.present < 0.05:  # of the draws are in the mode
            reported = exchange(mcmc)
            assert abs(reported["log_evidence"] - truth) < 3 * reported["log_evidence_error"]
            assert any("of the replicas is too low" in str(each.message) for each in said)
            assert "by the modes that descents find" in mcmc._run_here.summary_lines()[1]
            return
    pytest.fail("The replicas found the mode in each of eight runs.")


@pytest.mark.long
def test_the_ladder_has_equal_rejections_and_the_barrier_of_the_path():
    levels = 8
    mcmc = run(gaussian_path.model, levels=levels, num_chains=64, warmup_steps=150, samples=150)
    reported = exchange(mcmc)
    ratio = gaussian_path.precision(1.0) ** (1 / (levels - 1))
    each = float(gaussian_path.rejection(1, ratio))
    # The last round has 68 × 64 probabilities of a pair, of standard deviation 0.35; successive ones are alike, so that
    # a rejection is off by 0.01, and as much again by the interpolation of the barrier.
    assert (reported["rejection_rates"] - each).abs().max() < 0.05
    assert abs(reported["barrier"] - (levels - 1) * each) < 0.05
    assert reported["inverse_temperatures"][[0, -1]].tolist() == [0, 1]
    assert 0.5 < float(reported["round_trips"].double().mean()) / reported["expected_round_trips"] < 1.1


@pytest.mark.long
def test_both_components_of_the_orthogonal_group():
    def square():
        U = pyro.sample("U", StiefelUniform(2, 2))
        pyro.factor("l", 6 * U[..., 0, 0])

    mcmc = run(square, levels=5)
    assert_evidence(mcmc, math.log(torch.special.i0(torch.tensor(6.0))))
    assert_mean_of_chains((torch.linalg.det(mcmc.get_samples(group_by_chain=True)["U"]) > 0).double(), 0.5)


@pytest.mark.long
def test_discrete_sites_and_a_likelihood_that_is_zero_somewhere():
    def half():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 2):
            z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(z, 1.0), obs=torch.zeros(2))
        pyro.factor("l", torch.where(x > 0, -x, -torch.inf))

    of_x = 0.5 + math.log(dist.Normal(0.0, 1.0).cdf(torch.tensor(-1.0)))  # ∫ φ(x) e^(-x) over x > 0
    of_y = 2 * math.log((1 + math.exp(-0.5)) / 2 / math.sqrt(2 * math.pi))
    mcmc = run(half, levels=3, samples=100, warmup_steps=60)  # of steps that must be short, at the edge
    reported, drawn = exchange(mcmc), mcmc._run_here.tuning.fresh.drawn
    # Half of the draws from the prior count, a share whose logarithm has the variance 1/n.
    error = math.hypot(reported["log_evidence_error"], drawn**-0.5)
    assert abs(reported["log_evidence"] - of_x - of_y) < FEW_GROUPS * error
    assert (mcmc.get_samples()["x"] > 0).all()


def pool(draw, size):
    example = {name: x.unsqueeze(0).repeat(size, *[1] * x.dim()) for name, x in draw().items()}
    layout = Layout.build({name: x[0] for name, x in example.items()}, ["U", "inverse temperature"], False)
    blocks = layout.pack({**example, "inverse temperature": torch.zeros(size, 1)})
    finite = lambda position: (torch.zeros(size), {})  # noqa: E731
    return PriorDraws(draw, layout, finite, blocks, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("at_once", "size"), [(True, 128), (False, 40)])
def test_draws_from_the_prior_are_as_many_different_ones(at_once, size):
    def draw():
        shift = torch.randn(2) if at_once else torch.from_numpy(torch.randn(2).numpy())  # which vmap refuses
        return {"U": MatrixLangevin(F).sample() if not at_once else StiefelUniform(3, 2).sample(), "x": 3 + shift}

    draws = pool(draw, size)
    assert (draws._at_once() is not None) == at_once
    found = draws.take(size)
    assert_mean(found[("x",)][:, 0], 3.0)
    assert_mean((found[("x",)][:, 0] - 3).square(), 1.0)
    assert_mean((F * found[("U",)]).sum((-2, -1)), 0.0 if at_once else 2.809)
    assert not torch.equal(draws.take(size)[("x",)], found[("x",)])


def test_draws_of_vmap_that_are_all_the_same_are_not_taken():
    constant = iter(range(10**6))

    def draw():  # random numbers that torch does not know of
        return {"U": torch.eye(3)[:, :2], "x": torch.full((1,), float(next(constant)))}

    assert pool(draw, 128)._at_once() is None


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:No replica")
def test_a_seed_is_a_run_and_so_is_one_that_is_continued(monkeypatch):
    monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")  # which begins where enough iterations are planned
    found = []
    for samples, more in ((40, 0), (15, 25)):
        pyro.set_rng_seed(3)
        mcmc = run(langevin, levels=3, samples=samples, num_chains=2, warmup_steps=40)
        if more:
            mcmc.continue_run(more)
        found.append((mcmc.get_samples()["U"], exchange(mcmc)["log_evidence"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.filterwarnings("ignore:No replica")
@pytest.mark.long
def test_a_stored_run_continues_bit_for_bit(tmp_path):
    class Stop(Exception):  # noqa: N818
        pass

    def stop(iteration):
        if iteration.stage == "Sample" and iteration.index == 17:
            raise Stop

    def go(store, **options):
        pyro.set_rng_seed(4)
        store = Store(store, seconds=1e-6)
        return run(langevin, levels=3, samples=40, num_chains=2, warmup_steps=40, store=store, **options)

    whole = go(tmp_path / "whole")
    with pytest.raises(Stop):
        go(tmp_path / "broken", consumers=[stop])
    resumed = go(tmp_path / "broken", resume=True)
    assert torch.equal(torch.as_tensor(resumed.get_samples()["U"]), torch.as_tensor(whole.get_samples()["U"]))
    assert exchange(resumed)["log_evidence"] == exchange(whole)["log_evidence"]


@pytest.mark.filterwarnings("ignore:No replica")
def test_what_users_call_after_a_run(capsys):
    seen = []
    mcmc = run(
        linear,
        torch.randn(10, 2),
        torch.randn(10),
        samples=60,
        num_chains=2,
        levels=4,
        hook_fn=lambda kernel, params, stage, i: seen.append({name: x.shape for name, x in params.items()}),
        until={"ess": 20, "max_samples": 200},
    )
    mcmc.summary()
    out = capsys.readouterr().out
    for words in ("4 levels", "barrier", "round trips", "log evidence", "w[0]"):
        assert words in out
    assert "inverse temperature" not in out
    assert seen[0] == {"w": (2, 2)}
    assert set(mcmc.get_samples()) == {"w"}
    assert dict(mcmc.to_inferencedata().posterior.sizes)["chain"] == 2
    pickle.loads(pickle.dumps(mcmc.kernel))
    reported = exchange(mcmc)
    assert reported["rejection_rates"].shape == (3,)
    assert reported["round_trips"].shape == (2,)


@pytest.mark.filterwarnings("ignore:No replica")
def test_single_precision_and_one_chain():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(3, dtype=torch.float32), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x, 0.1).to_event(1), obs=torch.ones(3, dtype=torch.float32))

    mcmc = run(model, samples=60, num_chains=1, levels=8, warmup_steps=60)
    draws = mcmc.get_samples()["x"]
    assert draws.dtype == torch.float32
    assert torch.isfinite(draws).all()
    assert math.isnan(exchange(mcmc)["log_evidence_error"])


def test_chains_whose_replicas_do_not_travel_are_reported():
    with pytest.warns(UserWarning, match=r"No replica of chain.*with 2 levels.*or ReplicaExchange\(levels=[3-9]"):
        run(two_modes, levels=2, samples=30, num_chains=2, warmup_steps=20)
    with pytest.warns(UserWarning, match=r"No replica of chain.*with 16 levels: increase num_samples\.$"):
        run(langevin, levels=16, samples=2, num_chains=2, warmup_steps=20)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tempering": 8}, "tempering=8, expected True"),
        ({"tempering": True, "warmup_steps": 5}, "warmup_steps=5"),
        ({"tempering": True, "num_chains": Superchains(2, size=2)}, "Superchains is not supported with tempering"),
        (
            {"tempering": True, "initial_params": {"U": torch.eye(3)[:, :2].expand(4, 3, 2)}},
            "initial_params is not",
        ),
        ({"tempering": True, "chain_method": Shards(lambda: None)}, "Shards is not supported with tempering"),
        ({"tempering": True, "chain_method": "sequential"}, "tempering needs chain_method='vectorized'"),
    ],
)
def test_bad_arguments_are_sentences(options, words):
    with pytest.raises(ValueError, match=words):
        MCMC(OHMC(langevin), 100, **{"num_chains": 4, **options})


def test_other_kernels_and_models_without_data_are_sentences():
    with pytest.raises(ValueError, match="levels=1"):
        ReplicaExchange(levels=1)
    for kernel in (MSD(langevin), OSGHMC(langevin, step_size=0.1)):
        with pytest.raises(ValueError, match="tempering needs a kernel with the full likelihood"):
            MCMC(kernel, 100, tempering=True)
    with pytest.raises(ValueError, match="potential_fn"):
        MCMC(OHMC(potential_fn=lambda sites: sites["x"].sum(), manifolds={}), 100, tempering=True)
    with pytest.raises(ValueError, match="no likelihood"):
        run(lambda: pyro.sample("U", StiefelUniform(3, 2)))


def likelihood_of(value):
    """Of what does not follow from zero, in a half of the prior."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("likelihood", torch.where(x > 0, -0.5 * x**2, value))

    return model


def improper():
    x = pyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))


def nothing_continuous():
    z = pyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
    pyro.sample("y", dist.Normal(z, 1.0), obs=torch.tensor(1.0))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (likelihood_of(math.nan), r"^tempering: the log density of the model is nan"),
        (likelihood_of(math.inf), r"^tempering: the log density of the model is inf"),
        (improper, r"^tempering: site 'x' has an improper prior"),
        (nothing_continuous, r"^tempering: the model has no continuous site"),
    ],
)
def test_models_without_a_path_from_the_prior_are_sentences(model, words):
    """A likelihood that is no number was taken for zero."""
    with pytest.raises(ValueError, match=words):
        run(model)
