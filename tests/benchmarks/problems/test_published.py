"""Published posteriors can be evaluated and differentiated where chains begin, and written for many at once."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from benchmarks.problems.published import published
from benchmarks.problems.published.time_series import discounted, product_of_logs
from pyro_manifold.infer import OHMC
from tests.parameters import long_except

POSTERIORS = published()
over_posteriors = pytest.mark.parametrize("name", long_except(POSTERIORS, "rats", "seeds", "horseshoe"))


@over_posteriors
def test_density_gradient_and_functionals_where_chains_begin(name):
    run = OHMC(POSTERIORS[name].model).prepare(2, 0, None)
    assert torch.isfinite(run.state.energy).all()
    assert all(torch.isfinite(values).all() for values in run.state.gradient.values())
    draws = {site: values.unsqueeze(1).expand(-1, 3, *values.shape[1:]) for site, values in run.values.items()}
    functionals = POSTERIORS[name].functionals(draws)
    assert functionals
    assert {tuple(values.shape) for values in functionals.values()} == {(2, 3)}


def density(model, values):
    """Return the log density of given values of all sites that are not data, summed over any plates."""
    return poutine.trace(poutine.condition(model, values)).get_trace().log_prob_sum()


def latent(model):
    """Return draws from the prior of all sites that are not data."""
    nodes = poutine.trace(model).get_trace().iter_stochastic_nodes()
    return {site: node["value"] for site, node in nodes if not site_is_subsample(node)}


@over_posteriors
def test_the_density_of_several_in_a_plate_is_the_sum_of_theirs(name):
    model = POSTERIORS[name].model
    together = pyro.plate("particles", 3, dim=-3)(model)
    shapes = {site: value.shape for site, value in latent(model).items()}
    values = latent(together)
    each = [{site: values[site][k].reshape(shape) for site, shape in shapes.items()} for k in range(3)]
    torch.testing.assert_close(density(together, values), sum(density(model, one) for one in each))


def test_discounted_sums_are_those_of_the_recursion():
    values, factor = torch.randn(3, 10), torch.rand(3)
    found, state = discounted(values, factor), torch.zeros(3)
    for time in range(10):
        state = factor * state + values[:, time]
        torch.testing.assert_close(found[:, time], state)


def test_products_of_logarithms_are_those_of_the_matrices():
    matrices = torch.rand(3, 8, 2, 2)
    expected = torch.stack([torch.linalg.multi_dot(list(each)) for each in matrices])
    torch.testing.assert_close(product_of_logs(matrices.log()).exp(), expected)
