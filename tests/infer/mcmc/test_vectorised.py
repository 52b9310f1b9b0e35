"""MCMC with all chains in one process."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN, NoisyMatrix
from pyro_manifold import constraints
from pyro_manifold.density import BatchedPotential
from pyro_manifold.diagnostics import NotTraced
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC, OHMC
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.compilers import compiled_code
from tests.infer.models import concentrated, factor_model


def run(kernel, *args, num_samples=50, warmup_steps=50, **options):
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


@compiled_code
@pytest.mark.long
def test_distribution_of_compiled_steps_of_a_joint_model():
    mcmc = run(OHMC(NoisyMatrix.model(), jit_compile=True), num_chains=32, num_samples=300, warmup_steps=300)
    for name, draws in NoisyMatrix.statistics(mcmc.get_samples(group_by_chain=True)).items():
        assert_mean(draws, *NoisyMatrix.expectations()[name])


def test_shapes_are_those_of_pyro(capsys):
    seen = []
    mcmc = run(
        OHMC(factor_model, step_size=0.05, num_steps=3, adapt_step_size=False),
        torch.randn(20, 4),
        num_samples=10,
        warmup_steps=10,
        num_chains=3,
        hook_fn=lambda kernel, params, stage, i: seen.append((stage, i, params["U"].shape)),
    )
    grouped = mcmc.get_samples(group_by_chain=True)
    assert {name: value.shape for name, value in grouped.items()} == {
        "U": (3, 10, 4, 2),
        "noise": (3, 10),
        "scales": (3, 10, 2),
        "weights": (3, 10, 3),
    }
    assert mcmc.get_samples()["U"].shape == (30, 4, 2)
    assert mcmc.get_samples(num_samples=7)["U"].shape == (7, 4, 2)
    assert constraints.stiefel.check(grouped["U"]).all()
    assert (grouped["noise"] > 0).all()
    assert not torch.allclose(grouped["U"][0], grouped["U"][1])
    assert seen[0] == ("Warmup", 0, (3, 4, 2))
    assert seen[-1] == ("Sample", 9, (3, 4, 2))
    mcmc.summary()
    assert "Number of divergences" in capsys.readouterr().out
    diagnostics = mcmc.diagnostics()
    assert set(diagnostics["acceptance_rate"]) == {"chain 0", "chain 1", "chain 2"}


def test_only_the_sites_asked_for_are_saved():
    def model():
        concentrated()
        pyro.sample("noise", dist.HalfNormal(1.0))

    mcmc = run(OHMC(model), num_samples=5, warmup_steps=5, num_chains=2, save_params=["noise"])
    assert set(mcmc.get_samples()) == {"noise"}


@pytest.mark.long
def test_four_thousand_chains():
    mcmc = run(OHMC(concentrated), num_chains=4096, num_samples=3, warmup_steps=20)
    assert mcmc.get_samples(group_by_chain=True)["U"].shape == (4096, 3, 4, 2)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=[pytest.mark.long, compiled_code])])
def test_a_second_run_uses_its_own_data(jit_compile):
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 100.0))
        pyro.sample("U", StiefelUniform(3, 1))
        pyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    mcmc = MCMC(OHMC(model, jit_compile=jit_compile), 40, 40, num_chains=4, disable_progbar=True)
    for value in (-5.0, 5.0):
        mcmc.run(torch.tensor(value))
        assert abs(float(mcmc.get_samples()["mean"].mean()) - value) < 0.2  # the posterior's scale is half of that


def test_an_interrupt_keeps_the_draws():
    def interrupt(kernel, params, stage, i):
        if (stage, i) == ("Sample", 9):
            raise KeyboardInterrupt

    mcmc = MCMC(OHMC(concentrated), 50, 20, num_chains=3, hook_fn=interrupt, disable_progbar=True)
    with pytest.warns(UserWarning, match="kept 10 of 50 draws"):
        mcmc.run()
    assert mcmc.get_samples(group_by_chain=True)["U"].shape == (3, 10, 4, 2)
    assert len(mcmc._diagnostics) == 3


def test_starts_of_every_chain():
    starts = Stiefel().random_point(3, 4, 2)
    kernel = OHMC(concentrated, step_size=1e-9, num_steps=1, adapt_step_size=False)
    mcmc = run(kernel, num_chains=3, num_samples=1, warmup_steps=0, initial_params={"U": starts})
    assert torch.allclose(mcmc.get_samples(group_by_chain=True)["U"][:, 0], starts, atol=1e-7)
    with pytest.raises(ValueError, match=r"initial_params\['U'\] has shape \(3, 4, 2\).*leading dimension of 5"):
        run(OHMC(concentrated), num_chains=5, initial_params={"U": starts})


def test_chains_one_after_the_other():
    """`test_kernel.py` has those in several processes."""
    mcmc = run(OHMC(concentrated), num_chains=2, num_samples=10, warmup_steps=10, chain_method="sequential")
    assert mcmc.get_samples(group_by_chain=True)["U"].shape == (2, 10, 4, 2)
    assert len(mcmc.diagnostics()["divergences"]) == 2


def test_kernels_of_pyro_run_as_in_pyro():
    mcmc = run(NUTS(concentrated), num_samples=10, warmup_steps=10)
    assert mcmc.get_samples()["U"].shape == (10, 4, 2)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="chain_method='threads', expected 'vectorized'"):
        MCMC(OHMC(concentrated), 10, chain_method="threads")
    with pytest.raises(ValueError, match="num_chains=0"):
        MCMC(OHMC(concentrated), 10, num_chains=0)


def positions(chains):
    return {"X": Stiefel().random_point(chains, 3, 1), "s": torch.randn(chains)}


def smooth(sites):
    return sites["X"].square().sum() * sites["s"].sin()


def opaque(sites):
    """Leaves the graph that a tracer sees."""
    return sites["X"].sum() * float(sites["s"].detach())


def branching(sites):
    return sites["X"].sum() * (1.0 if sites["s"] > 0 else 2.0)


def test_a_density_that_can_be_traced_is_traced():
    potential = BatchedPotential(smooth, positions(5), {"X": Stiefel()})
    assert potential.graph.backend == "traced"
    at = positions(5)
    energy, gradient = potential(at)
    assert torch.allclose(energy, torch.stack([smooth({k: v[i] for k, v in at.items()}) for i in range(5)]))
    assert torch.allclose(gradient["s"], at["s"].cos())


@pytest.mark.parametrize("density", [opaque, branching])
def test_a_density_that_cannot_be_traced_falls_back_with_a_warning(density):
    with (
        pytest.warns(NotTraced, match=r"cannot be traced .*torch\.vmap") as first,
        pytest.warns(NotTraced, match=r"cannot be vmapped .*loop over chains"),
    ):
        potential = BatchedPotential(density, positions(5), {"X": Stiefel()})
    assert first[0].message.backend == "traced"
    assert potential.graph.backend == "loop"
    at = positions(5)
    expected = torch.stack([density({k: v[i] for k, v in at.items()}) for i in range(5)])
    assert torch.allclose(potential(at)[0], expected)


def test_a_failed_factorisation_concerns_its_chain_alone():
    def density(sites):
        matrix = torch.eye(2) * sites["s"]
        return torch.linalg.cholesky(matrix).sum() + 0 * sites["X"].sum()

    potential = BatchedPotential(density, {**positions(3), "s": torch.ones(3)}, {"X": Stiefel()})
    energy, _ = potential({**positions(3), "s": torch.tensor([1.0, -1.0, 4.0])})
    assert torch.allclose(energy[[0, 2]], torch.tensor([2.0, 4.0]))
    assert energy[1].isnan()


def test_without_a_compiler_sampling_continues(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(torch, "compile", fail)
    target = LANGEVIN["sphere"]
    with pytest.warns(UserWarning, match=r"jit_compile=True had no effect.*no C\+\+ compiler"):
        mcmc = run(OHMC(target.model(), jit_compile=True), num_chains=16, num_samples=200)
    assert_mean(target.statistic(mcmc.get_samples(group_by_chain=True)["X"]), *target.expectation())
