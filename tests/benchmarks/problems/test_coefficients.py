"""Models have the densities and the condition number that are claimed, truths are right where they are known."""

import numpy as np
import pytest
import torch
from pyro import poutine

from benchmarks.problems.coefficient_moments import gaussian, importance, mode_of, quadrature
from benchmarks.problems.coefficients import POSTERIORS, Posterior, collinear_posteriors, small_posteriors
from problems.monte_carlo import STANDARD_ERRORS
from tests.benchmarks.requirements import needs


@pytest.mark.long
@needs("numpyro")
@pytest.mark.parametrize("name", POSTERIORS)
def test_pyro_numpyro_and_torch_have_one_density(name):
    import numpyro

    numpyro.enable_x64()
    posterior = POSTERIORS[name]
    here, there = 0.1 * torch.randn(2, posterior.dimension)
    of_pyro, of_numpyro = [
        [
            float(poutine.trace(poutine.condition(posterior.pyro_model, {"w": w})).get_trace().log_prob_sum()),
            float(numpyro.infer.util.log_density(posterior.numpyro_model, (), {}, {"w": w.numpy()})[0]),
        ]
        for w in (here, there)
    ]
    assert of_pyro[0] == pytest.approx(of_pyro[1])
    # Without constants, so only differences can agree.
    difference = float(posterior.log_density(here) - posterior.log_density(there))
    assert difference == pytest.approx(of_pyro[0] - of_numpyro[0])


def written_out(name, posterior, w):
    """Log-likelihoods by their formulas, which share nothing with the models."""
    if name == "banana":
        return -0.5 * ((posterior.data - w[0] - w[1] ** 2) ** 2).sum() / 0.16
    linear = posterior.design @ w
    if name == "Poisson":
        return (posterior.data * linear - np.exp(linear)).sum()
    return (posterior.data * linear - np.logaddexp(0, linear)).sum()


@pytest.mark.parametrize("posterior", small_posteriors(), ids=lambda posterior: posterior.name)
def test_densities_are_those_of_the_formulas(posterior):
    here, there = 0.5 * torch.randn(2, posterior.dimension)
    expected = [
        written_out(posterior.name, posterior, w) - 0.5 * (w**2).sum() / posterior.prior_scale**2
        for w in (here.numpy(), there.numpy())
    ]
    difference = float(posterior.log_density(here) - posterior.log_density(there))
    assert difference == pytest.approx(expected[0] - expected[1])


def test_collinear_posteriors_have_the_condition_number_off_the_coordinate_axes():
    linear, logistic = collinear_posteriors()
    truth = gaussian(linear)
    _, precision = mode_of(logistic)
    assert truth.condition == pytest.approx(1e4, rel=0.01)
    assert np.linalg.cond(precision) == pytest.approx(1e4, rel=0.2)
    for axes in (truth.principal_axes()[1], np.linalg.eigh(precision)[1]):
        assert np.abs(axes[:, [0, -1]]).max() < 0.6


def test_the_gaussian_truth_is_that_of_the_normal_equations():
    posterior, _ = collinear_posteriors()
    truth = gaussian(posterior)
    precision = posterior.design.T @ posterior.design + np.eye(posterior.dimension) / posterior.prior_scale**2
    np.testing.assert_allclose(truth.covariance, np.linalg.inv(precision), rtol=1e-6)
    np.testing.assert_allclose(truth.mean, np.linalg.solve(precision, posterior.design.T @ posterior.data), rtol=1e-6)


def two_dimensional():
    """The logistic posterior of the first two coefficients alone, where a grid and weights can be compared."""
    whole, *_ = small_posteriors()
    design = whole.design[:, :2]

    def likelihood(dist, xp, w):
        return dist.Bernoulli(logits=w @ xp.asarray(design).T)

    return Posterior("two", 2, whole.prior_scale, whole.data, likelihood, design)


def test_importance_sampling_agrees_with_quadrature():
    """Five comparisons with 4 standard errors: a false alarm in 3 of 10,000 seeds."""
    exact, found = quadrature(two_dimensional(), points=281), importance(two_dimensional(), 100_000)
    assert (np.abs(found.mean - exact.mean) < STANDARD_ERRORS * found.mean_error).all()
    assert (np.abs(found.covariance - exact.covariance) < STANDARD_ERRORS * found.covariance_error).all()
    assert (found.mean_error < 0.01 * exact.deviation).all()
