"""A posterior is a value: draws of any origin, joined, aligned and exported, with the same numbers as the run's own."""

import pickle
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Posterior, modes, open_posterior, summarise, to_inferencedata
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC

SCATTER = torch.diag(torch.tensor([9.0, 4.0, 1.0], dtype=torch.float64))


def axes(y):
    """Columns that are known up to their signs."""
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.deterministic("first", U[..., 0])
    pyro.factor("columns", (U * (SCATTER @ U) * torch.tensor([3.0, 1.0])).sum((-2, -1)))
    pyro.sample("y", dist.Normal(U[..., 0, 0] ** 2, 0.1), obs=y)


@pytest.fixture(scope="module")
def run():
    torch.set_default_dtype(torch.float64)
    pyro.set_rng_seed(0)
    mcmc = MCMC(OHMC(axes), 50, 50, num_chains=3, disable_progbar=True)
    mcmc.run(torch.tensor(0.9))
    return mcmc


def test_it_has_the_draws_statistics_and_model_of_the_run(run):
    posterior = run.posterior
    assert (posterior.chains, posterior.length, posterior.unit) == (3, 50, "chains")
    torch.testing.assert_close(dict(posterior.draws), run.get_samples(group_by_chain=True))
    torch.testing.assert_close(posterior.log_density, run.get_extra_fields(group_by_chain=True)["lp"])
    assert posterior.program is run.program
    assert run.posterior is posterior, "one value for the same draws"


def test_chains_of_several_runs_are_joined_and_aligned_together(run):
    """Each part has columns of its own signs; joined they have one reference."""
    first, second = run.posterior, Posterior({"U": -run.posterior.draws["U"]}, program=run.program)
    joined = Posterior.concat([first, second])
    assert (joined.chains, joined.length) == (6, 50)
    assert "lp" not in joined.statistics, "the second part has none"
    U = joined.aligned().draws["U"]
    torch.testing.assert_close(U[:3], U[3:], rtol=0, atol=1e-12)
    assert "known only up to the signs" in summarise(joined)


def test_parts_of_different_lengths_keep_their_last_draws():
    x = torch.randn(2, 30)
    joined = Posterior.concat([Posterior({"x": x}), Posterior({"x": x[:, 10:]})])
    assert joined.length == 20
    torch.testing.assert_close(joined.draws["x"], torch.cat([x[:, 10:], x[:, 10:]]))


def test_draws_of_pyros_own_mcmc(run):
    theirs = pyro.infer.MCMC(NUTS(axes), num_samples=30, warmup_steps=30, disable_progbar=True)
    theirs.run(torch.tensor(0.9))
    posterior = Posterior.of(theirs)
    assert [each.kind for each in posterior.symmetries] == ["signs"]
    idata = to_inferencedata(theirs, align=True, log_likelihood=False)
    np.testing.assert_array_equal(idata.posterior["U"], posterior.aligned().draws["U"])
    np.testing.assert_array_equal(idata.posterior["first"], posterior.aligned().draws["U"][..., 0])
    assert Posterior.concat([posterior, run.posterior]).chains == 4


def test_draws_in_a_dictionary_of_arrays():
    rng = np.random.default_rng(0)
    draws = {"x": rng.normal(size=(4, 100)), "y": rng.normal(size=(4, 100, 2))}
    posterior = Posterior.of(draws)
    assert summarise(posterior).split()[:2] == ["mean", "std"]
    idata = to_inferencedata(draws)
    np.testing.assert_array_equal(idata.posterior["y"], draws["y"])
    assert len(modes(draws)) == 1


def test_particles_are_runs():
    smc = SMC(OHMC(axes), num_particles=64, num_runs=2, disable_progbar=True)
    smc.run(torch.tensor(0.9))
    posterior = smc.posterior
    assert (posterior.unit, posterior.chains, posterior.length) == ("runs", 2, 64)
    assert summarise(posterior).splitlines()[-1].startswith("log evidence ")
    assert to_inferencedata(posterior, log_likelihood=False).sample_stats.attrs["log_evidence"] == smc.log_evidence
    with pytest.raises(ValueError, match="particles="):
        modes(smc)


def test_a_copy_has_all_but_the_run(run):
    copy = pickle.loads(pickle.dumps(run))
    torch.testing.assert_close(dict(copy.posterior.draws), dict(run.posterior.draws))
    torch.testing.assert_close(dict(copy.posterior.statistics), dict(run.posterior.statistics))
    assert copy.symmetries() == run.symmetries()
    assert summarise(copy.posterior) == summarise(run.posterior)


def test_a_stored_run_is_opened_without_its_model(tmp_path):
    mcmc = MCMC(OHMC(axes), 20, 20, num_chains=2, store=tmp_path, disable_progbar=True)
    mcmc.run(torch.tensor(0.9))
    posterior = open_posterior(tmp_path)
    torch.testing.assert_close(dict(posterior.draws), dict(mcmc.posterior.draws))
    torch.testing.assert_close(posterior.aligned().draws, mcmc.posterior.aligned().draws)
    assert summarise(posterior) == summarise(replace(mcmc.posterior, program=None, known=mcmc.symmetries()))
    first = to_inferencedata(open_posterior(tmp_path, mcmc.program), log_likelihood=False).posterior["first"]
    np.testing.assert_array_equal(first, mcmc.posterior.draws["U"][..., 0])


def test_draws_of_a_guide_are_a_posterior(run):
    """A guide of Euclidean sites in closed form: its draws have its mean."""

    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))

    def guide():
        pyro.sample("x", dist.Normal(3.0, 0.1))

    posterior = Posterior.of_guide(guide, Program(model), 400)
    assert (posterior.chains, posterior.length) == (1, 400)
    assert abs(float(posterior.draws["x"].mean()) - 3.0) < 4 * 0.1 / 20
    with pytest.raises(ValueError, match=r"the guide has no sites \['x'\]"):
        Posterior.of_guide(lambda: None, Program(model))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Posterior.of(3), "int has no draws, expected an MCMC or SMC that has run"),
        (lambda: Posterior.of({"x": torch.ones(5)}), "for one chain, value"),
        (lambda: Posterior.of({"x": torch.ones(2, 5), "y": torch.ones(2, 6)}), "the same number of chains and draws"),
        (lambda: Posterior.of(MCMC(OHMC(axes), 2)), "there are no draws yet"),
        (lambda: Posterior.concat([]), "expected at least one"),
        (lambda: Posterior.concat([Posterior({"x": torch.ones(1, 2)}), Posterior({})]), "expected the same for all"),
        (
            lambda: Posterior.concat([Posterior({"x": torch.ones(1, 2, k)}) for k in (1, 2)]),
            r"'x' has the shapes \[\(1,\), \(2,\)\]",
        ),
        (lambda: Posterior({"x": torch.ones(1, 2)}).aligned(), "the symmetries of this posterior are not known"),
    ],
)
def test_bad_input_is_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
