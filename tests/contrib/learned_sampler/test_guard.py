"""The guard of NNSGHMC: a sampler whose chains leave is caught, a good one draws the same as without; training."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch

from problems.monte_carlo import assert_mean
from pyro_manifold.contrib.learned_sampler import HOT, LeftPosteriorError, Record, Window, have_left
from pyro_manifold.infer import MCMC, NNSGHMC, MetaSampler, MetaTask, MetaTraining, TrainingSettings

WIDTH, DIMENSION = 0.02, 2000


def scaled(x):
    return x / WIDTH


def narrow():
    r"""Density $e^{-\sqrt{1 + (x/w)^2}}$ of each coordinate: stiff in the middle, with forces of at most 1/w."""
    x = pyro.sample("x", dist.Normal(torch.zeros(DIMENSION), 1.0).to_event(1))
    pyro.factor("narrow", (0.5 * x.square() - (1 + scaled(x).square()).sqrt()).sum())


def sampler(friction=0.1, step_size=0.1):
    """Constant Q = 1 and D, which remove this share of momenta in a step of this size."""
    return MetaSampler.random(4, 0.0, torch.Generator().manual_seed(0), constant_friction=friction, step_size=step_size)


def at_the_mode(site):
    return torch.zeros(site["fn"].shape())


def kernel(step_size, **options):
    settings = {"sampler": sampler(step_size=step_size), "init_strategy": at_the_mode, "num_steps": 25}
    return NNSGHMC(narrow, step_size=step_size, **{**settings, **options})


BAD = 6 * WIDTH
"""The middle of the density throws chains out at steps above 2 w; forces are bounded, so that they stay finite."""


def advanced(run, iterations):
    for _ in range(iterations):
        run.advance()
    return run


def test_chains_that_leave_end_the_run_and_draws_are_kept():
    run = kernel(BAD).prepare(4, 0, None)
    with pytest.raises(LeftPosteriorError, match="left the posterior by step 200: momenta are at a temp") as error:
        advanced(run, 9)
    assert "\n" not in str(error.value)
    assert all(value.isfinite().all() for value in run.values.values())
    mcmc = MCMC(kernel(BAD), 20, 0, num_chains=4, disable_progbar=True)
    with pytest.warns(UserWarning, match="left the posterior"):
        mcmc.run()
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (4, 7, DIMENSION)


def measured(run):
    r"""Temperature, and the mean of $x U'(x)$ of a coordinate, which is 1 for any density."""
    temperatures, products = [], []
    for _ in range(20):
        x = scaled(run.advance()["x"])
        temperatures.append(run.statistics["kinetic_temperature"])
        products.append((x.square() / (1 + x.square()).sqrt()).mean(1))
    return float(torch.stack(temperatures).mean()), float(torch.stack(products).mean())


@pytest.mark.long
def test_in_warmup_steps_are_halved_until_chains_stay():
    run = kernel(BAD).prepare(4, 60, None)
    with pytest.warns(UserWarning, match=r"Chains left the posterior in iteration .* of warm-up") as found:
        advanced(run, 60)
    assert "iteration 8 of warm-up" in str(found[0].message)
    assert "is 1/2 of step_size" in str(found[0].message)
    temperature, product = measured(run)
    assert float(run.statistics["step_size"][0]) < 0.3 * BAD
    assert 0.8 < temperature < 1.3
    assert 0.8 < product < 1.3  # Euler's scheme with steps of a width is not exact
    temperature, product = measured(advanced(kernel(BAD, guard=False).prepare(4, 0, None), 20))
    assert temperature > HOT
    assert product > 5


def test_values_that_are_not_finite_return_in_warmup():
    def steep():
        x = pyro.sample("x", dist.Normal(torch.zeros(DIMENSION), 1.0).to_event(1))
        pyro.factor("steep", -scaled(x).square().square().sum())

    settings = {"sampler": sampler(step_size=BAD), "step_size": BAD, "init_strategy": at_the_mode, "num_steps": 25}
    run = NNSGHMC(steep, **settings).prepare(4, 10, None)
    with pytest.warns(UserWarning, match="Chains left the posterior in iteration .* of warm-up") as found:
        advanced(run, 10)
    assert "iteration 1 of warm-up" in str(found[0].message)
    assert bool(run.values["x"].isfinite().all())
    with pytest.raises(ArithmeticError, match="became NaN or infinite"):
        NNSGHMC(steep, **settings).prepare(4, 0, None).advance()


@pytest.mark.long
@pytest.mark.parametrize("start", [0.0, 30.0])
def test_a_good_sampler_is_left_alone(start):
    """Also from thirty standard deviations away, from where chains fall with hot momenta."""

    def gaussian():
        pyro.sample("x", dist.Normal(torch.zeros(3), torch.tensor([1.0, 0.5, 2.0])).to_event(1))

    random = torch.Generator().manual_seed(1)
    constants = {"constant_curl": 1.5, "curl_friction": 0.3, "constant_friction": 0.5, "dimension": 2}
    good, found = MetaSampler.random(8, 1.0, random, **constants), []
    for guard in (True, False):
        pyro.set_rng_seed(0)
        kernel = NNSGHMC(gaussian, sampler=good, step_size=0.02, num_steps=40, guard=guard)
        mcmc = MCMC(
            kernel, 40, 20, num_chains=256, initial_params={"x": torch.full((256, 3), start)}, disable_progbar=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mcmc.run()
        found.append(mcmc.get_samples(group_by_chain=True)["x"])
    assert torch.equal(*found)
    assert_mean(found[0][..., 1].square(), 0.25)


def test_momenta_that_cool_and_energies_that_fall_are_on_their_way():
    def judged(temperature, before, energy, lowest, dimension=10**4):
        values = [torch.tensor([value]) for value in (temperature, energy, before, lowest)]
        return bool(have_left(Window(*values[:2]), *values[2:], dimension))

    assert judged(8.0, 8.0, 5.0, 4.0)
    assert judged(8.0, 8.0, 3.9e4, 4e4)  # by less than heat
    assert not judged(8.0, 8.0, 3e4, 4e4)  # the energy falls
    assert not judged(5.0, 8.0, 5.0, 4.0)  # they cool
    assert not judged(8.0, 1.0, 5.0, 4.0)  # they were not hot before
    assert not judged(3.0, 3.0, 5.0, 4.0)  # they are warm, of which a warning at the end speaks
    assert not judged(8.0, 8.0, 5.0, 4.0, dimension=1)  # one momentum varies by as much
    assert judged(float("nan"), 1.0, 3.0, 4.0)


@pytest.mark.long
def test_a_halved_run_continues_bit_for_bit():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = advanced(kernel(BAD).prepare(4, 40, None), 9)
        assert Record.of(first.state).halvings.tolist() == [1.0] * 4
        second = kernel(BAD).prepare(4, 40, None)
        second.load_state_dict(first.state_dict())
        for _ in range(12):
            assert torch.equal(first.advance()["x"], second.advance()["x"])


def test_bad_input():
    with pytest.raises(ValueError, match="guard=1, expected True or False"):
        kernel(0.01, guard=1)


# ---- training --------------------------------------------------------------------------------------------------------

OPTIONS = {
    "chains": 8,
    "steps": 100,
    "segments": 4,
    "truncation": 100,
    "thinning": 10,
    "within": 0.0,
    "scores": "marginal",
}


STEP = 8 * WIDTH


class Unpenalised(MetaTraining):
    """The variant in which chains that leave do not enter the gradient."""

    def _update(self, penalties):
        super()._update([])


def narrow_in_fewer_dimensions():
    x = pyro.sample("x", dist.Normal(torch.zeros(200), 1.0).to_event(1))
    pyro.factor("narrow", (0.5 * x.square() - (1 + scaled(x).square()).sqrt()).sum())


def trained_by_lost_chains(cls, segments):
    """A training by windows in which all chains leave; and the temperature of each, from the same start."""
    random = torch.Generator().manual_seed(0)
    begun = MetaSampler.random(4, 0.1, random, constant_friction=0.02, step_size=STEP, dimension=200)
    training = cls([narrow_in_fewer_dimensions], TrainingSettings(STEP, learning_rate=0.02, **OPTIONS), begun)
    (task,), temperatures = training._tasks, []
    for _ in range(segments):
        task.begin(0)
        task._heat, task._lowest = task._heat + 2 * HOT, task._heat  # as if the window before had been hot too
        training._segment(task)
        temperatures.append(float(task.temperature.mean()))
    return training, temperatures


@pytest.mark.long
def test_chains_that_leave_are_penalised_by_their_heat():
    training, temperatures = trained_by_lost_chains(MetaTraining, 4)
    assert training.left > 0
    assert temperatures[-1] < 0.9 * temperatures[0]
    training, temperatures = trained_by_lost_chains(Unpenalised, 2)
    assert temperatures[1] == temperatures[0]
    assert all(torch.equal(w.detach(), training.sampler.tensors[name]) for name, w in training._weights.items())


@pytest.mark.long
def test_a_training_with_steps_that_are_too_long_ends_with_chains_that_stay():
    random = torch.Generator().manual_seed(0)
    begun = MetaSampler.random(4, 0.1, random, constant_friction=0.02, step_size=STEP, dimension=200)
    training = MetaTraining([narrow_in_fewer_dimensions], TrainingSettings(STEP, learning_rate=0.05, **OPTIONS), begun)
    found = []
    while len(found) < 40 and (len(found) < 3 or sum(found[-3:])):
        training.advance()
        found.append(training.left)
    assert found[0] > 0
    assert sum(found[-3:]) == 0


def test_steps_of_training_are_those_of_use():
    def with_data():
        mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("data", -200 * (mean.sum() - 1).square())

    def fewer():
        mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.factor("data", -50 * (mean.sum() - 1).square())

    tasks = [MetaTask(with_data, data_size=400), MetaTask(fewer, data_size=100)]
    short = {**OPTIONS, "steps": 10, "truncation": 10, "thinning": 5}
    training = MetaTraining(tasks, TrainingSettings(0.01, step_factors=(1.0, 1.5), **short))
    found = []
    for number in range(4):
        training.advance()
        found.append(training._tasks[number % 2].step_size)
    assert found == pytest.approx([0.01, 0.02, 0.015, 0.03])
    with pytest.raises(ValueError, match=r"step_factors=\(\), expected a tuple of positive numbers"):
        TrainingSettings(0.01, step_factors=())
