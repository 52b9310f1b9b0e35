"""Models that fail, or differ from the intended one: one sentence that names the site or argument."""

import warnings

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_value

from problems.monte_carlo import assert_mean
from pyro_manifold.distributions import MatrixLangevin, SpecialOrthogonalUniform, StiefelUniform
from pyro_manifold.infer import MCMC, MSD, OHMC, SGLD, SMC, Predictive
from pyro_manifold.infer.autoguide import AutoStiefelLowRankMultivariateNormal
from pyro_manifold.manifolds import polar_factor
from pyro_manifold.optim import RiemannianAdam
from tests.infer.models import linear

SINGLE, DOUBLE = torch.float32, torch.float64


def run(model, *args, kernel=OHMC, num_samples=2, warmup_steps=2, num_chains=1, **options):
    mcmc = MCMC(kernel(model, **options), num_samples, warmup_steps, num_chains=num_chains, disable_progbar=True)
    mcmc.run(*args)
    return mcmc


def sentence(call):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def location(y):
    mean = pyro.sample("mean", dist.Normal(torch.zeros((), dtype=SINGLE), 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def single(x, y):
    """`linear`, with parameters in float32."""
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1], dtype=SINGLE), 2.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def directions(y):
    U = pyro.sample("U", StiefelUniform(3, 2, dtype=y.dtype))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", MatrixLangevin(5 * U), obs=y)


X, Y = np.ones((5, 2)), np.ones(5)
DATA = torch.ones(5, 2, dtype=DOUBLE), torch.ones(5, dtype=DOUBLE)


@pytest.mark.parametrize(
    "call",
    [
        lambda: run(linear, X, Y),
        lambda: run(linear, X, Y, kernel=MSD),
        lambda: SMC(OHMC(linear), 64).run(X, Y),
        lambda: Predictive(linear, {"w": torch.ones(3, 2)})(X, Y),
        lambda: Predictive(linear, {"w": torch.ones(3, 2)}, parallel=True)(X, Y),
    ],
)
def test_arrays_as_arguments(call):
    message = sentence(call)
    assert "x (numpy.ndarray), y (numpy.ndarray): pass x = torch.as_tensor(x" in message


@pytest.mark.parametrize(
    ("kind", "value"),
    [("numpy.ndarray", Y), ("pandas.Series", pd.Series(Y)), ("list", [1.0, 2.0]), ("float", 1.0)],
)
def test_observed_values_that_are_not_tensors(kind, value):
    def model():
        pyro.sample("y", dist.Normal(pyro.sample("mean", dist.Normal(0.0, 1.0)), 1.0), obs=value)

    assert sentence(lambda: run(model)).startswith(f"Site 'y' is observed with a {kind}, expected a tensor")


def test_initial_values_that_are_not_tensors():
    strategy = init_to_value(values={"mean": np.zeros(())})
    message = sentence(lambda: run(location, torch.ones(3), init_strategy=strategy))
    assert message.startswith("Site 'mean' gets from init_strategy a numpy.ndarray")


@pytest.mark.parametrize(
    "call",
    [
        lambda: run(single, *DATA),
        lambda: run(single, *DATA, kernel=MSD),
        lambda: run(single, *DATA, kernel=SGLD, step_size=1e-3),
        lambda: SMC(OHMC(single), 64).run(*DATA),
        lambda: Predictive(single, {"w": torch.ones(3, 2, dtype=SINGLE)})(*DATA),
    ],
)
def test_data_in_float64_and_parameters_in_float32(call):
    message = sentence(call)
    assert message.startswith("The model mixes dtypes (")
    assert "argument x is torch.float64" in message
    assert "torch.set_default_dtype(torch.float64)" in message


@pytest.mark.parametrize("kernel", [OHMC, MSD])
def test_where_torch_promotes_a_run_is_in_float64(kernel):
    """Warnings are errors here: chains that began in float32 went on in float64, and left their graph."""
    y = torch.tensor([1.0, 2.0, 0.0, 3.0], dtype=DOUBLE)
    mcmc = run(location, y, kernel=kernel, num_samples=100, warmup_steps=100, num_chains=8)
    draws = mcmc.get_samples(group_by_chain=True)["mean"]
    assert draws.dtype == DOUBLE
    assert mcmc.kernel.run.problem.batched.graph.backend == "traced"
    assert_mean(draws, float(y.sum()) / 5)


def test_a_plate_does_not_make_a_run_wider_than_its_sites():
    """Pyro gives the indices of a plate a log density of zero in the default dtype, here float64."""

    def model(y):
        mean = pyro.sample("mean", dist.Normal(torch.zeros((), dtype=SINGLE), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    draws = run(model, torch.tensor([1.0, 2.0], dtype=SINGLE), num_samples=5, warmup_steps=5).get_samples()["mean"]
    assert draws.dtype == SINGLE


def test_a_matrix_in_float32_and_data_in_float64():
    y = StiefelUniform(3, 2, dtype=DOUBLE).sample((4,))

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2, dtype=SINGLE))
        with pyro.plate("rows", 4):
            pyro.sample("y", MatrixLangevin(5 * U), obs=y)

    draws = run(model, num_samples=20, warmup_steps=20, num_chains=3).get_samples()["U"]
    assert draws.dtype == DOUBLE
    assert (draws.mT @ draws - torch.eye(2, dtype=DOUBLE)).abs().max() < 1e-9


def test_initial_values_in_another_dtype_than_the_data():
    x, y = (value.to(SINGLE) for value in DATA)
    kernel = OHMC(single)
    start = {"w": torch.zeros(2, dtype=DOUBLE)}
    message = sentence(lambda: MCMC(kernel, 2, 2, initial_params=start, disable_progbar=True).run(x, y))
    assert "'w' is torch.float64: convert initial_params" in message


# ---- values changed in place ---------------------------------------------------------------------------------------


def scaled_in_place():
    U = pyro.sample("U", StiefelUniform(4, 2))
    U *= 2
    pyro.factor("pull", U.sum())


def written_in_place():
    U = pyro.sample("U", StiefelUniform(4, 2))
    U[:, 0] = 2.0
    pyro.factor("pull", U.sum())


def positive_in_place():
    U = pyro.sample("U", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    U *= 2
    pyro.factor("pull", -U.sum())


@pytest.mark.parametrize("model", [scaled_in_place, written_in_place, positive_in_place])
@pytest.mark.parametrize("call", [run, lambda model: SMC(OHMC(model), 64).run()])
def test_sites_changed_in_place(model, call):
    assert sentence(lambda: call(model)).startswith("Site 'U': the model changes its value in place")


def test_arguments_changed_in_place():
    def model(y):
        y.add_(1.0)
        location(y)

    def harmless(y):
        location(y.clamp_(min=0.0))

    assert "argument y in place" in sentence(lambda: run(model, torch.zeros(5, dtype=SINGLE)))
    run(harmless, torch.tensor([-1.0, 1.0], dtype=SINGLE))


# ---- values off the support ----------------------------------------------------------------------------------------


def test_data_off_the_manifold():
    y = torch.randn(5, 3, 2)
    message = sentence(lambda: run(directions, y))
    assert message.startswith("Site 'y' is observed off its manifold: 5 of 5 values of shape (3, 2)")
    assert "polar_factor" in message
    run(directions, polar_factor(y))


def test_masked_data_may_be_off_the_manifold():
    y = torch.cat([polar_factor(torch.randn(2, 3, 2)), torch.ones(1, 3, 2)])

    def model():
        U = pyro.sample("U", StiefelUniform(3, 2))
        with pyro.plate("rows", 3), pyro.poutine.mask(mask=torch.tensor([True, True, False])):
            pyro.sample("y", MatrixLangevin(5 * U), obs=y)

    run(model)


def test_validation_names_the_projection():
    bad = torch.ones(2, 3, 3)
    bad[0] = torch.eye(3)
    matrices = (StiefelUniform(3, 3), MatrixLangevin(torch.eye(3)))
    for distribution in matrices:
        message = sentence(lambda distribution=distribution: distribution.log_prob(bad))
        assert message.startswith(f"{type(distribution).__name__}: 1 of 2 values of shape (3, 3) are off the support")
        assert "polar_factor(value)" in message
    rotations = SpecialOrthogonalUniform(3, validate_args=True)
    assert "SpecialOrthogonal().projection(value)" in sentence(lambda: rotations.log_prob(bad))
    assert "dtype torch.int64" in sentence(lambda: matrices[0].log_prob(torch.eye(3).long()))
    assert matrices[0].log_prob(bad[0]) == 0
    with pytest.raises(ValueError, match="event_shape"):
        matrices[0].log_prob(torch.eye(2))


def counts(y):
    rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=rate), obs=y)


def categories(y):
    logits = pyro.sample("logits", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def bounded(y):
    width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Uniform(0.0, width), obs=y)


def test_data_outside_of_the_support():
    with pytest.warns(UserWarning, match=r"Site 'y': 1 of 3 observed values are outside the support Boolean\(\)"):
        run(counts, torch.tensor([0.0, 1.0, 2.0]))
    assert "Site 'y': 1 of 3 observed values" in sentence(lambda: run(categories, torch.tensor([0, 1, 3])))


def test_supports_that_depend_on_what_is_sampled():
    """Data outside the bounds of a single draw are valid."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MCMC(OHMC(bounded), 2, 2, initial_params={"width": torch.tensor(4.0)}, disable_progbar=True).run(
            torch.tensor([1.0, 20.0])
        )


# ---- shapes and parameters -----------------------------------------------------------------------------------------


def test_observed_shapes():
    def model():
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(4))

    assert "Site 'y' is observed with a value of shape (4,), expected (5,)" in sentence(lambda: run(model))


def test_a_column_is_no_vector():
    """Pyro would compare each value with each entry: 25 terms in place of 5."""

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    expected = "Site 'y' is observed with a value of shape (5, 1), expected (5,)"
    assert expected in sentence(lambda: run(lambda: model(torch.zeros(5, 1))))
    run(lambda: model(torch.zeros(1)))  # one value for all rows is one that Pyro broadcasts


def test_plates_without_elements():
    def empty():
        with pyro.plate("groups", 0):
            pyro.sample("U", StiefelUniform(3, 2))

    assert sentence(lambda: run(empty)).startswith("Plate 'groups' has no elements")
    assert sentence(lambda: run(location, torch.zeros(0))).startswith("Plate 'rows' has no elements")


def test_sites_without_elements():
    def model():
        pyro.sample("none", dist.Normal(torch.zeros(0), 1.0).to_event(1))
        pyro.sample("x", dist.Normal(0.0, 1.0))

    mcmc = run(model, num_samples=20, num_chains=2)
    assert mcmc.get_samples()["none"].shape == (40, 0)
    mcmc.summary()
    mcmc.diagnostics()
    mcmc.to_inferencedata()


def test_parameters_out_of_range():
    def negative():
        pyro.sample("x", dist.Normal(0.0, -torch.ones(2)).to_event(1))

    def zero():
        pyro.sample("x", dist.Normal(0.0, torch.zeros(2)).to_event(1))

    assert sentence(lambda: run(negative)).startswith("Site 'x': scale of Normal has 2 of 2 values outside GreaterThan")
    assert "scale of Normal has 2 of 2 values outside GreaterThan" in sentence(lambda: run(zero))

    def not_a_number():
        pyro.factor("f", pyro.sample("x", dist.Normal(0.0, 1.0)) * torch.nan)

    message = sentence(lambda: run(not_a_number))
    assert "the log density of ['f'] is not finite there: check" in message  # and no word of how Pyro writes a factor


def test_sites_that_cannot_be_drawn_from_need_a_start():
    class Undrawable(dist.Normal):
        def sample(self, sample_shape=()):
            raise NotImplementedError("no draws")

    def model():
        mean = pyro.sample("mean", Undrawable(0.0, 1e6))
        pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.tensor(3.0))

    assert "init_to_value(values={'mean': value})" in sentence(lambda: run(model, max_plate_nesting=0))
    start = init_to_value(values={"mean": torch.tensor(0.0)})
    draws = run(model, num_samples=100, warmup_steps=100, num_chains=8, init_strategy=start)
    assert_mean(draws.get_samples(group_by_chain=True)["mean"], 3.0)


def test_a_prior_far_wider_than_floating_point():
    def model():
        x = pyro.sample("x", dist.Normal(0.0, torch.tensor(1e150, dtype=DOUBLE)))
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(3.0, dtype=DOUBLE))

    with pytest.raises(RuntimeError, match=r"narrower prior") as error:
        SMC(OHMC(model), 32, disable_progbar=True, max_levels=20).run()
    assert "\n" not in str(error.value)


# ---- other errors stay what they are -------------------------------------------------------------------------------


def test_errors_of_the_model_itself():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        raise KeyError("the model's own")

    with pytest.raises(KeyError, match="the model's own"):
        run(model)


def test_a_matrix_that_is_not_positive_definite_at_the_first_draw():
    """Other draws are fine: the model is run again."""
    calls = []

    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        calls.append(x)
        matrix = torch.eye(2) if len(calls) > 1 else -torch.eye(2)
        pyro.factor("likelihood", -0 * torch.linalg.cholesky(matrix).sum() - x.sum() ** 2)

    assert len(run(model).get_samples()["x"]) == 2


def test_a_matrix_that_is_never_positive_definite():
    def model():
        pyro.sample("x", dist.Normal(0.0, 1.0))
        torch.linalg.cholesky(-torch.eye(2))

    with pytest.raises(RuntimeError, match="positive-definite"):
        run(model)


def test_guides():
    guide = AutoStiefelLowRankMultivariateNormal(linear, rank=1)
    svi = pyro.infer.SVI(linear, guide, RiemannianAdam({"lr": 0.01}), pyro.infer.Trace_ELBO())
    with pytest.raises(ValueError, match=r"arguments that are not tensors"):
        svi.step(X, Y)
