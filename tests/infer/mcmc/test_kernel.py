"""The kernel under Pyro's MCMC: sites of all kinds, adaptation, processes, pickling, diagnostics."""

import signal
from contextlib import contextmanager
from functools import cache

import arviz
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value

from problems.monte_carlo import assert_mean
from problems.targets import LANGEVIN
from pyro_manifold import constraints
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.distributions.transforms import HouseholderTransform
from pyro_manifold.infer import GHMC, MCMC, OHMC
from pyro_manifold.manifolds import Stiefel
from tests.infer.models import concentrated, factor_model

converted = pytest.mark.skipif(not hasattr(arviz, "from_pyro"), reason="ArviZ 1 has no converter for Pyro")


def run(kernel, *args, num_samples=50, warmup_steps=50, **options):
    mcmc = MCMC(kernel, num_samples=num_samples, warmup_steps=warmup_steps, disable_progbar=True, **options)
    mcmc.run(*args)
    return mcmc


@cache
def joint_run():
    return run(OHMC(factor_model), torch.randn(30, 4))


def test_joint_model_over_all_kinds_of_support():
    mcmc = joint_run()
    samples = mcmc.get_samples()
    assert constraints.stiefel.check(samples["U"]).all()
    assert (samples["scales"] > 0).all()
    assert torch.allclose(samples["weights"].sum(-1), torch.ones(50))
    assert set(mcmc.kernel.inverse_mass_matrix) == {("U",), ("noise", "scales", "weights")}


def test_summary_and_diagnostics(capsys):
    mcmc = joint_run()
    mcmc.summary()
    printed = capsys.readouterr().out
    assert "U[3,1]" in printed
    assert "divergences" in printed
    diagnostics = mcmc.diagnostics()
    assert diagnostics["U"]["r_hat"].shape == (4, 2)
    assert diagnostics["orthogonality_error"]["chain 0"] < 1e-12
    assert 0 < diagnostics["acceptance_rate"]["chain 0"] <= 1


@converted
def test_arviz_converts_a_run_without_likelihoods():
    """Pyro's Predictive cannot vectorise matrix-valued sites outside a plate, so ArviZ cannot ask for likelihoods."""
    mcmc = joint_run()
    idata = arviz.from_pyro(mcmc, log_likelihood=False)
    assert idata.posterior["U"].shape == (1, 50, 4, 2)
    assert idata.sample_stats["diverging"].shape == (1, 50)
    assert idata.observed_data["y"].shape == (30, 4)


@converted
def test_arviz_with_likelihoods():
    def model(y):
        U = pyro.sample("U", StiefelUniform(3, 2))
        pyro.sample("y", dist.Normal(U, 0.5).to_event(2), obs=y)

    idata = arviz.from_pyro(run(OHMC(model), Stiefel().random_point(3, 2)), log_likelihood=True)
    assert idata.log_likelihood["y"].shape == (1, 50)


def test_batched_sites_in_plates():
    """Three independent sites in a plate have the distribution of one."""
    target = LANGEVIN["V(3,2)"]
    F = torch.as_tensor(target.F)

    def model():
        with pyro.plate("groups", 3):
            X = pyro.sample("X", StiefelUniform(3, 2))
            pyro.factor("langevin", (F * X).sum((-2, -1)))
        Y = pyro.sample("Y", StiefelUniform(3, 2).expand([2]).to_event(1))
        pyro.factor("more", (F * Y).sum())

    mcmc = run(OHMC(model), num_samples=40, warmup_steps=60, num_chains=16)
    samples = mcmc.get_samples(group_by_chain=True)
    assert samples["X"].shape == (16, 40, 3, 3, 2)
    assert samples["Y"].shape == (16, 40, 2, 3, 2)
    for group in range(3):
        assert_mean(target.statistic(samples["X"][:, :, group]), *target.expectation())
    assert_mean(target.statistic(samples["Y"][:, :, 1]), *target.expectation())


def test_without_orthonormal_sites():
    """A normal mean with known variance and a positive rate, whose priors are conjugate."""
    y = 1.5 + torch.randn(20)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
        rate = pyro.sample("rate", dist.Gamma(3.0, 2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)
            pyro.sample("count", dist.Poisson(rate), obs=torch.arange(20.0) % 4)

    precision = 1 / 4 + 20
    truths = {"mean": y.sum() / precision, "rate": (3 + (torch.arange(20.0) % 4).sum()) / (2 + 20)}
    mcmc = run(OHMC(model), y, num_samples=150, warmup_steps=150, num_chains=16)
    samples = mcmc.get_samples(group_by_chain=True)
    for name, truth in truths.items():
        assert_mean(samples[name], truth)
    assert_mean((samples["mean"] - truths["mean"]) ** 2, 1 / precision)


@pytest.mark.parametrize("full_mass", [pytest.param(True, marks=pytest.mark.long), [("a", "b")]])
def test_dense_masses_learn_a_correlated_posterior(full_mass):
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])

    def model():
        pyro.sample("U", StiefelUniform(3, 1))
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        b = pyro.sample("b", dist.Normal(0.9 * a, 0.19**0.5))
        pyro.sample("c", dist.Normal(b, 1.0).expand([2]).to_event(1))

    kernel = OHMC(model, full_mass=full_mass, adapt_centring=False)  # else they move as independent ones
    mcmc = run(kernel, num_samples=150, warmup_steps=300, num_chains=8)
    samples = mcmc.get_samples(group_by_chain=True)
    assert_mean(samples["a"] * samples["b"], 0.9)
    assert_mean(samples["c"][..., 0] ** 2, 2.0)
    if full_mass == [("a", "b")]:
        found = mcmc.kernel.inverse_mass_matrix[("a", "b")]  # of a hundred iterations of eight chains
        assert torch.allclose(found, covariance, atol=0.4)
        assert mcmc.kernel.inverse_mass_matrix[("c",)].shape == (2,)


@pytest.mark.long
def test_a_concentrated_site_does_not_force_small_steps_on_the_rest():
    def model(pull):
        U = pyro.sample("U", StiefelUniform(10, 2))
        pyro.factor("pull", pull * (U[0, 0] + U[1, 1]))
        pyro.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    loose = run(OHMC(model), 1.0, num_samples=10, warmup_steps=400).kernel.step_size
    tight = run(OHMC(model), 1e4, num_samples=10, warmup_steps=400).kernel.step_size
    assert tight > loose / 3, "without its own mass the step would be a hundred times smaller"


def test_discrete_sites_are_summed_out():
    """By quadrature over x, with the weights of both components."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 2):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            pyro.sample("y", dist.Normal(x + 2 * z, 1.0), obs=torch.tensor([0.0, 2.0]))
        pyro.sample("U", StiefelUniform(3, 1))

    grid = torch.linspace(-8, 8, 4001)
    likelihood = torch.zeros_like(grid)
    for y in (0.0, 2.0):
        parts = [p * torch.exp(-0.5 * (y - grid - s) ** 2) for p, s in ((0.7, 0.0), (0.3, 2.0))]
        likelihood += torch.stack(parts).sum(0).log()
    density = torch.softmax(likelihood - 0.5 * grid**2, 0)
    samples = run(OHMC(model), num_samples=100, warmup_steps=100, num_chains=8).get_samples(group_by_chain=True)
    assert set(samples) == {"x", "U"}
    assert_mean(samples["x"], (density * grid).sum())


def langevin_potential(sites):
    F = torch.as_tensor(LANGEVIN["V(3,2)"].F)
    return -(F * sites["X"]).sum() + 0.5 * sites["s"].square().sum()


def test_potential_function_with_manifolds():
    target = LANGEVIN["V(3,2)"]
    start = {"X": torch.eye(3, 2), "s": torch.zeros(2)}
    kernel = OHMC(potential_fn=langevin_potential, manifolds={"X": Stiefel()})
    samples = run(kernel, num_samples=1500, warmup_steps=200, initial_params=start).get_samples(group_by_chain=True)
    assert_mean(target.statistic(samples["X"]), *target.expectation())
    assert_mean(samples["s"][..., 0] ** 2, 1.0)


@contextmanager
def ended_in(seconds):
    """Raise TimeoutError where the block takes longer."""

    def raise_error(*_):
        raise TimeoutError(f"not ended in {seconds} s")

    before = signal.signal(signal.SIGALRM, raise_error)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_several_processes(context, monkeypatch):
    """On a machine that Pyro believes has more cores than two, with which it runs the chains one after the other."""
    monkeypatch.setattr("pyro.infer.mcmc.api.mp.cpu_count", lambda: 8)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(2)
    torch.ones(2**20).exp()  # by both threads, for which a forked process that uses them would wait
    options = {"num_chains": 2, "mp_context": context, "chain_method": "parallel"}
    with ended_in(120):
        mcmc = run(OHMC(concentrated), num_samples=10, warmup_steps=10, **options)
    assert type(mcmc.sampler).__name__ == "_MultiSampler"
    samples = mcmc.get_samples(group_by_chain=True)
    assert samples["U"].shape == (2, 10, 4, 2)
    assert constraints.stiefel.check(samples["U"]).all()
    assert not torch.allclose(samples["U"][0], samples["U"][1])


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.long), torch.float64])
def test_dtype_follows_the_model(dtype):
    torch.set_default_dtype(torch.float32)
    F = torch.as_tensor(LANGEVIN["V(3,2)"].F, dtype=dtype)

    def model():
        X = pyro.sample("X", StiefelUniform(3, 2, dtype=dtype))
        pyro.factor("langevin", (F * X).sum())

    mcmc = run(OHMC(model), num_samples=100, warmup_steps=100, num_chains=8)
    samples = mcmc.get_samples(group_by_chain=True)["X"]
    assert samples.dtype == dtype
    assert mcmc.diagnostics()["orthogonality_error"]["chain 0"] < (1e-5 if dtype == torch.float32 else 1e-13)
    assert_mean(LANGEVIN["V(3,2)"].statistic(samples), *LANGEVIN["V(3,2)"].expectation())


def branching(sites):
    return -5 * sites["X"][0, 0] if sites["X"][0, 0] > 0 else -10 * sites["X"][0, 0]


def test_compiling_a_branch_on_values_falls_back_with_a_warning():
    kernel = OHMC(potential_fn=branching, manifolds={"X": Stiefel()}, jit_compile=True)
    with pytest.warns(UserWarning, match="without compilation"):
        run(kernel, num_samples=5, warmup_steps=5, initial_params={"X": torch.eye(3, 1)})


def test_transforms_may_name_some_sites_and_move_a_matrix_into_a_chart():
    kernel = OHMC(concentrated, transforms={"U": HouseholderTransform(4, 2).inv})
    samples = run(kernel).get_samples()["U"]
    assert samples.shape == (50, 4, 2)
    assert constraints.stiefel.check(samples).all()
    assert set(kernel.transforms) == {"U"}


def test_num_steps_is_kept_and_lengths_are_jittered_otherwise():
    def lengths(kernel, iterations=5):
        run = kernel.prepare(1, 0, None)
        counts = []
        for _ in range(iterations):
            run.advance()
            counts.append(int(run.statistics["n_steps"]))
        return counts

    assert set(lengths(OHMC(concentrated, step_size=0.1, num_steps=7, adapt_step_size=False))) == {7}
    jittered = lengths(OHMC(concentrated, step_size=0.1, trajectory_length=2.0, adapt_step_size=False), 40)
    assert min(jittered) == 14
    assert max(jittered) == 25
    fixed = OHMC(concentrated, step_size=0.1, trajectory_length=2.0, adapt_step_size=False, trajectory_jitter=0)
    assert set(lengths(fixed)) == {20}


def test_flat_target_keeps_a_sensible_step():
    """Every step size is accepted on the uniform distribution; it must not run away, nor the draws stop moving."""

    def model():
        pyro.sample("U", StiefelUniform(5, 2))

    mcmc = run(OHMC(model), num_samples=1000, warmup_steps=300)
    draws = mcmc.get_samples(group_by_chain=True)["U"]
    assert mcmc.kernel.step_size <= mcmc.kernel.trajectory_length
    assert_mean(draws[..., 0, 0], 0.0)
    assert_mean(draws[..., 0, 0] ** 2, 1 / 5)


def test_divergences_are_counted_and_never_returned():
    """A trajectory takes 2.5 of the period of 2π: with probability ½ or more it comes by the edge, in each of 100."""

    def cliff():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        U = pyro.sample("U", StiefelUniform(3, 1))
        pyro.factor("edge", torch.where(x > 0.5, torch.nan, 0.0) + 0.0 * U.sum())

    kernel = OHMC(
        cliff,
        step_size=0.5,
        num_steps=5,
        adapt_step_size=False,
        init_strategy=init_to_value(values={"x": torch.tensor(0.0)}),
    )
    mcmc = run(kernel, num_samples=100, warmup_steps=0)
    assert len(mcmc.diagnostics()["divergences"]["chain 0"]) > 0
    assert (mcmc.get_samples()["x"] <= 0.5).all()


def test_models_without_latent_sites_run():
    def model():
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    kernel = OHMC(model)
    kernel.setup(1)
    assert kernel.sample(kernel.initial_params) == {}


def test_pyros_mcmc_prepares_one_run(monkeypatch):
    """It asks a kernel for its transforms after cleaning up, and would set it up again to learn them."""
    prepared = []
    prepare = OHMC.prepare
    monkeypatch.setattr(OHMC, "prepare", lambda *args, **kwargs: prepared.append(1) or prepare(*args, **kwargs))
    mcmc = pyro.infer.MCMC(OHMC(concentrated), 5, 5, disable_progbar=True)
    mcmc.run()
    assert mcmc.get_samples()["U"].shape == (5, 4, 2)
    assert len(prepared) == 1


# ---- masses of columns ------------------------------------------------------------------------------------------


def orthonormal(n, p, groups=None):
    def model():
        with pyro.plate_stack("groups", [] if groups is None else [groups]):
            U = pyro.sample("U", StiefelUniform(n, p))
            pyro.factor("pull", 20 * U[..., 0, 0])

    return model


@pytest.mark.parametrize(
    ("shape", "options", "size"),
    [
        ((4, 2), {}, 3),
        pytest.param((4, 2, 3), {}, 9, marks=pytest.mark.long),
        ((4, 2), {"column_masses": False}, None),
        pytest.param((4, 1), {"column_masses": True}, None, marks=pytest.mark.long),
        pytest.param((3, 3), {"column_masses": True}, None, marks=pytest.mark.long),
        ((10, 9), {}, None),
        ((10, 9), {"column_masses": True}, 10),
    ],
)
def test_which_sites_have_masses_of_columns(shape, options, size):
    kernel = OHMC(orthonormal(*shape), **options)
    run(kernel, num_samples=2, warmup_steps=30, num_chains=2)
    expected = () if size is None else (2, size)
    assert kernel.inverse_mass_matrix[("U",)].shape == expected


def test_a_column_that_is_known_well_has_the_largest_mass():
    kernel = OHMC(orthonormal(6, 3))
    run(kernel, num_samples=2, warmup_steps=100, num_chains=4)
    first, *others, _ = kernel.inverse_mass_matrix[("U",)].mean(0)
    assert all(first < 0.7 * other for other in others)


def test_a_kernel_without_masses_of_columns_refuses_them():
    with pytest.raises(ValueError, match="GHMC supports only one mass for each site"):
        GHMC(orthonormal(4, 2), column_masses=True)


@pytest.mark.parametrize(
    ("shape", "chains"),
    [((1,), 64), *(pytest.param(*case, marks=pytest.mark.long) for case in (((), 1), ((1,), 1), ((1, 1), 64)))],
)
def test_potentials_as_pyro_takes_them(shape, chains):
    """Without manifolds, and of any shape with one element."""

    def potential(sites):
        return (((sites["x"] - 1) / 2).square().sum() / 2).reshape(shape)

    start = {"x": torch.zeros(chains, 1) if chains > 1 else torch.zeros(1)}
    kernel = OHMC(potential_fn=potential, step_size=None)
    mcmc = run(kernel, num_samples=6400 // chains, warmup_steps=200, initial_params=start, num_chains=chains)
    draws = mcmc.get_samples(group_by_chain=True)["x"][..., 0]
    assert_mean(draws, 1.0)
    assert_mean((draws - 1).square(), 4.0)


def test_orthonormal_starts_without_manifolds():
    """The columns would leave the manifold without a word; the identity may as well be a covariance."""

    def potential(sites):
        return sites["X"].square().sum()

    kernel = OHMC(potential_fn=potential)
    with pytest.warns(UserWarning, match=r"pass manifolds=\{'X': Stiefel\(\)\}"):
        run(kernel, num_samples=2, warmup_steps=2, initial_params={"X": torch.eye(3, 2)})
    run(kernel, num_samples=2, warmup_steps=2, initial_params={"X": torch.eye(3)})
    declared = OHMC(potential_fn=potential, manifolds={})
    run(declared, num_samples=2, warmup_steps=2, initial_params={"X": torch.eye(3, 2)})
