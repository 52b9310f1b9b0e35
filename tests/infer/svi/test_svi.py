"""`SVI`: optima that are known, minibatches, changed arguments, optimisers, saved and seeded runs."""

import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer import autoguide as pyros
from torch.distributions import kl_divergence

from problems.monte_carlo import assert_mean
from pyro_manifold.infer import SVI
from pyro_manifold.infer.autoguide import (
    AutoProductStiefelLowRankMultivariateNormal,
    AutoStiefelLowRankMultivariateNormal,
)
from pyro_manifold.infer.svi import LearningRateSchedule, torch_optimizer
from pyro_manifold.manifolds import Stiefel
from pyro_manifold.optim import RiemannianAdam, TorchRiemannianAdam
from tests.infer.mcmc.compilers import native_code
from tests.infer.svi.models import regression, rows, svi_of


def gaussian():
    """A Gaussian of rank 2 plus diagonal in 12 dimensions."""
    generator = torch.Generator().manual_seed(1)
    factor = Stiefel().random_point(12, 2, generator=generator) * torch.tensor([3.0, 1.5])
    scale = 0.3 + 0.5 * torch.rand(12, generator=generator)
    return dist.LowRankMultivariateNormal(torch.randn(12, generator=generator), factor, scale.square())


def known(distribution):
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2).mask(False))
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([6]).to_event(1).mask(False))
    pyro.factor("distribution", distribution.log_prob(torch.cat([a.flatten(-2), b], -1)))


def posterior_of_regression(x, y):
    covariance = torch.linalg.inv(torch.eye(3) + x.mT @ x)
    return dist.MultivariateNormal(covariance @ x.mT @ y, covariance)


# ---- optima ------------------------------------------------------------------------------------------------------


@native_code
@pytest.mark.parametrize(
    "optim",
    [
        RiemannianAdam,
        *[pytest.param(kind, marks=pytest.mark.long) for kind in (pyro.optim.Adam, pyro.optim.ClippedAdam)],
    ],
)
def test_a_gaussian_of_the_family_is_found(optim):
    distribution = gaussian()
    guide = AutoStiefelLowRankMultivariateNormal(known, rank=2)
    svi = svi_of(known, guide, lr=0.05, optim=optim)
    svi.run(3000, distribution)
    assert svi.backend == "native"
    assert kl_divergence(guide.get_posterior(), distribution) < 1e-3


@pytest.mark.parametrize(
    "guide_type", [pyros.AutoNormal, pytest.param(pyros.AutoDiagonalNormal, marks=pytest.mark.long)]
)
def test_the_mean_field_has_its_known_optimum(guide_type):
    distribution = gaussian()
    guide = guide_type(known)
    svi_of(known, guide, lr=0.05).run(3000, distribution)
    spread = distribution.precision_matrix.diagonal().rsqrt()
    found = guide.quantiles([0.5, 0.841344746])
    loc, upper = (
        torch.cat([torch.as_tensor(found["a"][k]).reshape(-1), torch.as_tensor(found["b"][k])]) for k in (0, 1)
    )
    torch.testing.assert_close(loc, distribution.mean, atol=0.05, rtol=0.0)
    torch.testing.assert_close(upper - loc, spread, rtol=0.1, atol=0.0)


@native_code
def test_minibatches_lead_to_the_posterior_of_all_data():
    x, y = rows()
    guide = pyros.AutoMultivariateNormal(regression)
    svi = svi_of(regression, guide)
    svi.run(4000, x, y, None, 8)
    assert svi.backend == "native"
    assert kl_divergence(guide.get_posterior(), posterior_of_regression(x, y)) < 0.05


@native_code
def test_minibatches_as_arguments_are_inputs(native_at_once):
    x, y = rows()
    guide = pyros.AutoMultivariateNormal(regression)
    svi = svi_of(regression, guide)
    for step in range(1500):
        part = slice(8 * (step % 8), 8 * (step % 8) + 8)
        svi.step(x[part], y[part], 64)
    assert svi.backend == "native"
    assert len(svi._steps._graphs) == 2  # one with constants, for the first step, and one with inputs
    assert kl_divergence(guide.get_posterior(), posterior_of_regression(x, y)) < 0.2


def test_data_changed_in_place_is_noticed(native_at_once):
    x, y = rows()
    svi = svi_of(regression, pyros.AutoNormal(regression), lr=0.0)
    svi.step(x, y)
    svi.step(x, y)
    before = torch.tensor([svi.evaluate_loss(x, y) for _ in range(50)])
    y += 1.0
    after = torch.tensor([svi.evaluate_loss(x, y) for _ in range(50)])
    expected = torch.tensor([pyro.infer.SVI.evaluate_loss(svi, x, y) for _ in range(50)])
    assert_mean(after, expected.mean(), float(expected.std()) / 50**0.5)
    assert after.mean() > before.mean() + 10


def test_shapes_may_change_between_steps():
    x, y = rows()
    svi = svi_of(regression, pyros.AutoNormal(regression))
    for last in (64, 32, 7, 64, 32):
        assert torch.tensor(svi.step(x[:last], y[:last], 64)).isfinite()
    assert svi.backend == "traced"


# ---- optimisers --------------------------------------------------------------------------------------------------

OPTIMISERS = {
    "adam": lambda: pyro.optim.Adam({"lr": 0.02, "betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.01}),
    "clipped": lambda: pyro.optim.ClippedAdam(
        {"lr": 0.02, "lrd": 0.99, "clip_norm": 0.5, "eps": 0.1, "weight_decay": 0.01}
    ),
    "centred": lambda: pyro.optim.ClippedAdam({"lr": 0.02, "centered_variance": True}),
    "riemannian": lambda: RiemannianAdam({"lr": 0.02, "eps": 0.1}),
    "by name": lambda: pyro.optim.Adam(lambda name: {"lr": 0.02 if name.endswith("loc") else 0.001}),
    "clip_args": lambda: pyro.optim.Adam({"lr": 0.02}, {"clip_norm": 0.1}),
    "amsgrad": lambda: pyro.optim.Adam({"lr": 0.02, "amsgrad": True}),
    "rmsprop": lambda: pyro.optim.RMSprop({"lr": 0.02}),
    "schedule": lambda: pyro.optim.ExponentialLR(
        {"optimizer": TorchRiemannianAdam, "optim_args": {"lr": 0.02}, "gamma": 0.9}
    ),
}


@pytest.mark.parametrize(
    ("name", "guide_type"),
    [
        *[(name, AutoStiefelLowRankMultivariateNormal) for name in OPTIMISERS],
        ("riemannian", AutoProductStiefelLowRankMultivariateNormal),
    ],
)
def test_updates_are_those_of_the_optimiser(name, guide_type):
    """The same gradients by the optimiser alone, one parameter after the other."""
    args = rows()
    guide = guide_type(regression, rank=1)
    optim, other = OPTIMISERS[name](), OPTIMISERS[name]()
    svi = SVI(regression, guide, optim, Trace_ELBO(num_particles=2))
    guide(*args)
    twins = {n: p.detach().clone().requires_grad_() for n, p in guide.named_parameters()}
    store = pyro.get_param_store()
    for number in range(5):
        svi.step(*args)
        for twin, gradient in zip(twins.values(), svi._steps._graph.update._gradients, strict=True):
            twin.grad = gradient.clone()
        if not number:  # optimisers find options and manifolds by the name in the store
            names = {id(p): store.param_name(p) for p in guide.parameters()}
            for (_, p), twin in zip(guide.named_parameters(), twins.values(), strict=True):
                store._param_to_name[twin] = names[id(p)]
        other(list(twins.values()))
        if name == "schedule":
            optim.step()
            other.step()
    for key, parameter in guide.named_parameters():
        torch.testing.assert_close(parameter.detach(), twins[key].detach())
        own, twin = (torch_optimizer(o, p).state[p] for o, p in ((optim, parameter), (other, twins[key])))
        assert own.keys() == twin.keys()
        for entry in own:
            torch.testing.assert_close(torch.as_tensor(own[entry]), torch.as_tensor(twin[entry]))


def test_a_loaded_store_and_another_optimiser_are_used(tmp_path):
    args = rows()
    guide = AutoStiefelLowRankMultivariateNormal(regression, rank=1)
    svi_of(regression, guide).run(100, *args)
    pyro.get_param_store().save(tmp_path / "store")
    loc = guide.loc.detach().clone()
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store")
    guide = AutoStiefelLowRankMultivariateNormal(regression, rank=1)
    svi = svi_of(regression, guide, lr=0.0)
    svi.step(*args)
    assert torch.equal(guide.loc, loc)
    svi.optim = RiemannianAdam({"lr": 0.01})
    svi.step(*args)
    assert svi.backend == "traced"
    assert not torch.equal(pyro.param(f"{guide._pyro_name}.loc"), loc)
    assert torch.equal(pyro.param(f"{guide._pyro_name}.loc"), guide.loc)


def test_a_store_that_the_guide_does_not_use_is_reported(tmp_path):
    svi = svi_of(regression, AutoStiefelLowRankMultivariateNormal(regression, rank=1))
    svi.step(*rows())
    pyro.get_param_store().save(tmp_path / "store")
    pyro.get_param_store().load(tmp_path / "store")
    with pytest.warns(UserWarning, match="that the guide does not use: load a store before"):
        svi.step(*rows())


def test_pickled_svi_continues():
    distribution = gaussian()
    svi = svi_of(known, AutoStiefelLowRankMultivariateNormal(known, rank=2))
    svi.run(50, distribution)
    pyro.clear_param_store()
    again = pickle.loads(pickle.dumps(svi))
    losses = again.run(50, distribution)
    assert again.backend == "traced"
    assert losses.isfinite().all()


# ---- runs --------------------------------------------------------------------------------------------------------


def test_a_run_sets_learning_rates_back():
    svi = svi_of(regression, pyros.AutoNormal(regression))
    losses = svi.run(30, *rows())
    assert losses.shape == (30,)
    rates = [o.param_groups[0]["lr"] for o in svi.optim.optim_objs.values()]
    assert rates == pytest.approx([0.03] * len(rates))


def test_a_run_ends_after_the_plateau():
    distribution = gaussian()
    guide = AutoStiefelLowRankMultivariateNormal(known, rank=2)
    losses = svi_of(known, guide, lr=0.05).run(50_000, distribution, until="plateau")
    assert 900 <= len(losses) < 50_000
    assert kl_divergence(guide.get_posterior(), distribution) < 0.02


def test_a_fall_is_no_plateau():
    noise = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    falling = (noise - 0.005 * torch.arange(2000.0)).tolist()
    course = LearningRateSchedule(10_000, "cosine", "plateau")
    for count in range(1, 2001):
        course.check(falling[:count])
    assert course.last == 10_000
    for count in range(2001, 6001):
        course.check(falling + noise[:1].expand(count - 2000).tolist())
    assert course.last < 10_000
    assert course.factor(course.last) == 0.0


def test_seeded_runs_are_repeated():
    found = []
    for _ in range(2):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        found.append(svi_of(regression, pyros.AutoNormal(regression)).run(50, *rows(), None, 8))
    assert torch.equal(*found)


def test_no_warning_where_steps_are_traced():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svi = svi_of(regression, pyros.AutoNormal(regression))
        svi.run(10, *rows())


def test_a_number_that_changes_as_a_tensor():
    """The weight of a likelihood, as docs/understand/svi.md has it."""

    def model(y, weight):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.poutine.scale(scale=weight), pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(x, 1.0), obs=y)

    y = torch.linspace(1, 2, 20)
    guide = pyros.AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO(num_particles=8))
    for step in range(800):
        svi.step(y, torch.tensor(min(1.0, 0.1 + step / 400)))
    assert svi.backend in ("traced", "native")
    assert abs(float(guide.median()["x"]) - 20 * 1.5 / 21) < 0.1


def test_a_learning_rate_that_is_a_tensor_has_the_same_schedule():
    def model(y):
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x.sum(-1), 0.1), obs=y)

    found = []
    for rate in (0.03, torch.tensor(0.03)):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        svi = SVI(model, pyros.AutoNormal(model), pyro.optim.Adam({"lr": rate}), Trace_ELBO(num_particles=4))
        found.append(svi.run(60, torch.tensor(2.0)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


# ---- changes between steps ---------------------------------------------------------------------------------------


@native_code
@pytest.mark.parametrize("after", [0, 20])
def test_frozen_parameters_stay(after, native_at_once):
    """Frozen by ``requires_grad_(False)`` before the first step or between steps, and free again, as in Pyro."""
    x, y = rows()
    guide = pyros.AutoNormal(regression, init_scale=0.5)
    guide(x, y)
    svi = svi_of(regression, guide)
    for _ in range(after):
        svi.step(x, y)
    scale, loc = guide.scales.b.detach().clone(), guide.locs.b.detach().clone()
    guide.scales.b_unconstrained.requires_grad_(False)
    svi.run(20, x, y)
    assert svi.backend == "native"
    assert torch.equal(guide.scales.b, scale)
    assert not torch.equal(guide.locs.b, loc)
    guide.scales.b_unconstrained.requires_grad_(True)
    svi.run(20, x, y)
    assert not torch.equal(guide.scales.b, scale)


def test_a_changed_number_of_particles_is_used():
    """The variance of the estimate of the loss is inverse to it."""
    svi = svi_of(regression, pyros.AutoNormal(regression, init_scale=0.5), particles=1, lr=0.0)
    few = torch.tensor([svi.step(*rows()) for _ in range(300)])
    svi._elbo.num_particles = 64
    many = torch.tensor([svi.step(*rows()) for _ in range(300)])
    assert svi.backend != "pyro"
    assert 0.3 < 64 * float(many.var() / few.var()) < 3


@pytest.mark.parametrize("evaluate", ["run", "evaluate_loss"])
def test_a_model_that_has_changed_is_seen(evaluate):
    """At the first step of another run, and at the next comparison, also if it falls on an evaluation of the loss."""
    level, (x, y) = [0.0], rows()

    def drifting(x, y):
        regression(x, y + level[0])

    svi = svi_of(drifting, pyros.AutoNormal(drifting))
    svi.run(100, x, y)
    level[0] = 1.0

    def again():
        if evaluate == "run":
            svi.run(1, x, y)
        else:
            for _ in range(156):  # the comparison after that of 64 is at 256
                svi.evaluate_loss(x, y)

    with pytest.warns(UserWarning, match="differs from its trace at step .*may have done so since"):
        again()
    assert svi.backend == "pyro"
