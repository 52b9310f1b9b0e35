"""Runs that begin with what an earlier one has found."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, OHMC, Tuning


def mixed():
    U = pyro.sample("U", StiefelUniform(4, 2))
    x = pyro.sample("x", dist.Normal(torch.zeros(2), torch.tensor([1.0, 10.0])).to_event(1))
    pyro.factor("pull", 3 * U[0, 0] + U[1, 1] + 0.1 * x[0])


def run(kernel, num_samples=20, warmup_steps=0, num_chains=4, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


@pytest.mark.parametrize("kernel", [OHMC, pytest.param(GHMC, marks=pytest.mark.long)])
def test_no_warm_up_leaves_what_was_found(kernel):
    first = run(kernel(mixed), warmup_steps=120)
    found = first.kernel.tuning
    assert found.inverse_mass_matrix[("x",)][1] > 10
    last = run(kernel(mixed, tuning=found), initial_params={k: v[:, -1] for k, v in last_draws(first).items()})
    again = last.kernel.tuning
    assert (again.step_size, again.trajectory_length) == (found.step_size, found.trajectory_length)
    for block, value in found.inverse_mass_matrix.items():
        assert torch.equal(again.inverse_mass_matrix[block], value)
    assert (last.get_extra_fields()["step_size"] == found.step_size).all()
    assert last.get_extra_fields()["acceptance_rate"].mean() > 0.5


def last_draws(mcmc):
    return mcmc.get_samples(group_by_chain=True)


def test_step_size_and_masses_stay_without_warm_up_and_adapt_with():
    masses = {"x": torch.tensor([1.0, 100.0])}
    mcmc = run(OHMC(mixed, step_size=0.3, inverse_mass_matrix=masses))
    assert mcmc.kernel.step_size == 0.3
    assert torch.equal(mcmc.kernel.inverse_mass_matrix[("x",)], masses["x"])
    assert run(OHMC(mixed, step_size=0.3)).kernel.step_size != 0.3, "without masses a search is what it was"
    adapted = run(OHMC(mixed, step_size=0.3, inverse_mass_matrix=masses), warmup_steps=60)
    assert adapted.kernel.step_size != 0.3
    assert not torch.equal(adapted.kernel.inverse_mass_matrix[("x",)], masses["x"])


def test_masses_of_columns_are_averaged_where_chains_are_others():
    of_columns = torch.tensor([[1.0, 2.0, 4.0], [0.5, 2.0, 4.0]])
    found = run(OHMC(mixed, step_size=0.1, inverse_mass_matrix={"U": of_columns}), 2, num_chains=2).kernel
    assert torch.equal(found.inverse_mass_matrix[("U",)], of_columns)
    found = run(OHMC(mixed, step_size=0.1, inverse_mass_matrix={"U": of_columns}), 2, num_chains=3).kernel
    expected = torch.tensor([2 / 3, 2.0, 4.0]).expand(3, 3)
    assert torch.allclose(found.inverse_mass_matrix[("U",)], expected)


def test_a_diagonal_serves_a_dense_matrix():
    kernel = OHMC(mixed, full_mass=True, step_size=0.1, inverse_mass_matrix={("x",): torch.tensor([1.0, 4.0])})
    assert torch.equal(run(kernel, 2).kernel.inverse_mass_matrix[("x",)], torch.tensor([1.0, 4.0]).diag())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inverse_mass_matrix": {"y": 1.0}}, r"names \[\('y',\)\], but the blocks"),
        ({"inverse_mass_matrix": {"x": torch.ones(3)}}, r"inverse_mass_matrix\[\('x',\)\] has the shape \(3,\)"),
        ({"inverse_mass_matrix": {"x": torch.eye(2)}}, "has the shape|for each chain"),
        ({"inverse_mass_matrix": {"x": torch.tensor([1.0, -1.0])}}, "not positive and finite"),
        ({"inverse_mass_matrix": {"x": torch.tensor([1.0, torch.nan])}}, "not positive and finite"),
        ({"inverse_mass_matrix": torch.ones(2)}, "expected {block: tensor}"),
        ({"tuning": 3}, "tuning=3, expected mcmc.kernel.tuning of an earlier run"),
        ({"tuning": Tuning(0.1, {}), "step_size": 0.2}, "pass either tuning or these arguments"),
    ],
)
def test_what_does_not_fit_is_a_sentence(options, words):
    with pytest.raises(ValueError, match=words):
        run(OHMC(mixed, **options), 2)
    with pytest.raises(ValueError, match="step_size=-1, expected a positive number"):
        Tuning(-1, {})


def test_another_tuning_is_another_run(tmp_path):
    for mass in (1.0, 2.0):
        kernel = OHMC(mixed, step_size=0.1, inverse_mass_matrix={"x": torch.full((2,), mass)})
        if mass == 1.0:
            run(kernel, 2, store=tmp_path)
        else:
            with pytest.raises(ValueError, match="the kernel's inverse_masses was"):
                run(kernel, 2, store=tmp_path, resume=True)
