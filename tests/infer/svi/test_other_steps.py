"""Steps of `SVI` that are not native, such as Pyro's own where a model cannot be traced; and bad input."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from pyro.infer import autoguide as pyros

import pyro_manifold.infer.svi.steps as steps_of_svi
from problems.monte_carlo import assert_mean
from pyro_manifold.infer import SVI
from pyro_manifold.optim import TorchRiemannianAdam
from tests.infer.mcmc.compilers import native_code
from tests.infer.svi.models import regression, rows, svi_of


def with_parameter(x, y):
    slope = pyro.param("slope", torch.zeros(()))
    b = pyro.sample("b", dist.Normal(slope, 1.0))
    pyro.sample("y", dist.Normal(b, 1.0), obs=y.mean())


def branching(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(b if b > 0 else 2 * b, 1.0), obs=y.mean())


def nothing(x, y):
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=y.mean())


def own_guide(x, y):
    pyro.sample("b", dist.Normal(pyro.param("loc", torch.zeros(3)), 1.0).to_event(1))


class Shifted(pyros.AutoDiagonalNormal):
    def get_posterior(self, *args, **kwargs):
        return dist.Normal(self.loc + 1, self.scale).to_event(1)


CASES = {
    "model has parameters": (with_parameter, pyros.AutoNormal(with_parameter), Trace_ELBO(), "slope"),
    "model branches": (branching, pyros.AutoNormal(branching), Trace_ELBO(), "cannot be traced"),
    "guide": (regression, own_guide, Trace_ELBO(), "own_guide"),
    "subclass": (regression, Shifted(regression), Trace_ELBO(), "Shifted"),
    "no latent sites": (nothing, pyros.AutoNormal(nothing), Trace_ELBO(), "no parameters"),
    "delta": (regression, pyros.AutoDelta(regression), Trace_ELBO(), "AutoDelta"),
    "loss": (regression, pyros.AutoNormal(regression), TraceMeanField_ELBO(), "TraceMeanField_ELBO"),
}


@pytest.mark.parametrize("name", CASES)
def test_pyros_own_steps_and_one_sentence(name):
    model, guide, loss, reason = CASES[name]
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss)
    with pytest.warns(UserWarning, match="Pyro's own steps") as said:
        losses = [svi.step(*rows()) for _ in range(3)]
    assert [reason in str(warning.message) for warning in said] == [True]
    assert torch.tensor(losses).isfinite().all()
    assert svi.backend == "pyro"


def test_a_model_that_changes_between_steps_is_noticed():
    level = [0.0]

    def drifting(x, y):
        regression(x, y + level[0])

    svi = svi_of(drifting, pyros.AutoNormal(drifting))

    def drift():
        for _ in range(20):
            svi.step(*rows())
            level[0] += 1.0

    with pytest.warns(UserWarning, match="differs from its trace at step"):
        drift()
    assert svi.backend == "pyro"


def test_handlers_around_a_step_are_seen():
    svi = svi_of(regression, pyros.AutoNormal(regression), lr=0.0)
    svi.step(*rows())
    losses = torch.tensor([svi.step(*rows()) for _ in range(50)])
    with pyro.poutine.scale(scale=0.5):
        scaled = torch.tensor([svi.step(*rows()) for _ in range(50)])
    assert_mean(2 * scaled, losses.mean(), float(losses.std()) / 50**0.5)


@pytest.mark.long
def test_values_that_are_no_tensors_end_in_pyros_steps():
    def annealed(x, y, power):
        with pyro.poutine.scale(scale=power):
            regression(x, y)

    svi = svi_of(annealed, pyros.AutoNormal(annealed))

    def anneal():
        for step in range(1, 20):
            svi.step(*rows(), step / 20)

    with pytest.warns(UserWarning, match="pass numbers as tensors") as said:
        anneal()
    assert len(said) == 1
    assert svi.backend == "pyro"


@native_code
def test_missing_native_code_is_reported(monkeypatch, native_at_once):
    def uncovered(*_, **__):
        raise steps_of_svi.NotTracedError("no compiler here")

    monkeypatch.setattr("pyro_manifold.infer.svi.objective.compile_sum", uncovered)
    svi = svi_of(regression, pyros.AutoNormal(regression))
    with pytest.warns(UserWarning, match="No native code for the steps of SVI.*no compiler here"):
        svi.run(5, *rows())
    assert svi.backend == "traced"


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model": 3}, "model=3"),
        ({"guide": pyros.AutoNormal}, "call it with the model"),
        ({"optim": torch.optim.Adam([torch.zeros(1, requires_grad=True)])}, "optim="),
        ({"loss": "elbo"}, "loss='elbo'"),
        ({"loss": Trace_ELBO}, "loss="),
        ({"loss": Trace_ELBO(num_particles=0)}, "num_particles=0"),
    ],
)
def test_arguments_of_another_kind_are_named(arguments, named):
    given = {
        "model": regression,
        "guide": pyros.AutoNormal(regression),
        "optim": pyro.optim.Adam({"lr": 0.1}),
        "loss": Trace_ELBO(),
    }
    with pytest.raises(ValueError, match=named):
        SVI(**{**given, **arguments})


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((0,), {}, "num_steps=0"),
        ((torch.zeros(3),), {}, "num_steps="),
        ((True,), {}, "num_steps=True"),
        ((10,), {"schedule": "linear"}, "schedule='linear'"),
        ((10,), {"until": 3}, "until=3"),
    ],
)
def test_arguments_of_a_run_out_of_range_are_named(arguments, options, named):
    svi = svi_of(regression, pyros.AutoNormal(regression))
    with pytest.raises(ValueError, match=named):
        svi.run(*arguments, *rows(), **options)


def test_a_run_refuses_a_second_schedule():
    optim = pyro.optim.ExponentialLR({"optimizer": TorchRiemannianAdam, "optim_args": {"lr": 0.02}, "gamma": 0.9})
    svi = SVI(regression, pyros.AutoNormal(regression), optim, Trace_ELBO())
    with pytest.raises(ValueError, match="optim has its own schedule"):
        svi.run(10, *rows())
