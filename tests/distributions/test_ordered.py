"""Numbers of any positive distribution in decreasing order."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import Ordered
from pyro_manifold.infer import MCMC, OHMC

BASES = {
    "half-normal": lambda: dist.HalfNormal(2.0),
    "half-Cauchy": lambda: dist.HalfCauchy(0.5),
    "log-normal": lambda: dist.LogNormal(0.0, 0.5),
    "gamma": lambda: dist.Gamma(2.0, 1.0),
    "exponential": lambda: dist.Exponential(3.0),
}


@pytest.mark.parametrize("name", BASES)
def test_the_density_is_that_of_all_orders_together(name):
    value = torch.rand(5, 3).sort(-1, descending=True).values
    expected = BASES[name]().log_prob(value).sum(-1) + math.log(6)
    torch.testing.assert_close(Ordered(BASES[name](), 3).log_prob(value), expected)


def test_the_density_integrates_to_one():
    step = 0.01
    grid = torch.arange(step / 2, 8, step)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    density = Ordered(dist.Gamma(3.0, 2.0), 2, validate_args=False).log_prob(torch.stack([first, second], -1)).exp()
    inside = (first > second).double() + 0.5 * (first == second).double()  # the diagonal halves its cells
    assert float((density * inside).sum() * step**2) == pytest.approx(1, abs=1e-4)


def test_exponential_gaps_are_independent_exponentials():
    """Rényi 1953: the gap between the k-th largest and the next has rate k."""
    draws = Ordered(dist.Exponential(2.0), 4).sample((50_000,))
    gaps = draws - torch.cat([draws[:, 1:], torch.zeros(50_000, 1)], -1)
    for k in range(4):
        assert_mean(gaps[:, k], 1 / (2.0 * (k + 1)))
        assert_mean(gaps[:, k].square(), 2 / (2.0 * (k + 1)) ** 2)


def test_batches_plates_and_derivatives():
    rate = torch.tensor([[1.0], [10.0]], requires_grad=True)
    distribution = Ordered(dist.Exponential(rate), 3).expand((2, 4))
    draws = distribution.rsample((5,))
    assert distribution.has_rsample
    assert draws.shape == (5, 2, 4, 3)
    assert constraints.positive_decreasing_vector.check(draws).all()
    assert distribution.log_prob(draws).shape == (5, 2, 4)
    draws.sum().backward()
    assert (rate.grad < 0).all()
    with pyro.plate("groups", 4):
        assert pyro.sample("scales", Ordered(dist.HalfNormal(1.0), 3)).shape == (4, 3)
    assert Ordered(dist.HalfNormal(torch.tensor(1.0, dtype=torch.float32)), 2).sample().dtype == torch.float32


@pytest.mark.parametrize("kernel", ["OHMC", "NUTS"])
def test_samplers_draw_from_it(kernel):
    def model():
        pyro.sample("s", Ordered(dist.Gamma(3.0, 2.0), 3))

    if kernel == "OHMC":
        mcmc = MCMC(OHMC(model), 300, 200, num_chains=16, disable_progbar=True)
    else:
        mcmc = MCMC(NUTS(model), 200, 100, disable_progbar=True)
    mcmc.run()
    draws = mcmc.get_samples(group_by_chain=True)["s"]
    assert constraints.positive_decreasing_vector.check(draws).all()
    exact = dist.Gamma(3.0, 2.0).sample((100_000, 3)).sort(-1, descending=True).values
    for k in range(3):
        assert_mean(draws[..., k], exact[:, k].mean(), float(exact[:, k].std()) / len(exact) ** 0.5)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"^Ordered: size=0, expected a positive integer"):
        Ordered(dist.HalfNormal(1.0), 0)
    with pytest.raises(ValueError, match=r"^Ordered: base has the support Real\(\), expected .* positive numbers"):
        Ordered(dist.Normal(0.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"^Ordered: base has the support .*, expected .* positive numbers"):
        Ordered(dist.Uniform(0.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"^Ordered: base is .*, expected a distribution of single numbers"):
        Ordered(dist.HalfNormal(torch.ones(3)).to_event(1), 3)
