"""Coordinates of location-scale sites between the model as written and its non-centred form."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import transforms
from pyro.infer.reparam import LocScaleReparam

from pyro_manifold.density import CENTREDNESS, Program, centred

LOG_SCALE = dist.Normal(0.0, 1.0)


def parents():
    return pyro.sample("loc", dist.Normal(1.0, 2.0)), pyro.sample("scale", dist.LogNormal(0.0, 0.5))


def affine(loc, scale):
    return dist.TransformedDistribution(dist.Normal(0.5, 2.0).expand([3]), [transforms.AffineTransform(loc, -scale)])


def affine_log(loc, scale):
    both = [transforms.AffineTransform(loc, scale), transforms.ExpTransform()]
    return dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([3]), both)


# Distributions of x given location and scale, three elements each, and location and scale of its coordinate.
FAMILIES = {
    "Normal": (lambda m, s: dist.Normal(m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "StudentT": (lambda m, s: dist.StudentT(4.0, m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "Laplace": (lambda m, s: dist.Laplace(m, s * torch.ones(3)).to_event(1), lambda m, s: (m, s)),
    "Cauchy": (lambda m, s: dist.Cauchy(m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "Gumbel": (lambda m, s: dist.Gumbel(m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "Logistic": (lambda m, s: dist.Logistic(m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "AsymmetricLaplace": (
        lambda m, s: dist.AsymmetricLaplace(m, s, torch.tensor(2.0)).expand([3]).to_event(1),
        lambda m, s: (m, s),
    ),
    "LogNormal": (lambda m, s: dist.LogNormal(m, s).expand([3]).to_event(1), lambda m, s: (m, s)),
    "affine": (lambda m, s: affine(m, s).to_event(1), lambda m, s: (m - 0.5 * s, 2 * s)),
    "affine, then exp": (lambda m, s: affine_log(m, s).to_event(1), lambda m, s: (m, s)),
    "masked": (lambda m, s: dist.Normal(m, s).expand([3]).mask(torch.tensor(True)).to_event(1), lambda m, s: (m, s)),
    "location alone": (lambda m, s: dist.Normal(m, 0.3).expand([3]).to_event(1), lambda m, s: (m, 0.3 + 0 * s)),
    "scale alone": (lambda m, s: dist.Normal(0.0, s).expand([3]).to_event(1), lambda m, s: (0 * m, s)),
}


def model_of(family):
    def model():
        x = pyro.sample("x", FAMILIES[family][0](*parents()))
        pyro.sample("y", dist.Normal(x.abs().log().sum(-1), 1.0), obs=torch.tensor(0.3))

    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_coordinates_and_their_density(family):
    """The map is the formula, its inverse leads back, and the density has the determinant that autograd finds."""
    target = centred(Program(model_of(family)).target)
    assert target.shapes == {"x": (3,)}
    sites, c = target.full.draw(), torch.tensor([0.0, 0.4, 1.0])
    values = target.full.values(sites)
    loc, scale = FAMILIES[family][1](values["loc"], values["scale"])
    position = target.at(sites, c)
    torch.testing.assert_close(position["x"], c * loc + (sites["x"] - loc) * scale ** (c - 1))
    torch.testing.assert_close(target.sites(position), sites)
    torch.testing.assert_close(target.values(position), values)

    def as_written(x):
        return target.sites({**position, "x": x})["x"]

    log_determinant = torch.autograd.functional.jacobian(as_written, position["x"]).det().abs().log()
    torch.testing.assert_close(target.potential_fn(position), target.full.potential_fn(sites) - log_determinant)


def test_the_density_is_that_of_pyros_reparametrisation():
    """Up to the names of sites, and in a hierarchy of two levels."""
    c = torch.tensor([0.2, 0.7, 0.7])

    def model():
        loc, scale = parents()
        group = pyro.sample("group", dist.StudentT(5.0, loc, 2.0))
        with pyro.plate("elements", 2):
            pyro.sample("x", dist.Normal(group, scale))

    config = {"group": LocScaleReparam(c[0], ["df"]), "x": LocScaleReparam(c[1])}
    theirs = Program(poutine.reparam(model, config)).target
    target = centred(Program(model).target)
    assert list(target.shapes) == ["group", "x"]
    for _ in range(3):
        sites = theirs.draw()
        names = {"group": "group_decentered", "x": "x_decentered"}
        ours = {name: sites[names.get(name, name)] for name in ("group", "loc", "scale", "x")}
        torch.testing.assert_close(target.potential_fn({**ours, CENTREDNESS: c}), theirs.potential_fn(sites))


def test_positions_of_any_number_of_chains_and_draws():
    target = centred(Program(model_of("Normal")).target)
    draws = [target.full.draw() for _ in range(6)]
    sites = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    c = torch.rand(6, 3)
    each = [target.at(draw, row) for draw, row in zip(draws, c, strict=True)]
    torch.testing.assert_close(target.at(sites, c)["x"], torch.stack([one["x"] for one in each]))
    two = {name: x.reshape(2, 3, *x.shape[1:]) for name, x in sites.items()}
    there = target.at(two, c.reshape(2, 3, 3))
    assert there["x"].shape == (2, 3, 3)
    torch.testing.assert_close(target.sites(there), two)


def test_chains_begin_as_written():
    target = centred(Program(model_of("LogNormal")).target)
    sites = target.full.draw()
    position = target.started(sites)
    assert torch.equal(position["x"], sites["x"])
    assert bool((position[CENTREDNESS] == 1).all())
    torch.testing.assert_close(target.potential_fn(position), target.full.potential_fn(sites))
    assert set(target.draw()) == {*sites, CENTREDNESS}


def fixed():
    pyro.sample("x", dist.Normal(torch.tensor(1.0, requires_grad=True), 2.0))


def of_data():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(0.3))


def of_another_family():
    pyro.sample("x", dist.Gamma(parents()[1], 1.0))


def on_the_sphere():
    loc, _ = parents()
    pyro.sample("x", dist.ProjectedNormal(torch.ones(3) * loc))


def of_a_discrete_site():
    z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
    loc, scale = parents()
    pyro.sample("x", dist.Normal(loc + z, scale))


def with_a_support_that_depends_on_another():
    loc, scale = parents()
    pyro.sample("x", dist.Normal(loc, scale))
    pyro.sample("u", dist.Uniform(0.0, scale))


@pytest.mark.parametrize(
    "model",
    [fixed, of_data, of_another_family, on_the_sphere, of_a_discrete_site, with_a_support_that_depends_on_another],
)
def test_models_without_a_site_to_centre(model):
    assert centred(Program(model).target) is None


def test_a_transform_of_ones_own_keeps_its_coordinates():
    def model():
        loc, scale = parents()
        for name in ("x", "other"):
            pyro.sample(name, dist.LogNormal(loc, scale))

    own = {"x": transforms.SoftplusTransform().inv}
    assert list(centred(Program(model).with_options(transforms=own).target).shapes) == ["other"]


def test_the_density_beyond_that_of_the_model_as_written():
    target = centred(Program(model_of("LogNormal")).target)
    sites, c = target.full.draw(), torch.tensor([0.0, 0.4, 1.0])
    position = target.at(sites, c)
    expected = target.full.potential_fn(sites) - target.potential_fn(position)
    torch.testing.assert_close(target.log_factor(position), expected)
    two = {name: torch.stack([x, x]) for name, x in position.items()}
    torch.testing.assert_close(target.log_factor(two), expected.expand(2))
