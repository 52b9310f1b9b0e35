"""Published models have one density in Pyro, NumPyro and PyMC, and values of the draws of each package."""

import numpy as np
import pytest
import torch

from benchmarks.problems.expansions import closed_form
from benchmarks.problems.published import published
from benchmarks.problems.published.peers import BATCH, NAMES, PROBLEMS, latent_shapes, log_densities
from pyro_manifold.infer import OHMC
from tests.benchmarks.problems.test_published import density
from tests.benchmarks.requirements import needs
from tests.parameters import long_except

POINTS = 5
over_problems = pytest.mark.parametrize("name", NAMES)


def orthonormal_sites(problem):
    return [site for site, shape in latent_shapes(problem.pyro_model).items() if site in "UV" and len(shape) == 2]


def points(problem):
    """Values where chains begin, and for each orthonormal site, X, its polar factor, the Gaussian matrix "Z of X"."""
    start = OHMC(problem.pyro_model).prepare(POINTS, 0, None).values
    values = {site: value.numpy() for site, value in start.items()}
    for site in orthonormal_sites(problem):
        Z = values[f"Z of {site}"] = np.random.default_rng(0).standard_normal(values[site].shape)
        values[site] = np.stack([closed_form(z, np) for z in Z])
    return [{site: value[k] for site, value in values.items()} for k in range(POINTS)]


def without_prior_of_gaussians(found, point):
    return found + sum(0.5 * (value**2).sum() for site, value in point.items() if site.startswith("Z of"))


def by_pyro(problem, point):
    return float(density(problem.pyro_model, {site: torch.as_tensor(value) for site, value in point.items()}))


def by_numpyro(problem, point):
    from numpyro.infer.util import log_density

    given = {site: value for site, value in point.items() if site not in orthonormal_sites(problem)}
    found, trace = log_density(problem.numpyro_model, (), {}, given)
    for site in orthonormal_sites(problem):
        np.testing.assert_allclose(trace[site]["value"], point[site], atol=1e-12)
    return without_prior_of_gaussians(float(found), point)


def by_pymc(model, at):
    """Log densities of constrained values: transforms, which are the same in all packages, are taken away."""
    from pymc.model.transform.conditioning import remove_value_transforms
    from pytensor.compile.mode import Mode

    model.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)  # with which it cannot be converted
    model = remove_value_transforms(model)
    # The rewrites that PyMC's samplers have, which keep logits exact where probabilities are near 1, but no compiler.
    of_point = model.compile_logp(mode=Mode(linker="py", optimizer="fast_run"))
    sites = [value.name for value in model.value_vars]
    return [float(of_point({site: point[site] for site in sites})) for point in at]


def assert_densities_differ_alike(found, problem, at):
    expected = np.array([by_pyro(problem, point) for point in at])
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found - found[0], expected - expected[0], rtol=1e-8, atol=1e-8)


@pytest.mark.long
@needs("numpyro")
@over_problems
def test_the_density_in_numpyro_up_to_a_constant(name):
    at = points(PROBLEMS[name])
    found = np.array([by_numpyro(PROBLEMS[name], point) for point in at])
    assert_densities_differ_alike(found, PROBLEMS[name], at)


@pytest.mark.long
@needs("pymc")
@over_problems
def test_the_density_in_pymc_up_to_a_constant(name):
    problem = PROBLEMS[name]
    at = points(problem)
    densities = by_pymc(problem.pymc_model(), at)
    found = [without_prior_of_gaussians(*each) for each in zip(densities, at, strict=True)]
    assert_densities_differ_alike(np.array(found), problem, at)


@pytest.mark.parametrize("name", long_except(NAMES, "seeds"))
def test_values_hold_functionals_and_the_log_density(name):
    problem = PROBLEMS[name]
    at = points(problem)
    draws = {site: np.stack([point[site] for point in at])[:, None] for site in at[0]}
    values = problem.values(draws)
    expected = [by_pyro(problem, point) for point in at]
    np.testing.assert_allclose(values.pop("log density")[:, 0], expected, rtol=1e-10)
    tensors = {site: torch.as_tensor(draws[site]) for site in latent_shapes(problem.pyro_model)}
    assert set(values) == set(published()[name].functionals(tensors))
    assert {value.shape for value in values.values()} == {(POINTS, 1)}


@pytest.mark.parametrize(
    "name",
    long_except(["logistic regression of breast cancer", "horseshoe"], "logistic regression of breast cancer"),
)
def test_values_are_the_same_where_torch_is_left_at_float32(name):
    problem = PROBLEMS[name]
    at = points(problem)
    draws = {site: np.stack([point[site] for point in at])[:, None] for site in at[0]}
    expected = problem.values(draws)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        found = problem.values(draws)
        assert torch.get_default_dtype() is torch.float32
    finally:
        torch.set_default_dtype(before)
    for functional, value in expected.items():
        np.testing.assert_array_equal(found[functional], value)


def test_densities_of_many_draws_are_those_of_each():
    problem = PROBLEMS["seeds"]
    at = points(problem)
    draws = {site: torch.as_tensor(np.stack([point[site] for point in at])) for site in at[0]}
    each = log_densities(problem.pyro_model, {site: value[:, None] for site, value in draws.items()})
    many = {site: value[:, None].expand(POINTS, BATCH, *value.shape[1:]) for site, value in draws.items()}
    torch.testing.assert_close(log_densities(problem.pyro_model, many), each.expand(POINTS, BATCH))


@pytest.mark.long
@needs("numpyro", "pymc")
def test_every_model_is_in_both_packages():
    from benchmarks.problems.published.peers import in_numpyro, in_pymc

    assert all(callable(getattr(module, name)) for module in (in_numpyro, in_pymc) for name in NAMES.values())
