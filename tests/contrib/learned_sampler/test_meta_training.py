"""Scores from draws, the losses, and the training of a sampler."""

from dataclasses import replace

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_manifold.contrib.learned_sampler import Scaling
from pyro_manifold.contrib.learned_sampler.training import PartlyLive, Unrolled, divergence
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MetaSampler, MetaTask, MetaTraining, TrainingSettings, stein_scores, train_meta_sampler

COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 2.0]], dtype=torch.float64)


def relative_error(scores, exact):
    return float((scores - exact).square().sum() / exact.square().sum())


@pytest.mark.parametrize(
    "scale", [1e-3, pytest.param(1.0, marks=pytest.mark.long), pytest.param(1e3, marks=pytest.mark.long)]
)
def test_scores_of_a_gaussian(scale):
    """On the whole they are right; each one's error falls as draws become more, and the unit does not matter."""
    distribution = dist.MultivariateNormal(torch.ones(2), COVARIANCE)
    errors = []
    for n in (50, 800):
        draws = distribution.sample((10, n))
        exact = -(draws - 1) @ torch.linalg.inv(COVARIANCE) / scale
        scores = stein_scores(scale * draws)
        errors.append(relative_error(scores, exact))
    assert errors[1] < 0.5 * errors[0]
    assert abs(float((scores * exact).sum() / exact.square().sum()) - 1) < 0.1


def test_sets_of_draws_are_separate():
    draws = torch.randn(3, 30, 4)
    torch.testing.assert_close(stein_scores(draws)[1], stein_scores(draws[1]))


@pytest.mark.long
def test_the_gradient_of_the_divergence():
    r"""The divergence of w·z from z, standard normal, has the derivative $w - 1/w$ in each coordinate."""
    for w in (0.5, 1.0, 2.0):
        scale = torch.tensor(w, requires_grad=True)
        draws = scale * torch.randn(50, 300, 2)
        (found,) = torch.autograd.grad(divergence(draws, draws.detach()).surrogate, scale)
        assert abs(float(found) - (w - 1 / w)) < 0.1 * max(w, 1 / w)
        past = w * torch.randn(50, 300, 2)
        (found,) = torch.autograd.grad(divergence(scale * draws.detach() / w, draws.detach(), past).surrogate, scale)
        assert abs(float(found) - (w - 1 / w)) < 0.1 * max(w, 1 / w)


def test_the_gradient_of_the_divergence_in_a_narrow_coordinate():
    """A hundred times narrower than the other: a kernel of one width for both would not see it."""
    widths = torch.tensor([0.05, 5.0])
    scale = torch.tensor([0.5, 0.5], requires_grad=True)
    draws = scale * widths * torch.randn(50, 300, 2)
    (found,) = torch.autograd.grad(divergence(draws, draws.detach() / widths**2).surrogate, scale)
    torch.testing.assert_close(2 * found, torch.tensor([-1.5, -1.5]), rtol=0.1, atol=0)


def test_marginal_scores_see_the_width_of_many_coordinates():
    r"""Ten draws of w = 2 standard normals in 2,000 dimensions: $w - 1/w$, of which joint scores see w alone."""
    scale = torch.tensor(2.0, requires_grad=True)
    draws = scale * torch.randn(10, 10, 2000)
    found = [
        float(
            torch.autograd.grad(divergence(draws, draws.detach(), marginal=each).surrogate, scale, retain_graph=True)[0]
        )
        for each in (False, True)
    ]
    assert abs(found[0] - 2) < 0.05
    assert abs(found[1] - 1.5) < 0.15


def gaussian():
    pyro.sample("x", dist.Normal(torch.zeros(3), torch.tensor([0.4, 0.8, 1.0])).to_event(1))


def on_a_manifold():
    pyro.sample("U", StiefelUniform(4, 2))


OPTIONS = {"chains": 12, "steps": 20, "segments": 2, "truncation": 10, "burn_in": 10, "chains_within": 3}


def test_draws_are_differentiated_with_constant_inputs():
    """Through one window, against differences: the networks' inputs are those of the unchanged weights."""
    training_settings = TrainingSettings(0.1, chains=4, truncation=2, thinning=1, chains_within=2)
    sampler = MetaSampler.random(3, 0.5, torch.Generator().manual_seed(0), step_size=0.1, dimension=3)

    def last_draw(offset):
        task = Unrolled(MetaTask(gaussian), training_settings, 0)
        live = sampler.with_tensors({**sampler.tensors, "curl offset": offset})
        return task.window(live)[0][0]

    offset = sampler.curl.offset.clone().requires_grad_()
    # In the first step nothing that the networks see has changed with the weights.
    (found,) = torch.autograd.grad(last_draw(offset).sum(), offset)
    with torch.no_grad():
        difference = (last_draw(offset + 1e-6).sum() - last_draw(offset - 1e-6).sum()) / 2e-6
    torch.testing.assert_close(found, difference.to(found), rtol=1e-6, atol=1e-8)
    assert abs(float(found)) > 1e-3


def test_a_share_of_coordinates_has_the_gradient_of_all_on_average():
    energy, r, g = torch.randn(2), torch.randn(2, 40), torch.randn(2, 40)
    wanted = torch.randn(5, 2, 40)
    random = torch.Generator().manual_seed(0)
    sampler = MetaSampler.random(3, 0.5, random)
    offset = sampler.curl.offset.clone().requires_grad_()
    live = sampler.with_tensors({**sampler.tensors, "curl offset": offset, "friction offset": 0.3 * offset})

    def gradient(sampler):
        found = sampler.coefficients(energy, r, g, Scaling(40))
        for value, expected in zip(found, live.coefficients(energy, r, g, Scaling(40)), strict=True):
            torch.testing.assert_close(value, expected)
        return torch.autograd.grad((torch.stack(list(found)) * wanted).sum(), offset, retain_graph=True)[0]

    each = torch.stack([gradient(PartlyLive(live, 0.25, random)) for _ in range(400)])
    error = each.std() / 400**0.5
    assert error > 0
    assert abs(each.mean() - gradient(live)) < 4 * error


def test_sentences_of_tasks_and_scores():
    with pytest.raises(ValueError, match="args=3, expected a tuple"):
        MetaTask(gaussian, args=3)
    with pytest.raises(ValueError, match="kwargs=3, expected a dictionary"):
        MetaTask(gaussian, kwargs=3)
    with pytest.raises(ValueError, match="init_strategy=3, expected a function of a site"):
        MetaTask(gaussian, init_strategy=3)
    with pytest.raises(ValueError, match="args and data_loader are both given, expected one of them"):
        MetaTask(gaussian, args=(1,), data_loader=[1])
    with pytest.raises(ValueError, match=r"draws have the shape \(1, 3\), expected"):
        stein_scores(torch.randn(1, 3))


def weights(sampler):
    return torch.cat([value.flatten() for value in sampler.tensors.values()])


def test_training_is_deterministic_and_continues_number_for_number(tmp_path):
    def train(**options):
        torch.rand(3)  # what others draw changes nothing
        return train_meta_sampler([gaussian], **{"step_size": 0.05, "disable_progbar": True, **OPTIONS, **options})

    whole = train(rounds=2)
    assert not torch.equal(weights(whole), weights(train(rounds=2, seed=1)))
    train(rounds=1, checkpoint=tmp_path / "training.npz")
    resumed = train(rounds=2, checkpoint=tmp_path / "training.npz")
    assert torch.equal(weights(whole), weights(resumed))
    assert whole.fingerprint == resumed.fingerprint
    for name, before, now in (("step_size", 0.05, 0.1), ("hidden", 10, 3), ("constant_friction", 0.01, 0.1)):
        sentence = f"was trained with {name}={before}, and this training has {now}: use the same"
        with pytest.raises(ValueError, match=sentence):
            train(rounds=3, checkpoint=tmp_path / "training.npz", **{name: now})
    with pytest.raises(ValueError, match="has 2 rounds, and rounds=1: ask for as many or more"):
        train(rounds=1, checkpoint=tmp_path / "training.npz")
    fixed = replace(whole, gradient_scale=2.0)
    with pytest.raises(ValueError, match="was trained with gradient_scale=None, and this training"):
        train(rounds=3, checkpoint=tmp_path / "training.npz", sampler=fixed)


@pytest.mark.long
def test_training_makes_the_losses_smaller():
    """Steps a twentieth of what the posterior stands: the sampler has to become faster."""
    training = MetaTraining([gaussian], TrainingSettings(0.02, learning_rate=0.02, **{**OPTIONS, "chains": 30}))
    first = [training.advance()["in-chain"] for _ in range(5)]
    for _ in range(20):
        training.advance()
    last = [training.advance()["in-chain"] for _ in range(5)]
    assert sum(last) < 0.7 * sum(first)
    numbers = torch.tensor([1.5]), torch.zeros(1, 3)
    assert float(training.sampler.curl.value(*numbers).mean()) > 0.3


def test_the_bar_has_the_losses(capfd):
    train_meta_sampler([gaussian], step_size=0.05, rounds=1, **OPTIONS)
    assert "cross=" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)])
def test_tasks_with_data(dtype):
    torch.set_default_dtype(dtype)
    x = torch.randn(100)

    def model(x):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 100, subsample_size=len(x)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=x)

    task = MetaTask(model, data_loader=[x[:20], x[20:40]], data_size=100)
    sampler = train_meta_sampler([task, gaussian], step_size=0.02, rounds=2, disable_progbar=True, **OPTIONS)
    assert (sampler.dimension, sampler.data_size) == (1, 100)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"step_size": 0.0}, "step_size=0.0"),
        ({"chains": 2}, "chains=2, expected at least 4"),
        ({"thinning": 30}, "thinning=30, expected at most truncation=20"),
        ({"within": -1.0}, "within=-1.0"),
        ({"fraction": 0.0}, r"fraction=0.0, expected a number in \(0, 1\]"),
        ({"burn_in": -1}, "burn_in=-1"),
        ({"scores": "all"}, "scores='all', expected 'joint' or 'marginal'"),
        ({"speed": 3}, "train_meta_sampler has no argument 'speed'"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": gaussian}, "expected a list of Pyro models or MetaTask"),
        ({"sampler": "gaussian"}, "sampler='gaussian', expected a MetaSampler or None"),
        ({"step_size": 1e30}, r"not finite with step_size=1e\+30: choose a smaller step_size"),
        ({"checkpoint": "/nowhere/training.npz"}, "There is no folder /nowhere for training.npz"),
        ({"tasks": ["model"]}, "model='model', expected a Pyro model"),
        ({"tasks": [gaussian, lambda: None]}, "Task 1 has no continuous site outside of manifolds"),
        ({"tasks": [on_a_manifold]}, "Task 0 has no continuous site outside of manifolds"),
        ({"constant_friction": 0.0}, "constant_friction=0.0"),
        ({"steps": 10}, "truncation=20, expected at most steps=10"),
        ({"gradient_scale": 0.0}, "gradient_scale=0.0"),
        ({"gradient_scale": 9.0, "sampler": MetaSampler.random(2)}, "gradient_scale=9.0 is the unit of new networks"),
        ({"checkpoint": 3}, "3: expected the path of a file"),
        ({"command": 3}, "command=3, expected a string"),
    ],
)
def test_one_sentence(options, sentence):
    with pytest.raises((ValueError, FileNotFoundError), match=sentence) as error:
        train_meta_sampler(**{"tasks": [gaussian], "step_size": 0.1, "rounds": 1, "disable_progbar": True, **options})
    assert "\n" not in str(error.value)


def test_chains_that_diverge_are_reported():
    """Steps of three times the narrowest direction, at which Euler's scheme is unstable, and by half of it."""
    with pytest.warns(UserWarning, match="The chains of task 0 diverged in its last round.*below 1.2"):
        train_meta_sampler([gaussian], step_size=1.2, rounds=2, disable_progbar=True, **OPTIONS)
    train_meta_sampler([gaussian], step_size=0.2, rounds=2, disable_progbar=True, **OPTIONS)


def test_training_begins_with_a_friction_of_ones_choosing():
    """With readouts near 0, before anything is learned, a step takes about this share of the momentum."""
    training = MetaTraining([gaussian], TrainingSettings(0.05, **OPTIONS), constant_friction=0.3)
    numbers = torch.tensor([1.0]), torch.ones(1, 3), torch.ones(1, 3)
    found = 0.05 * training.sampler.coefficients(*numbers, Scaling(3)).friction
    torch.testing.assert_close(found, torch.full((1, 3), 0.3), rtol=0, atol=0.1)
    assert bool((found > 0.299).all())


def test_training_keeps_a_fixed_unit_of_gradients():
    sampler = train_meta_sampler(
        [gaussian], step_size=0.05, rounds=1, gradient_scale=2.0, disable_progbar=True, **OPTIONS
    )
    assert sampler.gradient_scale == 2.0
    other = train_meta_sampler([gaussian], step_size=0.05, rounds=1, disable_progbar=True, **OPTIONS)
    assert not torch.equal(weights(sampler), weights(other))


def test_a_sampler_can_be_trained_further():
    begun = replace(MetaSampler.random(4, dimension=3, step_size=0.05), energy_scale=2.0)
    training = MetaTraining([gaussian], TrainingSettings(0.05, **OPTIONS), begun)
    training.advance()
    assert training.sampler.energy_scale == 2.0
    assert not torch.equal(weights(training.sampler), weights(begun))
