"""Sites that come and go with values are refused, whatever the seed, and at whichever call they do."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.density import BatchedPotential, target_from_model
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, MSD, OHMC, SGLD, SMC

SEEDS = range(4)
CHAINS = 16
"""All of them begin on one side of zero, where the sites change, with probability 3e-5."""
NEEDS = "samplers need the same "


def value(x):
    return torch.tensor(x)


def coming():
    """A branch that no tracer can take."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        pyro.sample("z", dist.Normal(x, 1.0))


def hidden():
    """A branch that no tracer sees."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x.tolist() > 0:
        pyro.sample("z", dist.Normal(x, 1.0))


def growing():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("z", dist.Normal(torch.zeros(3 if x.tolist() > 0 else 1), 1.0).to_event(1))


def plated():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 3 if x.tolist() > 0 else 2):
        pyro.sample("z", dist.Normal(0.0, 1.0))


def summed_out():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x.tolist() > 0:
        z = pyro.sample("z", dist.Bernoulli(0.3))
        pyro.sample("y", dist.Normal(x + z, 1.0), obs=value(1.0))


def observed_next_to_a_sum():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    k = pyro.sample("k", dist.Bernoulli(0.3))
    if x.tolist() > 0:
        pyro.sample("z", dist.Normal(x + k, 1.0), obs=value(1.0))


@pytest.mark.filterwarnings("ignore:The model cannot be")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("model", [coming, hidden, growing, plated, summed_out, observed_next_to_a_sum])
def test_they_are_refused_by_name(model, seed):
    pyro.set_rng_seed(seed)
    with pytest.raises(ValueError, match=f"Site 'z' (has shape|exists only in some runs).*{NEEDS}"):
        MCMC(OHMC(model), 20, 20, num_chains=CHAINS, disable_progbar=True).run()


@pytest.mark.parametrize("kernel", [lambda m: SGLD(m, step_size=0.1), lambda m: MSD(m, step_size=0.1)])
@pytest.mark.parametrize("seed", SEEDS)
def test_by_other_kernels(kernel, seed):
    pyro.set_rng_seed(seed)
    with pytest.raises(ValueError, match=f"Site 'z' exists only in some runs.*{NEEDS}"):
        MCMC(kernel(hidden), 20, 20, num_chains=CHAINS, disable_progbar=True).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_by_particles(seed):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(x, 1.0), obs=value(0.0))
        if x.tolist() > 0:
            pyro.sample("z", dist.Normal(x, 1.0))

    pyro.set_rng_seed(seed)
    with pytest.raises(ValueError, match=f"Site 'z' exists only in some runs.*{NEEDS}"):
        SMC(OHMC(model), 64, disable_progbar=True).run()


def turned(sign):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if sign * x.tolist() > 0:
            pyro.sample("z", dist.Normal(x, 1.0))

    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_the_density_at_one_point_in_both_directions(sign):
    """A site that is present first and missing later, and the reverse."""
    for seed in SEEDS:
        pyro.set_rng_seed(seed)
        try:
            target = target_from_model(turned(sign))
        except ValueError as error:
            assert "Site 'z' exists only" in str(error)  # noqa: PT017
            continue
        has = "z" in target.transforms
        sites = {"x": value(-0.5 if has == (sign > 0) else 0.5), **({"z": value(0.1)} if has else {})}
        with pytest.raises(ValueError, match="Site 'z' exists only in some runs"):
            target.potential_fn(sites)
        assert target.potential_fn({**sites, "x": -sites["x"]}).isfinite()


def far():
    """Drawn to 30 from 0, and another model from 20 on."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("pull", 30 * x)
    if x.tolist() > 20:
        pyro.sample("z", dist.Normal(x, 1.0))


def test_a_trace_that_has_frozen_them_is_found_out_where_chains_come():
    run = OHMC(far).prepare(2, 10, {"x": torch.tensor([0.0, 1.0])})
    assert run.problem.batched.graph.backend == "traced"
    with pytest.raises(ValueError, match="Site 'z' exists only in some runs") as raised:
        run.move_to({"x": torch.tensor([0.0, 25.0])}) or run.code.compare_density(2)
    assert "\n" not in str(raised.value)


def test_draws_before_are_kept():
    kernel = OHMC(far, step_size=0.1, num_steps=1, adapt_step_size=False, adapt_mass_matrix=False)
    mcmc = MCMC(kernel, 600, 0, num_chains=2, initial_params={"x": torch.zeros(2)}, disable_progbar=True)
    with pytest.raises(ValueError, match="Site 'z' exists only in some runs") as raised:
        mcmc.run()
    assert any("MCMC kept" in note for note in raised.value.__notes__)
    assert len(mcmc.get_samples()["x"])


# ---- what may differ ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The model cannot be")
def test_observed_sites_may_come_and_go():
    """A branch in the likelihood is a density like another."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            pyro.sample("y", dist.Normal(x, 1.0), obs=value(1.0))
            pyro.factor("more", x)

    potential = target_from_model(model).potential_fn
    normal = dist.Normal(0.0, 1.0)
    below, above = value(-0.7), value(0.7)
    torch.testing.assert_close(potential({"x": below}), -normal.log_prob(below))
    expected = -normal.log_prob(above) - dist.Normal(above, 1.0).log_prob(value(1.0)) - above
    torch.testing.assert_close(potential({"x": above}), expected)


def test_plates_minibatches_manifolds_and_sums():
    data = torch.randn(12)

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("components", 2):
            means = pyro.sample("means", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 12):
            k = pyro.sample("k", dist.Categorical(weights))
            pyro.sample("y", dist.Normal(means[k] + U[0, 0], 1.0), obs=data)
        pyro.deterministic("sum", means.sum())

    target = target_from_model(model)
    example = {name: torch.stack([x, x + 0.0]) for name, x in target.draw().items()}
    assert BatchedPotential(target.potential_fn, example, target.manifolds).graph.backend == "traced"

    def subsampled():
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 12, subsample_size=5) as rows:
            pyro.sample("y", dist.Normal(mean, 1.0), obs=data[rows])

    MCMC(SGLD(subsampled, step_size=1e-2), 10, 5, num_chains=2, disable_progbar=True).run()
