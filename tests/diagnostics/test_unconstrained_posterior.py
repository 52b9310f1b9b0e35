"""Exported coordinates are those in which kernels move: the maps to the supports take them to the draws."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.distributions import biject_to, constraints

from pyro_manifold.density import Program
from pyro_manifold.diagnostics import Posterior, to_inferencedata
from pyro_manifold.distributions import StiefelUniform

CHAINS, DRAWS = 2, 5


def model():
    pyro.sample("location", dist.Normal(0.0, 1.0))
    width = pyro.sample("width", dist.LogNormal(0.0, 1.0))
    pyro.sample("below", dist.Uniform(0.0, width))
    pyro.sample("correlation", dist.LKJCholesky(3, 1.0))
    pyro.sample("U", StiefelUniform(3, 2))
    with pyro.plate("groups", 4):
        pyro.sample("shares", dist.Dirichlet(torch.ones(3)))


@pytest.fixture
def exported():
    posterior = Posterior.of(draws(), Program(model))
    coords = {"group": ["a", "b", "c", "d"], "row": [1, 2, 3]}
    dims = {"shares": ["group", "share"], "correlation": ["row", "column"]}
    return to_inferencedata(posterior, unconstrained=True, coords=coords, dims=dims)


def draws():
    each = [[pyro.poutine.trace(model).get_trace() for _ in range(DRAWS)] for _ in range(CHAINS)]
    names = each[0][0].stochastic_nodes
    return {
        name: torch.stack([torch.stack([trace.nodes[name]["value"] for trace in chain]) for chain in each])
        for name in names
        if name != "groups"
    }


def test_coordinates_are_mapped_to_the_draws(exported):
    found, posterior = exported["unconstrained_posterior"], exported["posterior"]
    values = {name: torch.as_tensor(found[name].values) for name in found.data_vars}
    drawn = {name: torch.as_tensor(posterior[name].values) for name in posterior.data_vars}
    assert set(values) == set(drawn) - {"U"}
    supports = {
        "location": constraints.real,
        "width": constraints.positive,
        "below": constraints.interval(0.0, drawn["width"]),
        "correlation": constraints.corr_cholesky,
        "shares": constraints.simplex,
    }
    for name, support in supports.items():
        torch.testing.assert_close(biject_to(support)(values[name]), drawn[name])


def test_dimensions_are_those_of_the_posterior_where_sizes_are(exported):
    found = exported["unconstrained_posterior"]
    assert found["shares"].dims == ("chain", "draw", "group", "shares_coordinate")
    assert found["correlation"].dims == ("chain", "draw", "correlation_coordinate")
    assert found["shares"].coords["group"].values.tolist() == ["a", "b", "c", "d"]


def test_a_model_and_all_its_sites_are_needed():
    with pytest.raises(ValueError, match="unconstrained=True needs a model"):
        to_inferencedata(draws(), unconstrained=True)
