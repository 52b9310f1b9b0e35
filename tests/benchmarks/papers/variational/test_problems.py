"""Models of the variational benchmark: their densities, dimensions and figures."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from pyro import poutine
from pyro.poutine.util import prune_subsample_sites

from benchmarks.papers.variational import problems, splines
from examples.datasets import data_folder

SCALES = {"persistence": -0.6, "prior_variance": 0.49, "noise_variance": 0.09}


def log_density(model, values, *data):
    trace = poutine.trace(poutine.condition(model, values)).get_trace(*data)
    return trace.log_prob_sum()


def latent_dimensions(model, *data):
    trace = prune_subsample_sites(poutine.trace(model).get_trace(*data))
    return sum(trace.nodes[site]["value"].numel() for site in trace.stochastic_nodes)


def test_evaluate_averages_probabilities():
    # Draws 0 and log 3 say 1/2 and 3/4 where x = 1, 1/2 and 1/4 where x = −1.
    draws, x = torch.tensor([[0.0], [math.log(3)]]), torch.tensor([[1.0], [-1.0]])
    error, log_likelihood = problems.evaluate(draws, x, torch.tensor([1.0, 1.0]))
    assert error == 0.5
    assert log_likelihood == pytest.approx((math.log(5 / 8) + math.log(3 / 8)) / 2)
    shifted = problems.evaluate(draws, x, torch.tensor([1.0, 1.0]), intercept=torch.full((2,), 1000.0))
    assert shifted == (0.0, pytest.approx(0.0))


def test_spline_basis_sums_to_one_and_reproduces_lines():
    x = np.linspace(0, 1, 50)
    basis = splines.basis(x)
    assert basis.shape == (50, splines.COEFFICIENTS)
    torch.testing.assert_close(basis.sum(-1), torch.ones(50))
    line = torch.arange(-1.0, splines.COEFFICIENTS - 1) / (splines.COEFFICIENTS - splines.DEGREE)
    torch.testing.assert_close(basis @ line, torch.as_tensor(x))


def test_random_walk_sums_invert_second_differences():
    steps = torch.randn(splines.COEFFICIENTS)
    theta = splines.SUMS @ steps
    torch.testing.assert_close(theta.diff(n=2), steps[2:])
    torch.testing.assert_close(theta[0], steps[0])
    torch.testing.assert_close(theta[1] - 2 * theta[0], steps[1] - 2 * steps[0])


def test_spline_density():
    split, _ = problems.spline_data(points=7)
    theta = torch.randn(splines.COEFFICIENTS)
    values = {name: torch.tensor(value) for name, value in SCALES.items()} | {"coefficients": theta}
    normal = torch.distributions.Normal
    residuals = split.y_train - split.x_train @ theta
    usual, outlying = (normal(0.0, scale).log_prob(residuals).exp() for scale in (0.3, 3.0))
    step = 0.7  # the standard deviation κ of an innovation
    expected = (
        -math.log(2) + scipy.stats.weibull_min(0.5).logpdf(step**2) + scipy.stats.invgamma(1, scale=0.01).logpdf(0.09)
        + normal(0.0, step / (1 - 0.6**2) ** 0.5).log_prob(theta[0])
        + normal(0.0, step).log_prob(theta[1:] + 0.6 * theta[:-1]).sum()
        + (0.9 * usual + 0.1 * outlying).log().sum()
    )  # fmt: skip
    torch.testing.assert_close(log_density(splines.model, values, split.x_train, split.y_train), expected)
    assert latent_dimensions(splines.model, split.x_train, split.y_train) == 29


def test_horseshoe_parametrisations_agree():
    x, y = torch.randn(6, 4), torch.ones(6)
    scales = {"intercept": torch.tensor(0.4), "global_scale": torch.tensor(0.5), "local_scales": torch.rand(4) + 0.1}
    z = torch.randn(4)
    slopes = problems.horseshoe_slopes({**scales, "standardised": z})
    centred = log_density(problems.horseshoe, {**scales, "slopes": slopes}, x, y, True)
    other = log_density(problems.horseshoe, {**scales, "standardised": z}, x, y, False)
    torch.testing.assert_close(centred + (0.5 * scales["local_scales"]).log().sum(), other)
    assert latent_dimensions(problems.horseshoe, x, y) == 10


def test_logistic_without_labels_predicts():
    x = problems.with_ones(np.zeros((3, 2)))
    assert problems.logistic(torch.as_tensor(x)).shape == (3,)


@pytest.mark.skipif(
    not (data_folder() / "ionosphere").exists(), reason="the ionosphere data are not in PYRO_MANIFOLD_DATA"
)
def test_ionosphere_folds():
    splits = problems.ionosphere_folds()
    assert sum(len(split.y_test) for split in splits) == 351
    assert {split.x_train.shape[-1] for split in splits} == {112}
    assert all((split.x_train[:, 0] == 1).all() for split in splits)
    # Cut without sight of the test rows, the columns differ.
    assert {split.x_train.shape[-1] for split in problems.ionosphere_folds("within")} != {112}


@pytest.mark.skipif(not (data_folder() / "leukemia").exists(), reason="the leukemia data are not in PYRO_MANIFOLD_DATA")
@pytest.mark.parametrize("transform", ["log", "none"])
def test_leukemia_split(transform):
    split = problems.leukemia_split(transform)
    assert split.x_train.shape == (38, 7129)
    assert split.x_test.shape == (34, 7129)
    assert (split.y_train.sum(), split.y_test.sum()) == (11, 14)
    torch.testing.assert_close(split.x_train.mean(0), torch.zeros(7129))
    assert latent_dimensions(problems.horseshoe, split.x_train, split.y_train) == 14_260
