"""Numbers of any positive distribution in decreasing order."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import NUTS
from torch.distributions import biject_to, transform_to

from problems.monte_carlo import assert_mean
from pyro_manifold import constraints
from pyro_manifold.distributions import Ordered, OrderedHalfNormal
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
    if name == "half-normal":
        torch.testing.assert_close(OrderedHalfNormal(3, 2.0).log_prob(value), expected)


def test_exponential_gaps_are_independent_exponentials():
    """Rényi 1953: the gap between the k-th largest and the next has rate k."""
    draws = Ordered(dist.Exponential(2.0), 4).sample((50_000,))
    gaps = draws - torch.cat([draws[:, 1:], torch.zeros(50_000, 1)], -1)
    for k in range(4):
        assert_mean(gaps[:, k], 1 / (2.0 * (k + 1)))
        assert_mean(gaps[:, k].square(), 2 / (2.0 * (k + 1)) ** 2)


def test_inverse_and_jacobian_of_the_transform():
    for registry in (biject_to, transform_to):
        transform, x = registry(constraints.positive_decreasing_vector), torch.randn(4)
        y = transform(x)
        assert constraints.positive_decreasing_vector.check(y)
        torch.testing.assert_close(transform.inv(y), x)
        jacobian = torch.autograd.functional.jacobian(transform, x)
        torch.testing.assert_close(transform.log_abs_det_jacobian(x, y), torch.linalg.slogdet(jacobian).logabsdet)


@pytest.mark.parametrize("kernel", ["OHMC", pytest.param("NUTS", marks=pytest.mark.long)])
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
    with pytest.raises(ValueError, match=r"^OrderedHalfNormal: size=0, expected a positive integer"):
        OrderedHalfNormal(0)
    with pytest.raises(ValueError, match=r"^Ordered: base has the support Real\(\), expected .* positive numbers"):
        Ordered(dist.Normal(0.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"^Ordered: base has the support .*, expected .* positive numbers"):
        Ordered(dist.Uniform(0.0, 1.0), 2)
    with pytest.raises(ValueError, match=r"^Ordered: base is .*, expected a univariate distribution"):
        Ordered(dist.HalfNormal(torch.ones(3)).to_event(1), 3)
    assert not constraints.positive_decreasing_vector.check(torch.tensor(1.0))
