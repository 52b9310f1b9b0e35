"""Bad input gets one sentence that names the site or argument and says what to do."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide.initialization import init_to_median, init_to_value

from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import GHMC, MCMC, MSD, OHMC, GeodesicSlice
from pyro_manifold.manifolds import Stiefel
from tests.infer.models import concentrated, factor_model


def run(kernel, *args, **options):
    MCMC(kernel, num_samples=2, warmup_steps=2, disable_progbar=True, **options).run(*args)


def one_sentence(error):
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert error.value.__cause__ is None
    return message


def potential(sites):
    return -sites["X"].sum()


def nowhere_finite(sites):
    return sites["X"].sum() * torch.inf


def subsampled(y):
    U = pyro.sample("U", StiefelUniform(3, 1))
    with pyro.plate("data", 10, subsample_size=5) as index:
        pyro.sample("y", dist.Normal(U[0, 0], 1.0), obs=y[index])


def impossible():
    U = pyro.sample("U", StiefelUniform(3, 1))
    pyro.factor("nothing_fits", -torch.inf + U.sum())


MANIFOLDS = {"X": Stiefel()}
ORTHONORMAL = torch.eye(3, 2)


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        ("one of model and potential_fn", lambda: OHMC()),
        ("potential_fn=0.2, expected a function; pass other arguments by name", lambda: MSD(concentrated, 0.2)),
        ("one of model and potential_fn", lambda: OHMC(concentrated, potential)),
        ("manifolds is only for potential_fn", lambda: OHMC(concentrated, manifolds=MANIFOLDS)),
        ("step_size=-1", lambda: OHMC(concentrated, step_size=-1)),
        ("num_steps=1.5", lambda: OHMC(concentrated, num_steps=1.5)),
        ("step_size='a'", lambda: OHMC(concentrated, step_size="a")),
        ("reflection_probability=None", lambda: OHMC(concentrated, reflection_probability=None)),
        ("num_steps=0", lambda: OHMC(concentrated, num_steps=0)),
        ("trajectory_length=0", lambda: OHMC(concentrated, trajectory_length=0)),
        ("target_accept_prob=1.5", lambda: OHMC(concentrated, target_accept_prob=1.5)),
        ("trajectory_jitter=2", lambda: OHMC(concentrated, trajectory_jitter=2)),
        ("initial_params", lambda: run(OHMC(potential_fn=potential, manifolds=MANIFOLDS))),
        (
            "manifolds names ['Y']",
            lambda: run(OHMC(potential_fn=potential, manifolds={"Y": Stiefel()}), initial_params={"X": ORTHONORMAL}),
        ),
        (
            "manifolds['X'] is <class 'pyro_manifold.manifolds.stiefel.Stiefel'>, expected a manifold like Stiefel()",
            lambda: run(OHMC(potential_fn=potential, manifolds={"X": Stiefel}), initial_params={"X": ORTHONORMAL}),
        ),
        ("transforms names ['V']", lambda: run(OHMC(concentrated, transforms={"V": None}))),
        (
            "instead of a tensor: potential_fn must return one",
            lambda: run(OHMC(potential_fn=lambda s: None, manifolds=MANIFOLDS), initial_params={"X": ORTHONORMAL}),
        ),
        (
            "Site 'X': the initial value is off the Stiefel manifold by 3.0e+00",
            lambda: run(OHMC(potential_fn=potential, manifolds=MANIFOLDS), initial_params={"X": 2 * ORTHONORMAL}),
        ),
        (
            "Site 'X': the initial value has shape (2, 3)",
            lambda: run(OHMC(potential_fn=potential, manifolds=MANIFOLDS), initial_params={"X": ORTHONORMAL.mT}),
        ),
        (
            "Site 'X': the initial value has shape (3,)",
            lambda: run(OHMC(potential_fn=potential, manifolds=MANIFOLDS), initial_params={"X": torch.ones(3)}),
        ),
        (
            "Site 'U': the initial value is off the Stiefel manifold",
            lambda: run(OHMC(concentrated, init_strategy=init_to_value(values={"U": torch.ones(4, 2)}))),
        ),
        (
            "Site 'U': the initial value is off the Stiefel manifold",
            lambda: run(OHMC(concentrated), initial_params={"U": torch.full((4, 2), torch.nan)}),
        ),
        (
            "Site 'U': the initial value has shape (4, 2) and dtype torch.float32, expected (4, 2) and torch.float64, "
            "on its manifold",
            lambda: run(OHMC(concentrated), initial_params={"U": torch.eye(4, 2, dtype=torch.float32)}),
        ),
        ("initial_params has the sites ['V']", lambda: run(OHMC(concentrated), initial_params={"V": ORTHONORMAL})),
        (
            "The potential energy is ",
            lambda: run(OHMC(potential_fn=nowhere_finite, manifolds=MANIFOLDS), initial_params={"X": ORTHONORMAL}),
        ),
        ("the log density of ['nothing_fits'] is not finite", lambda: run(OHMC(impossible))),
        (
            "shape (3, 2) instead of being a scalar",
            lambda: run(OHMC(potential_fn=lambda s: s["X"], manifolds=MANIFOLDS), initial_params={"X": ORTHONORMAL}),
        ),
        ("Site 'y' is observed with 2 NaN", lambda: run(OHMC(factor_model), nan_data())),
        ("MCMC: kernel=<function concentrated", lambda: MCMC(concentrated)),
        ("expected a kernel such as OHMC(model)", lambda: MCMC(OHMC, 10)),
        ("expected a kernel such as OHMC(model)", lambda: MCMC(None, 10)),
        ("initial_params=tensor([0., 0., 0.]", lambda: run(OHMC(concentrated), initial_params=torch.zeros(3))),
        ("initial_params['U']='a', expected a tensor", lambda: run(OHMC(concentrated), initial_params={"U": "a"})),
        ("save_params='U', expected a list", lambda: run(OHMC(concentrated), save_params="U")),
        ("init_strategy='median', expected a function", lambda: OHMC(concentrated, init_strategy="median")),
        ("init_strategy=None, expected a function", lambda: MSD(concentrated, init_strategy=None)),
        ("transforms=[1], expected a dictionary", lambda: OHMC(concentrated, transforms=[1])),
        ("manifolds=Stiefel(), expected a dictionary", lambda: OHMC(potential_fn=potential, manifolds=Stiefel())),
        ("target_accept_prob=None", lambda: OHMC(concentrated, target_accept_prob=None)),
        ("target_accept_prob='0.8'", lambda: OHMC(concentrated, target_accept_prob="0.8")),
        ("min_stepsize=None", lambda: OHMC(concentrated, min_stepsize=None)),
        ("full_mass='dense'", lambda: run(OHMC(factor_model, full_mass="dense"), torch.randn(5, 4))),
        ("width=0", lambda: GeodesicSlice(concentrated, width=0)),
        ("max_widths=1.5", lambda: GeodesicSlice(concentrated, max_widths=1.5)),
        ("reflection_probability=2", lambda: GeodesicSlice(concentrated, reflection_probability=2)),
        ("the log density of ['nothing_fits'] is not finite", lambda: run(GeodesicSlice(impossible))),
        ("full_mass names ['V']", lambda: run(OHMC(factor_model, full_mass=[("V",)]), torch.randn(5, 4))),
        ("full_mass names 'U'", lambda: run(GHMC(factor_model, full_mass=[("U",)]), torch.randn(5, 4))),
    ],
)
def test_values(expected, call):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert expected in one_sentence(error)


def test_more_columns_than_rows_inside_a_model():
    """Pyro adds its table of shapes to errors raised inside a model; the sentence comes first."""
    with pytest.raises(ValueError, match=r"^StiefelUniform: got n=2, p=3, but n×p .*transpose the matrix\."):
        run(OHMC(lambda: pyro.sample("U", StiefelUniform(2, 3))))


def nan_data():
    y = torch.randn(5, 4)
    y[1, :2] = torch.nan
    return y


def test_subsampled_plates():
    with pytest.raises(NotImplementedError) as error:
        run(OHMC(subsampled), torch.randn(10))
    assert "Plate 'data' draws 5 of 10" in one_sentence(error)


def test_validation_may_be_on():
    """With Pyro's own validation on, the sentence is still ours, not one from inside a distribution."""
    with pytest.raises(ValueError, match="Site 'y' is observed with 2 NaN"):
        run(OHMC(factor_model), nan_data(), disable_validation=False)


def test_numbers_of_draws():
    mcmc = MCMC(OHMC(concentrated), 2, 2, disable_progbar=True)
    mcmc.run()
    with pytest.raises(ValueError, match="num_samples='10', expected a positive integer"):
        mcmc.get_samples("10")


def test_mass_matrix_adapter():
    """Pyro's would be left unnoticed."""
    kernel = OHMC(concentrated)
    with pytest.raises(AttributeError, match=r"OHMC has no mass_matrix_adapter.*pass full_mass="):
        kernel.mass_matrix_adapter = object()
    assert not hasattr(kernel, "mass_matrix_adapter")


def test_subsampled_sites_are_refused_as_in_pyro():
    def model():
        with pyro.plate("data", 10, subsample_size=5):
            pyro.sample("x", dist.Normal(0.0, 1.0))

    with pytest.raises(NotImplementedError, match=r"Plate .data. draws 5 of 10 elements.*subsample_size"):
        run(OHMC(model))


def three_numbers():
    x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.zeros(3))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"x": torch.zeros(4, 3)},
            r"Site 'x'.*shape \(4, 3\), expected \(3,\); for a value.*init_to_draws.*\.$",
        ),
        ({"x": torch.zeros(2)}, r"Site 'x': the initial value has shape \(2,\), expected \(3,\)\.$"),
        ({"x": torch.zeros(3), "X": torch.zeros(3)}, r"init_to_value has values for \['X'\], but.*\['x'\]: give.*\.$"),
    ],
)
def test_values_that_fit_no_site_are_named(values, sentence):
    strategy = init_to_value(values=values, fallback=init_to_median)
    for each in (strategy, init_to_value(values={}, fallback=strategy)):
        with pytest.raises(ValueError, match=sentence):
            MCMC(OHMC(three_numbers, init_strategy=each), 5, 5, num_chains=4, disable_progbar=True).run()


def test_values_of_data_and_functions_of_sites_are_no_errors():
    values = {"x": torch.ones(3), "y": torch.zeros(3)}
    run = OHMC(three_numbers, init_strategy=init_to_value(values=values)).prepare(2, 5, None)
    assert torch.equal(run.values["x"], torch.ones(2, 3))
