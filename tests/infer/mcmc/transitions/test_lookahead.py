"""Iterations made together in one call are those that are made one by one, wherever one looks in between."""

import pyro
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.infer.mcmc.transitions import Executable
from tests.infer.mcmc.compilers import make_native_code_at_once, native_code
from tests.infer.mcmc.test_conformance import contents, same

pytestmark = native_code


def concentrated():
    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("density", 4 * U[0, 0] + 2 * U[1, 1])


@pytest.fixture(autouse=True)
def native_at_once(monkeypatch):
    make_native_code_at_once(monkeypatch)


def one_by_one(monkeypatch):
    monkeypatch.setattr(Executable, "iterations_per_call", lambda self, settings: 1)


def sampled(kernel=OHMC, draws=150, **options):
    pyro.set_rng_seed(0)
    mcmc = MCMC(kernel(concentrated), draws, 30, num_chains=3, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def test_thinned_draws_and_statistics_are_the_same(monkeypatch):
    """`test_conformance.py` has those of all kernels without thinning."""
    together = contents(sampled(draws=160, thinning=4))
    one_by_one(monkeypatch)
    assert same(together, contents(sampled(draws=160, thinning=4)))


@pytest.mark.parametrize("thinning", [1, 3])
def test_iterations_that_someone_looks_at_one_by_one_are_the_same(thinning):
    """With a consumer of its own, a run passes on each iteration; without, several at once."""
    goals = {"until": {"ess": 50, "max_samples": 1_000}, "thinning": thinning}
    together, seen = sampled(draws=None, **goals), []
    each = sampled(draws=None, consumers=[lambda iteration: seen.append(iteration.draw)], **goals)
    assert same(contents(together), contents(each))
    assert max(seen) + 1 == together.get_samples(group_by_chain=True)["U"].shape[1] > 40
    assert torch.allclose(together.kernel.run.mean_acceptance, each.kernel.run.mean_acceptance)
    assert together.kernel.run.divergences == each.kernel.run.divergences


def prepared():
    pyro.set_rng_seed(0)
    run = OHMC(concentrated).prepare(3, 5, None)
    run.policy.planned = 200
    return run


def test_a_run_that_is_saved_in_between_continues_the_same(monkeypatch):
    expected = prepared()
    for _ in range(5 + 100):
        expected.advance()
    run, saved = prepared(), []
    for iteration in range(5 + 40):
        run.advance()
        if iteration % 14 == 0:
            saved.append((iteration, run.state_dict()))
    assert not torch.equal(saved[-1][1]["random"], saved[-2][1]["random"])
    for iteration, state in saved:
        again = prepared()
        again.load_state_dict(state)
        for _ in range(5 + 100 - iteration - 1):
            again.advance()
        assert torch.equal(again.sites["U"], expected.sites["U"])
    for _ in range(60):  # looking did not change the run that was looked at
        run.advance()
    assert torch.equal(run.sites["U"], expected.sites["U"])


def test_chains_that_are_put_elsewhere_continue_from_there():
    run = prepared()
    for _ in range(5 + 10):
        run.advance()
    assert run._lookahead
    run.move_to({"U": torch.eye(3, 2).expand(3, 3, 2)})
    assert not run._lookahead
    kept = run.sites["U"].clone()
    statistics = (run.advance(), run.statistics)[1]
    assert torch.equal(kept, torch.eye(3, 2).expand(3, 3, 2))
    stayed = (run.sites["U"] - kept).abs().flatten(1).amax(1) == 0
    assert torch.equal(stayed, ~statistics["accepted"])


def test_nothing_is_made_beyond_the_last_iteration():
    run = prepared()
    for _ in range(200):
        run.advance()
    assert not run._lookahead
    assert run.iteration == 200


def test_an_interrupted_run_that_is_continued_has_the_same_draws():
    expected = sampled().get_samples(group_by_chain=True)["U"]
    reported = []

    def interrupt(kernel, samples, stage, index):
        reported.append(stage)
        if reported.count("Sample") == 41:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="Interrupted"):
        mcmc = sampled(hook_fn=interrupt)
    made = len(mcmc.get_samples(group_by_chain=True)["U"][0])
    mcmc.continue_run(150 - made)
    assert torch.equal(mcmc.get_samples(group_by_chain=True)["U"], expected)
