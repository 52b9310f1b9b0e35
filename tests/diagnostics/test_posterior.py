"""A posterior is a value: draws of any origin, joined, aligned and exported, with the same numbers as the run's own."""

import pickle
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS
from pyro.infer.autoguide import AutoNormal

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Notes, Posterior, diagnose, modes, open_posterior, summarise, to_inferencedata
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC, SMC
from pyro_manifold.manifolds import Stiefel

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
    theirs = pyro.infer.MCMC(NUTS(axes, max_tree_depth=3), num_samples=20, warmup_steps=15, disable_progbar=True)
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
    with pytest.raises(ValueError, match=r"has the sites \['U'\], which the model of program= does not have"):
        open_posterior(tmp_path, Program(lambda: pyro.sample("V", dist.Normal(0.0, 1.0))))


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


def in_groups(y):
    """A site in a plate, for whose sake Pyro gives the draws of other sites a dimension of size 1."""
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    pyro.deterministic("twice", 2 * centre)
    with pyro.plate("groups", len(y)):
        effects = pyro.sample("effects", dist.LogNormal(centre, 1.0))
        pyro.sample("y", dist.Normal(effects, 1.0), obs=y)


def test_draws_of_a_guide_have_the_shapes_of_the_model():
    program = Program(in_groups, (torch.ones(5),))
    guide = AutoNormal(in_groups)
    guide(torch.ones(5))
    posterior = Posterior.of_guide(guide, program, 30)
    assert {name: tuple(x.shape) for name, x in posterior.draws.items()} == {"centre": (1, 30), "effects": (1, 30, 5)}
    found = to_inferencedata(posterior, log_likelihood=False).posterior
    np.testing.assert_allclose(found["twice"], 2 * posterior.draws["centre"])

    def outside(y):
        pyro.sample("centre", dist.Normal(0.0, 1.0))
        pyro.sample("effects", dist.Normal(-5.0, 1.0).expand([5]).to_event(1))

    with pytest.raises(ValueError, match="draws of 'effects' are outside of its support"):
        Posterior.of_guide(outside, program, 30)

    def single(y):
        pyro.sample("centre", dist.Normal(0.0, 1.0))
        pyro.sample("effects", dist.LogNormal(0.0, 1.0))

    with pytest.raises(ValueError, match=r"'effects' has shape \(\) in the guide, expected \(5,\)"):
        Posterior.of_guide(single, program, 30)


def test_a_second_run_that_fails_leaves_draws_and_data_of_the_first():
    def normal(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(m, 1.0).expand([len(y)]).to_event(1), obs=y)

    first, broken = torch.ones(3), torch.full((3,), torch.nan)
    mcmc = MCMC(OHMC(normal), 20, 20, disable_progbar=True)
    mcmc.run(first)
    draws = mcmc.get_samples()["m"]
    with pytest.raises(ValueError, match="NaN"):
        mcmc.run(broken)
    assert torch.equal(mcmc.posterior.program.args[0], first)
    assert torch.equal(mcmc.posterior.draws["m"][0], draws)
    assert mcmc.posterior.log_density.shape == (1, 20)


def test_joined_particles_are_no_more_precise_than_twice_as_many():
    particles = Posterior({"x": torch.randn(2, 64)}, unit="runs", notes=Notes(chain_length=16, relative_variance=0.04))
    joined = Posterior.concat([particles, particles])
    assert (joined.notes.chain_length, joined.notes.relative_variance) == (16, 0.02)


def test_sites_with_the_names_of_entries_are_kept():
    x = torch.randn(3, 40)
    found = diagnose(Posterior({"log_density": x + 9 * torch.arange(3.0)[:, None], "modes": x}, {"lp": x}))
    assert list(found["disagreeing_chains"]) == ["log_density"]
    assert "r_hat" in found["modes_site"]
    assert len(repr(found)) < 300


def test_draws_that_are_not_finite_are_named_without_a_model():
    x = torch.randn(3, 40)
    x[0, 5] = torch.nan
    assert summarise({"x": x}).startswith("Draws of `x` (1 of 120) are not finite")


def line():
    pyro.factor("even", -pyro.sample("U", StiefelUniform(3, 1))[0].square().sum())


def test_draws_in_float32_are_aligned_by_a_model_in_float64():
    """As those of programs that compute in float32."""
    draws = Stiefel().random_point(4, 25, 3, 1).float()
    aligned = Posterior.of({"U": draws}, Program(line)).aligned().draws["U"]
    assert aligned.dtype == torch.float64
    assert ((aligned - draws).abs() < 1e-6).logical_or((aligned + draws).abs() < 1e-6).all()
    assert (aligned.sum((0, 1)).norm() > draws.sum((0, 1)).norm()).all()


def test_chains_that_disagree_are_named_without_a_model():
    x = torch.randn(4, 100) + 10 * torch.eye(4)[0].unsqueeze(1)
    assert summarise({"x": x}).startswith("Chains disagree, R-hat of x")


def test_dimensions_in_another_order_are_noticed():
    with pytest.warns(UserWarning, match="more chains .20. than draws .2."):
        Posterior.of({"x": np.ones((20, 2))})


@pytest.mark.filterwarnings("error")
def test_many_short_chains_of_tensors_are_usual():
    assert Posterior.of({"x": torch.ones(20, 2)}).chains == 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Posterior.of(3), "int has no draws, expected an MCMC or SMC that has run"),
        (lambda: Posterior.of({"x": torch.ones(5)}), "for one chain, value"),
        (lambda: Posterior.of({"x": torch.ones(2, 5), "y": torch.ones(2, 6)}), "the same number of chains and draws"),
        (lambda: Posterior.of(MCMC(OHMC(axes), 2)), "there are no draws yet"),
        (lambda: Posterior.concat([]), "at least one Posterior"),
        (lambda: Posterior.concat([{"x": torch.ones(1, 2)}]), "at least one Posterior"),
        (lambda: Posterior({"x": torch.ones(2, 5)}, {"lp": torch.ones(2, 4)}), "the same number of chains and draws"),
        (lambda: Posterior({"x": np.ones((2, 5))}), r"\['x'\] are no tensors: Posterior.of"),
        (lambda: Posterior({"x": torch.ones(2, 5)}, program=axes), "program is a function, expected a Program"),
        (lambda: Posterior.of({"x": [["a", "b"]]}), "'x' is no array of numbers"),
        (lambda: Posterior.of_guide(axes, axes), "expected a guide and a Program"),
        (lambda: Posterior.of_guide(axes, Program(axes), 0), "length=0, expected a positive integer"),
        (
            lambda: Posterior.concat([Posterior({"x": torch.ones(1, 2)}, program=Program(m)) for m in (axes, int)]),
            "different models or data",
        ),
        (
            lambda: Posterior.concat([Posterior({"x": torch.ones(2, 2)}, unit=unit) for unit in ("chains", "runs")]),
            "particles= of modes",
        ),
        (lambda: Posterior.concat([Posterior({"x": torch.ones(1, 2)}), Posterior({})]), "expected the same for all"),
        (
            lambda: Posterior.concat([Posterior({"x": torch.ones(1, 2, k)}) for k in (1, 2)]),
            r"'x' has the shapes \[\(1,\), \(2,\)\]",
        ),
        (lambda: Posterior({"x": torch.ones(1, 2)}).aligned(), "since there is no model: pass program=Program"),
        (lambda: Posterior.of({"x": torch.ones(2, 5)}, Program(line)), r"no draws of \['U'\], which the model samples"),
        (
            lambda: Posterior.of({"U": torch.ones(2, 5, 1, 3)}, Program(line)),
            r"'U' have shape \(1, 3\), and values of the model \(3, 1\)",
        ),
        (
            lambda: Posterior({"U": torch.ones(2, 5, 3, 1)}, program=Program(line)).aligned(),
            "are not known, since draws of 'U' are off the Stiefel manifold by",
        ),
        (lambda: Posterior.of(Posterior({}), Program(line)), "program is for draws by name"),
    ],
)
def test_bad_input_is_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
