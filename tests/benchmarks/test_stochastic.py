"""Benchmarks of stochastic gradients, small."""

import pyro
import pyro.distributions as dist
import pytest

from benchmarks.stochastic import bias, mnist
from problems.monte_carlo import assert_mean
from problems.noisy_gradients import exact_variance, gradient_noise
from pyro_manifold.infer import SGHMC


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
