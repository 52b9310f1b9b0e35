"""Input that once gave wrong draws without a word, or an error from the depths."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions.transforms import identity_transform
from pyro.infer.autoguide.initialization import init_to_value

from pyro_manifold import constraints
from pyro_manifold.distributions import MatrixLangevin, StiefelUniform
from pyro_manifold.distributions.transforms import HouseholderTransform, PolarTransform
from pyro_manifold.infer import MCMC, MSD, OHMC
from pyro_manifold.manifolds import Stiefel
from tests.infer.mcmc.compilers import compiled_code
from tests.infer.models import concentrated


def run(kernel, num_samples=50, warmup_steps=50, **options):
    mcmc = MCMC(kernel, num_samples, warmup_steps, disable_progbar=True, **options)
    mcmc.run()
    return mcmc


def walled():
    """The branch is invisible to a tracer, and lies away from every start."""
    x = pyro.sample("x", dist.Normal(30.0, 30.0))
    if x.tolist() > 5:
        pyro.factor("wall", torch.tensor(-1e3))


def test_a_branch_that_a_tracer_cannot_see():
    """The trace has 0.8 of its mass there, and is compared with the model at 16 states of warm-up."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = OHMC(walled, step_size=2.0, num_steps=3, adapt_step_size=False)
        mcmc = run(kernel, num_samples=20, warmup_steps=100, num_chains=2)
    assert (mcmc.get_samples()["x"] <= 5).all()
    assert any("branch on values of sites" in str(warning.message) for warning in caught)


def test_distributions_made_outside_the_model_do_not_defeat_the_tracer():
    """They were told to check their values when Pyro's checks were on, which is a branch; warnings are errors here."""
    prior = dist.Normal(0.0, 1.0, validate_args=True).expand([2]).to_event(1)
    half = dist.LogNormal(0.0, 1.0, validate_args=True)

    def model():
        w, scale = pyro.sample("w", prior), pyro.sample("scale", half)
        pyro.sample("y", dist.Normal(w.sum(), scale), obs=torch.tensor(1.0))

    for kernel in (OHMC(model), MSD(model)):
        run(kernel, num_samples=2, warmup_steps=2, num_chains=2)
    assert prior.base_dist._validate_args
    assert half.base_dist._validate_args


def test_no_draws_yet():
    with pytest.raises(ValueError, match="get_samples: there are no draws yet"):
        MCMC(OHMC(walled), 10).get_samples()


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=[pytest.mark.long, compiled_code])])
def test_gradients_that_depend_on_memory_layout(jit_compile):
    """The backward of a determinant looks at strides, which a trace had frozen: a flat target lost its energy."""

    def components():
        U = pyro.sample("U", StiefelUniform(3, 3))
        pyro.factor("sign", torch.det(U))

    kernel = OHMC(components, step_size=0.3, num_steps=8, adapt_step_size=False, jit_compile=jit_compile)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the compiler may keep another layout; the step is then not compiled, and says so
        mcmc = run(kernel, num_samples=20, warmup_steps=0, num_chains=4)
    assert mcmc.to_inferencedata().sample_stats["energy_error"].max() < 1e-10


def test_shapes_of_starts_are_those_of_the_model():
    for start in (
        {"initial_params": {"U": torch.eye(5, 2)}},
        {"init_strategy": init_to_value(values={"U": torch.eye(5, 2)})},
    ):
        strategy = {name: value for name, value in start.items() if name == "init_strategy"}
        params = {name: value for name, value in start.items() if name == "initial_params"}
        with pytest.raises(ValueError, match=r"Site 'U': the initial value has shape \(5, 2\).*expected \(4, 2\)"):
            run(OHMC(concentrated, **strategy), **params)


@pytest.mark.parametrize("transform", [PolarTransform(), identity_transform, HouseholderTransform(5, 2).inv])
def test_transforms_that_do_not_lead_back_to_the_support(transform):
    with pytest.raises(ValueError, match=r"transforms\['U'\] .*biject_to\(support\)\.inv"):
        run(OHMC(concentrated, transforms={"U": transform}))


def test_a_manifold_and_a_transform_for_one_site():
    kernel = OHMC(
        potential_fn=lambda s: s["X"].sum(), manifolds={"X": Stiefel()}, transforms={"X": PolarTransform().inv}
    )
    with pytest.raises(ValueError, match="a manifold and a transform"):
        run(kernel, initial_params={"X": torch.eye(3, 2)})


def noisy():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.factor("noise", -5 * ((x - torch.randn(50)) ** 2).mean())


def changing():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        pyro.sample("w", dist.Normal(0.0, 1.0))


def test_a_density_with_random_numbers_of_its_own():
    with pytest.raises(ValueError, match="not the same at each call"):
        run(OHMC(noisy))


def test_a_model_whose_sites_change():
    def runs():
        for _ in range(20):
            run(OHMC(changing), num_samples=1, warmup_steps=0)

    # Which of the two is seen first is up to the initial values.
    with pytest.raises(ValueError, match=r"'w' exists only in some runs|density is not the same at each call"):
        runs()


@pytest.mark.parametrize(
    "warmup_steps", [0, 5, 20, *(pytest.param(steps, marks=pytest.mark.long) for steps in (1, 19, 22, 25))]
)
def test_short_warm_ups_do_not_freeze_the_chain(warmup_steps):
    def conjugate():
        pyro.sample("x", dist.Normal(torch.zeros(3), 0.1).to_event(1))

    draws = run(OHMC(conjugate), num_samples=30, warmup_steps=warmup_steps).get_samples()["x"]
    assert len(draws.unique(dim=0)) > 3  # a frozen chain has one


def test_a_run_after_an_interrupt_is_whole():
    state = {"interrupt": True}

    def hook(kernel, params, stage, i):
        if stage == "Sample" and i == 5 and state.pop("interrupt", False):
            raise KeyboardInterrupt

    mcmc = MCMC(OHMC(concentrated), 20, 10, hook_fn=hook, disable_progbar=True)
    with pytest.warns(UserWarning, match="kept 6 of 20"):
        mcmc.run()
    mcmc.run()
    assert len(mcmc.get_samples()["U"]) == 20


@pytest.mark.parametrize("scale", [1e-25, 1e-200, 1e25, 1e150])
def test_extreme_scales(scale):
    draws = HouseholderTransform(4, 2)(scale * torch.randn(100, 7))
    assert constraints.stiefel.check(draws).all()
    if scale < 1:
        assert constraints.stiefel.check(MatrixLangevin(-scale * torch.eye(3, 2)).sample((50,))).all()


def test_householder_chart_moves_away_from_the_identity():
    """A frame of unit vectors is the most natural start; the chart must be smooth there."""
    transform = HouseholderTransform(5, 2)
    z = transform.inv(torch.eye(5, 2)).clone().requires_grad_()
    assert torch.autograd.gradcheck(transform, (z,))
    (gradient,) = torch.autograd.grad((transform(z) * torch.eye(5, 2).flip(0)).sum(), z)
    assert gradient.norm() > 0.1


@pytest.mark.parametrize(
    ("expected", "call"),
    [
        ("F has entries that are not finite", lambda: MatrixLangevin(torch.full((3, 1), torch.inf)).sample()),
        ("expected float32 or float64", lambda: MatrixLangevin(torch.eye(3, 2).half())),
        ("expected a tensor", lambda: MatrixLangevin([[1.0], [0.0]])),
        ("expected integers", lambda: StiefelUniform(4.0, 2)),
        ("expected torch.float32 or torch.float64", lambda: StiefelUniform(4, 2, dtype=torch.float16)),
        ("trajectory_length=inf", lambda: OHMC(concentrated, trajectory_length=math.inf)),
        ("min_stepsize=2", lambda: OHMC(concentrated, min_stepsize=2, max_stepsize=1)),
        ("num_chains=2.5", lambda: MCMC(OHMC(concentrated), 10, num_chains=2.5)),
        ("warmup_steps=-1", lambda: MCMC(OHMC(concentrated), 10, -1)),
        ("save_params names ['q']", lambda: run(OHMC(concentrated), save_params=["q"])),
        ("Site 'U': the initial value", lambda: run(OHMC(concentrated), initial_params={"U": 0.0})),
        (
            "Site 'U': the initial value",
            lambda: run(OHMC(concentrated), initial_params={"U": torch.eye(4, 2).int()}),
        ),
    ],
)
def test_sentences(expected, call):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert expected in str(error.value)


@pytest.mark.long
def test_hopeless_rejection_gives_up_soon():
    with pytest.raises(RuntimeError, match="no accepted proposal"):
        MatrixLangevin(1000.0 * torch.eye(12, 12)).sample((1,))


def test_odd_values_are_off_the_manifold():
    for value in (torch.eye(3, 2).int(), torch.zeros(3, 0), torch.eye(3, 2) + 0j, torch.eye(2, 3), torch.ones(3)):
        assert not constraints.stiefel.check(value).any()
    assert MatrixLangevin(torch.eye(3, 2)).sample((0,)).shape == (0, 3, 2)
    assert StiefelUniform(4, 2).sample().view(-1).shape == (8,)


def test_a_deterministic_site_may_be_nan():
    """It is observed in Pyro's eyes, but no datum."""

    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.deterministic("root", x.sqrt())

    mcmc = run(OHMC(model), num_samples=20, warmup_steps=20, num_chains=4)
    assert mcmc.get_samples(deterministic=True)["root"].isnan().any()
