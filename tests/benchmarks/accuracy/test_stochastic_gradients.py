"""The bias of stochastic gradients is what theory says, and its tables are printed."""

import pyro
import pyro.distributions as dist
import pytest

from benchmarks.accuracy import stochastic_gradients
from problems.monte_carlo import assert_mean
from problems.noisy_gradients import exact_variance, gradient_noise
from pyro_manifold.infer import SGHMC
from tests.parameters import long_except


@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
@pytest.mark.parametrize("way", long_except(stochastic_gradients.WAYS, "splitting"))
def test_noise_of_the_gradient_has_the_bias_of_the_linear_recursion(way):
    def model():
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        gradient_noise("x", x, 2.0)

    options = {
        "num_steps": stochastic_gradients.steps_for(way, 0.4),
        "minibatches": "independent",
        "per_chain_minibatches": True,
    }
    draws = stochastic_gradients.draws_of(stochastic_gradients.WAYS[way](SGHMC, model, 0.4, **options), 256, 200)["x"]
    assert_mean(draws, 0.0)
    assert_mean(draws.square(), exact_variance(way, 0.4, 2.0, stochastic_gradients.FRICTION))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The momenta of chains are at a temperature")
def test_tables_of_bias(monkeypatch, capsys):
    """Four, three and nine settings of one scheme with one noise."""
    monkeypatch.setattr(stochastic_gradients, "NOISES", (1.0,))
    monkeypatch.setattr(stochastic_gradients, "WAYS", {"splitting": stochastic_gradients.WAYS["splitting"]})
    stochastic_gradients.main(["--short"])
    assert capsys.readouterr().out.count(" ± ") >= 4 + 3 + 9
