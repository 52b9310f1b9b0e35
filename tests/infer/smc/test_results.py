"""Evidences of several runs and their standard errors, against what can be worked out by hand; shards; exports."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.density import Program
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform
from pyro_manifold.infer import OHMC, SMC, Shards
from pyro_manifold.infer.smc import AnnealingSettings, Bound, Evidence, Job, Level, Result, warn
from tests.infer.models import langevin, linear

UNKNOWN = Bound()


def result(log_evidences, variances, shared=(0.0,), bound=UNKNOWN):
    one = torch.ones(len(log_evidences))
    level = Level(one, torch.tensor(log_evidences), torch.tensor(variances), one, one, 1, 3)
    draws = {"x": torch.randn(len(log_evidences), 8)}
    return Result(
        draws,
        draws["x"],
        torch.tensor(log_evidences),
        torch.tensor(variances),
        torch.tensor(shared),
        [level],
        [0],
        [bound],
    )


def test_errors_of_two_runs():
    found = result([math.log(1.0), math.log(3.0)], [0.1, 0.3])
    assert found.log_evidence == pytest.approx(math.log(2.0))
    # Without one, log 3 or log 1: half of their distance, times √(R - 1).
    assert found.error_between == pytest.approx(math.log(3) / 2)
    assert found.error_within == pytest.approx(math.log1p((math.expm1(0.1) + math.expm1(0.3)) / 4) ** 0.5)
    assert found.error == found.error_between
    assert result([0.0, 0.0], [0.1, 0.3]).error == found.error_within


def test_one_run_has_the_error_of_its_chains():
    found = result([2.0], [0.04], shared=(0.05,))
    assert math.isnan(found.error_between)
    assert found.error == pytest.approx(0.3, rel=1e-6)


def test_what_all_runs_share_does_not_average_out():
    alone = result([0.0, 0.1], [0.01, 0.01]).error
    together = result([0.0, 0.1], [0.01, 0.01], shared=(0.09,))
    assert together.error == pytest.approx((alone**2 + 0.09) ** 0.5)
    assert result([0.0, 0.1], [0.01, 0.01], shared=(0.09, 0.09)).error == pytest.approx((alone**2 + 0.045) ** 0.5)


def test_an_error_covers_the_lower_bound():
    bound = Bound(1.0, 0.05)
    assert result([0.0, 0.0], [0.01, 0.01], bound=bound).error == pytest.approx(1 + math.log(0.9))
    above = result([2.0, 2.0], [0.01, 0.01], bound=bound)
    assert above.error == above.error_of_particles


def test_lost_mass_is_a_sentence_of_what_is_lost_and_what_to_do():
    plan, bound = AnnealingSettings(2, 64, 16, 16, 0.5, 100), Bound(1.0, 0.0, 0.6, 0.0, 0.01)
    lost = r"± 0\.\d\d of the particles is too low: .* at least 1\.00, and a mode with 0\.60 .* has 0\.00 of the draws"
    remedy = r".*: use init='modes' with num_starts=500, or more num_particles\.$"
    with pytest.warns(UserWarning, match=lost + remedy):
        warn(result([0.0, 0.0], [0.01, 0.01], bound=bound), plan, 64)
    warn(result([0.0, 0.0], [0.3, 0.3], bound=bound), plan, 64)  # which the error covers
    outside = replace(bound, basin=0.0, first=4096)
    with pytest.warns(UserWarning, match="use init='modes' with num_starts far above 4096 .*, or more num_particles"):
        warn(result([0.0, 0.0], [0.01, 0.01], bound=outside), plan, 64)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_error_of_a_share_of_the_prior_is_stated(share):
    """A likelihood of 0 and 1: all of the error is that of the share, which all runs have together."""
    edge = float(dist.Normal(0.0, 1.0).icdf(torch.tensor(1 - share)))

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.factor("l", torch.where(x > edge, 0.0, -torch.inf))

    smc = SMC(OHMC(model), 512, 8, disable_progbar=True)
    smc.run()
    assert float(smc.log_evidences.std()) == pytest.approx(0.0, abs=1e-9)
    assert smc.log_evidence_error == pytest.approx(((1 - share) / 256) ** 0.5, rel=0.2)  # by the share that was found
    assert abs(smc.log_evidence - math.log(share)) < 4 * smc.log_evidence_error


# ---- shards -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_runs_of_shards_do_not_depend_on_the_workers():
    x, y = torch.randn(20, 2), torch.randn(20)
    found = []
    for workers in (1, 2):
        pyro.set_rng_seed(1)
        with ThreadPoolExecutor(workers) as executor:
            smc = SMC(OHMC(linear), 64, 4, disable_progbar=True, shards=Shards(executor, 2))
            smc.run(x, y)
        found.append(smc)
    first, second = found
    assert torch.equal(first.log_evidences, second.log_evidences)
    assert torch.equal(first.get_samples()["w"], second.get_samples()["w"])
    assert len(set(first.log_evidences.tolist())) == 4
    assert len(first.result.bounds) == 2
    assert first.result.bounds == second.result.bounds
    assert all(bound.evaluations for bound in first.result.bounds)
    assert first.get_samples(group_by_chain=True)["w"].shape == (4, 64, 2)
    assert [level.inverse_temperature.shape for level in first.levels] == [(4,)] * len(first.levels)
    assert bool((first.levels[-1].inverse_temperature == 1).all())
    torch.testing.assert_close(first.levels[-1].log_evidence, first.log_evidences)
    truth = dist.MultivariateNormal(torch.zeros(20), 4 * x @ x.T + 0.25 * torch.eye(20)).log_prob(y)
    assert abs(first.log_evidence - float(truth)) < 8 * first.log_evidence_error


def test_parameters_of_a_guide_travel_to_shards():
    def guide(x, y):
        pyro.sample("w", dist.Normal(pyro.param("loc"), 0.5).to_event(1))

    pyro.param("loc", torch.zeros(2))
    parameters = pyro.get_param_store().get_state()
    pyro.clear_param_store()  # as in another process
    pyro.param("other", torch.ones(1))
    options = {"num_particles": 64, "init": guide}
    program = Program(linear, (torch.randn(20, 2), torch.randn(20)))
    job = Job(SMC, OHMC(linear), 4, options, program, 0, parameters)
    samples, extra = job.done_by(0, 2)
    assert samples["w"].shape == (2, 64, 2)
    assert bool(torch.isfinite(extra["log_evidences"]).all())
    assert list(pyro.get_param_store().keys()) == ["other"]


def test_shards_that_cannot_be_are_sentences():
    with pytest.raises(ValueError, match="num_runs=4 is not divisible by the number of shards, 3"):
        SMC(OHMC(langevin), shards=Shards(ThreadPoolExecutor(1), 3))
    with pytest.raises(ValueError, match="shards=2, expected Shards"):
        SMC(OHMC(langevin), shards=2)


# ---- what is said of them ---------------------------------------------------------------------------------------


def components(y):
    U = pyro.sample("U", StiefelUniform(4, 2))
    scales = pyro.sample("scales", NormalSingularValues(4, 2, 3.0))
    covariance = U * scales, torch.ones(4)
    pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(4), *covariance).expand([len(y)]).to_event(1), obs=y)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The log evidences of 2 runs differ")  # as those of so few particles may
def test_columns_known_up_to_signs_are_reported(capsys):
    smc = SMC(OHMC(components), 64, 2, disable_progbar=True)
    smc.run(torch.randn(20, 4) @ torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0])))
    smc.summary()
    said = capsys.readouterr().out
    assert "ess_bulk" in said
    assert "`U` is known only up to the signs" in said
    assert "R-hat of the invariants is at most" in said
    assert "(2 runs; by differences between runs" in said


def test_groups_for_arviz():
    smc = SMC(OHMC(langevin), 64, 3, disable_progbar=True)
    smc.run()
    data = smc.to_inferencedata(log_likelihood=False)
    assert data.posterior["U"].shape == (3, 64, 3, 2)
    statistics = data.sample_stats
    assert statistics["inverse_temperature"].dims == ("chain", "level")
    assert statistics["inverse_temperature"].values[:, -1].tolist() == [1.0] * 3
    assert statistics["log_evidence_so_far"].values[:, -1] == pytest.approx(smc.log_evidences.numpy())
    assert statistics.attrs["log_evidence"] == smc.log_evidence
    assert statistics.attrs["log_evidence_error"] == smc.log_evidence_error
    # The density of the particles, β = 1: of a uniform prior, the factor itself.
    F = torch.tensor([[3.0, 0.0], [0.0, 1.5], [0.0, 0.0]])
    factor = (F * smc.get_samples(group_by_chain=True)["U"]).sum((-2, -1))
    torch.testing.assert_close(torch.as_tensor(statistics["lp"].values), factor)


def test_groups_are_a_file(tmp_path):
    smc = SMC(OHMC(langevin), 64, 2, disable_progbar=True)
    smc.run()
    smc.to_inferencedata(log_likelihood=False).to_netcdf(str(tmp_path / "particles.nc"))
    assert (tmp_path / "particles.nc").stat().st_size > 0


def test_the_error_of_a_chain_goes_with_that_of_its_ancestor():
    """Two levels of two chains with two states each, by hand."""
    zero = torch.zeros(1)
    evidence = Evidence(zero, zero, torch.zeros(1, 2))
    # Mean weights 1 and 3: shares (1/2 - 1)/2 and (3/2 - 1)/2, -1/4 and 1/4; 2/(2 - 1) times the sum of squares.
    first = evidence.after(torch.tensor([[0.5, 1.5, 2.0, 4.0]]).log(), torch.tensor([[3, 1]]))
    torch.testing.assert_close(first.log, torch.tensor([math.log(2)]))
    torch.testing.assert_close(first.variance, torch.tensor([2 * 2 / 16]))
    # Chain 0 came from chain 1, chain 1 from chain 0.
    torch.testing.assert_close(first.lines, torch.tensor([[0.25, -0.25]]))
    # Now 1 and 3 again: chain 1 is heavy, whose ancestor was light, which makes up for it.
    second = first.after(torch.tensor([[1.0, 1.0, 3.0, 3.0]]).log(), torch.tensor([[2, 3]]))
    torch.testing.assert_close(second.log, torch.tensor([math.log(4)]))
    torch.testing.assert_close(second.variance, torch.tensor([1 / 4 + 1 / 4 - 2 * 1 / 4]))
    torch.testing.assert_close(second.lines, torch.tensor([[0.0, 0.0]]))


def test_an_error_from_few_chains_is_reported_as_rough():
    """In 12 calls with two chains the truth was 2 errors away in root mean square, and 5.5 at most."""
    smc = SMC(OHMC(langevin), 64, 1, disable_progbar=True)
    with pytest.warns(UserWarning, match="estimated from only 4 chains"):
        smc.run()


@pytest.mark.long
def test_the_error_of_a_single_run_is_what_runs_differ():
    x, y = torch.randn(30, 4), torch.randn(30)
    smc = SMC(OHMC(linear), 256, 64, disable_progbar=True)
    smc.run(x, y)
    # Both are variances: that of 64 runs is known up to a relative √(2/63), 4 of which are 0.71.
    ratio = float(smc.result.variances.mean() / smc.log_evidences.var())
    assert 1 / 1.71 < ratio < 1 / 0.29
