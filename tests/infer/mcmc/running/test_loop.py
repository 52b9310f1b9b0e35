"""The sampling loop: thinning, consumers of draws, interrupts, and kernels of another kind."""

import pyro
import pyro.infer
import pytest
import torch

from problems.monte_carlo import STANDARD_ERRORS, deviation
from problems.targets import LANGEVIN
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.running import Buffers, sample
from tests.infer.mcmc.random_walk import RandomWalk
from tests.infer.models import concentrated


def run(kernel, num_samples=60, warmup_steps=20, num_chains=3, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


class RunningMean:
    """The mean of each site over chains and draws, without keeping a draw."""

    def __init__(self):
        self.count, self.mean = 0, {}

    def __call__(self, iteration):
        if not iteration.kept:
            return
        self.count += 1
        for name, value in iteration.sites.items():
            before = self.mean.get(name, torch.zeros_like(value[0]))
            self.mean[name] = before + (value.mean(0) - before) / self.count


def test_a_running_mean_fits_in_without_touching_the_loop():
    mean, seen = RunningMean(), []
    draws = run(OHMC(concentrated), consumers=[mean, seen.append]).get_samples()["U"]
    assert torch.allclose(mean.mean["U"], draws.mean(0))
    assert [each.stage for each in seen] == ["Warmup"] * 20 + ["Sample"] * 60
    assert [each.index for each in seen] == [*range(20), *range(60)]
    assert set(seen[0].statistics) >= {"lp", "diverging", "step_size"}


def test_draws_need_not_be_kept():
    mean = RunningMean()
    mcmc = run(OHMC(concentrated), consumers=[mean], save_params=[])
    assert mcmc.get_samples() == {}
    assert mean.count == 60
    assert mcmc.get_extra_fields(group_by_chain=True)["lp"].shape == (3, 60)


def test_values_of_an_iteration_are_as_the_model_has_them():
    def model():
        pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("scale", pyro.distributions.LogNormal(0.0, 1.0))

    seen = []
    draws = run(OHMC(model, num_steps=4), consumers=[seen.append]).get_samples(group_by_chain=True)
    kept = [iteration.values for iteration in seen if iteration.kept]
    for name in ("U", "scale"):
        torch.testing.assert_close(torch.stack([values[name] for values in kept], 1), draws[name], rtol=1e-12, atol=0)
    assert seen[0].values is seen[0].values
    assert not torch.equal(seen[0].values["scale"], seen[0].sites["scale"])


def test_thinning_keeps_the_end_of_each_so_many_iterations():
    found = {}
    for thinning in (1, 4):
        pyro.set_rng_seed(0)
        mcmc = run(OHMC(concentrated), num_samples=62, thinning=thinning)
        found[thinning] = (mcmc.get_samples(group_by_chain=True)["U"], mcmc.get_extra_fields(group_by_chain=True))
        assert mcmc.to_inferencedata(log_likelihood=False).posterior["U"].shape[1] == 62 // thinning
    assert torch.equal(found[4][0], found[1][0][:, 3::4])
    assert torch.equal(found[4][1]["lp"], found[1][1]["lp"][:, 3::4])


def cliff():
    x = pyro.sample("x", pyro.distributions.Normal(0.0, 1.0))
    pyro.factor("edge", torch.where(x > 0.5, torch.nan, 0.0))


def test_a_thinned_draw_has_diverged_if_any_of_its_iterations_has():
    found = {}
    for thinning in (1, 5):
        pyro.set_rng_seed(0)
        kernel = OHMC(cliff, step_size=0.5, num_steps=5, adapt_step_size=False, init_strategy=at_zero)
        mcmc = run(kernel, num_samples=100, warmup_steps=0, thinning=thinning)
        found[thinning] = mcmc.get_extra_fields(group_by_chain=True)["diverging"]
        assert int(kernel.run.divergences) == int(found[1].sum())
    assert torch.equal(found[5], found[1].reshape(3, 20, 5).any(-1))
    assert found[5].sum() > found[1][:, 4::5].sum()


def at_zero(site):
    return torch.zeros(site["fn"].shape())


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="thinning=0, expected a positive integer"):
        MCMC(OHMC(concentrated), 10, thinning=0)
    with pytest.raises(ValueError, match="thinning=11 leaves no draw, expected at most num_samples=10"):
        MCMC(OHMC(concentrated), 10, thinning=11)
    with pytest.raises(ValueError, match="expected a list of functions of an Iteration"):
        MCMC(OHMC(concentrated), 10, consumers=[3])
    with pytest.raises(ValueError, match="hook_fn=3, expected a function"):
        MCMC(OHMC(concentrated), 10, hook_fn=3)
    with pytest.raises(ValueError, match="summary: there are no draws yet"):
        MCMC(OHMC(concentrated), 10).summary()
    with pytest.raises(ValueError, match="thinning and consumers need chain_method='vectorized'"):
        MCMC(pyro.infer.NUTS(concentrated), 10, thinning=2)


def test_a_resumed_run_fills_its_buffers_from_the_front():
    run, other = (OHMC(concentrated).prepare(2, 5, None) for _ in range(2))
    sample(run, 5, 1, [Buffers(5, ["U"], run.target)])
    other.load_state_dict(run.state_dict())
    buffers = Buffers(10, ["U"], other.target)
    assert sample(other, 10, 1, [buffers]).draws == 5
    draws = buffers.values(5)["U"]
    assert constraints.stiefel.check(draws).all()
    assert torch.equal(draws[:, -1], other.sites["U"])


def hidden_branch():
    x = pyro.sample("x", pyro.distributions.Normal(torch.zeros(2), 30.0).to_event(1))
    if x.detach().numpy()[0] > 30:
        pyro.factor("step", torch.tensor(3.0))


def test_a_wrong_trace_is_noticed_at_the_end_of_a_short_run():
    """Far chains, seen by no comparison in between: the last looks at up to 16."""
    start = {"x": torch.tensor([[0.0, 0.0]] * 7 + [[31.0, 0.0]])}
    kernel = OHMC(hidden_branch, step_size=1e-3, num_steps=1, adapt_step_size=False)
    with pytest.warns(UserWarning, match=r"iteration 30 \(in sampling, draws so far may be wrong\)"):
        run(kernel, num_samples=30, warmup_steps=0, num_chains=8, initial_params=start)


def test_too_few_draws_for_a_summary_is_a_sentence():
    mcmc = run(OHMC(concentrated), num_samples=3)
    for method in (mcmc.summary, mcmc.diagnostics):
        with pytest.raises(ValueError, match=r"needs at least 4 draws of each chain .* and there are 3"):
            method()


# ---- a kernel of another kind, whose distribution is in `test_conformance.py` -------------------------------------


@pytest.mark.long
def test_a_kernel_that_accepts_too_much_has_another_distribution():
    class Lopsided(RandomWalk):
        """Accepts by the square root of the ratio."""

        temperature = 2.0

    target = LANGEVIN["V(3,2)"]
    mcmc = run(Lopsided(target.model(), step_size=0.9), 300, 100, num_chains=64)
    draws = target.statistic(mcmc.get_samples(group_by_chain=True)["X"])
    assert abs(deviation(draws, *target.expectation())) > 2 * STANDARD_ERRORS
    assert set(mcmc.get_extra_fields()) >= {"lp", "accepted", "acceptance_rate", "orthogonality_error"}


@pytest.mark.parametrize(
    ("statistic", "words"),
    [(lambda e: e.mean(), r"a tensor of shape \(\)"), (lambda e: 1.0, "as 1.0, expected a tensor")],
)
def test_statistics_of_another_shape_are_named(statistic, words):
    class Odd(RandomWalk):
        def compose(self, problem, warmup_steps):
            parts = super().compose(problem, warmup_steps)
            (walk,) = parts.transitions
            parts.transitions = [lambda state, *rest: (walk(state, *rest)[0], {"mine": statistic(state.energy)})]
            return parts

    with pytest.raises(ValueError, match=f"'mine' {words}|'mine' as {words}"):
        run(Odd(concentrated))


def test_random_walk_under_pyros_mcmc():
    mcmc = pyro.infer.MCMC(RandomWalk(concentrated, step_size=0.5), 20, 10, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["U"].shape == (20, 4, 2)
    assert 0 < mcmc.diagnostics()["acceptance rate"]["chain 0"] <= 1
