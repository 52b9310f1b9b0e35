"""Benchmarks of stochastic gradients, small."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from benchmarks.stochastic import bias, meta_gaussian, meta_mnist, meta_music, mnist
from problems.monte_carlo import assert_mean
from problems.noisy_gradients import exact_variance, gradient_noise
from pyro_manifold.infer import SGHMC


@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
@pytest.mark.parametrize("way", bias.WAYS)
def test_noise_of_the_gradient_has_the_bias_of_the_linear_recursion(way):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        gradient_noise("x", x, 2.0)

    options = {"num_steps": bias.steps_for(way, 0.4), "minibatches": "independent", "own_minibatches": True}
    draws = bias.draws_of(bias.WAYS[way](SGHMC, model, 0.4, **options), 256, 200)["x"]
    assert_mean(draws, 0.0)
    assert_mean(draws.square(), exact_variance(way, 0.4, 2.0, bias.FRICTION))


def test_tables_of_bias(capsys):
    bias.on_minibatches(8, 4)
    assert capsys.readouterr().out.count("±") == 9


@pytest.mark.parametrize("network", mnist.NETWORKS)
def test_digits(network, capsys):
    mnist.main(["--short", "--seeds", "1", "--network", network])
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert float(row[-3]) > 12  # of 10 classes; the low-rank network has descended little


def test_effective_sizes_of_an_autoregression():
    r""":math:`x_{t+1} = 0.8 x_t + 0.6 z`: one in :math:`(1 + 0.8) / (1 - 0.8)` draws counts."""
    x = torch.randn(40, 1, 3)
    steps = [x]
    for _ in range(4999):
        steps.append(0.8 * steps[-1] + 0.6 * torch.randn(40, 1, 3))
    assert_mean(meta_gaussian.effective_sizes(torch.cat(steps, 1)) / 5000, 1 / 9, 0.003)


@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
def test_a_learned_sampler_of_gaussians(tmp_path, capsys):
    meta_gaussian.main(["--short", "--seeds", "1"])
    assert capsys.readouterr().out.count("SGHMC") >= 1


def test_a_learned_sampler_of_digits(tmp_path, capsys):
    path = str(tmp_path / "sampler.npz")
    meta_mnist.main(["--short", "--train", path, "--rounds", "1"])
    meta_mnist.main(["--short", "--sampler", path, "--seconds", "0.5", "--seeds", "1"])
    assert capsys.readouterr().out.count("pSGLD") >= 1


def test_step_sizes_are_looked_for_until_neither_way_is_better():
    for best in (0.1, 1.0, 5.0):
        found, tried = meta_mnist.best_step_size(lambda x, best=best: abs(math.log(x / best)), 1.0, 2)
        assert abs(math.log2(found / best)) <= 0.5
        assert min(tried) < found < max(tried)


def test_a_gated_recurrent_unit_is_that_of_torch():
    ours, theirs = meta_music.Recurrent(5), torch.nn.GRU(88, 5, batch_first=True)
    with torch.no_grad():
        for mine, name in ((ours.heard, "ih"), (ours.state, "hh")):
            # Theirs keeps the old state by the second gate, and so does ours.
            mine.weight.copy_(getattr(theirs, f"weight_{name}_l0"))
            mine.bias.copy_(getattr(theirs, f"bias_{name}_l0"))
        notes = torch.bernoulli(torch.full((3, 6, 88), 0.1))
        before = torch.nn.functional.pad(notes[:, :-1], (0, 0, 1, 0))
        torch.testing.assert_close(ours(notes), ours.out(theirs(before)[0]))


def test_a_learned_sampler_of_music(tmp_path, capsys):
    path, figure = str(tmp_path / "sampler.npz"), tmp_path / "curves.png"
    meta_music.main(["--short", "--train", path, "--rounds", "1", "--units", "4"])
    options = ["--units", "4", "--seconds", "0.4", "--chains", "2", "--collection", "Nottingham"]
    meta_music.main(["--short", "--sampler", path, "--figure", str(figure), *options])
    assert capsys.readouterr().out.count("pSGLD") >= 1
    assert figure.exists()
