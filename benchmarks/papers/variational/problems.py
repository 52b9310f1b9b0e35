"""Problems on which variational families are compared, as Pyro models in float64, after Zhou et al. (arXiv 1902.03718).

They are P-spline regression with outliers (simulated, section 4.1 of the paper), logistic regression of the ionosphere
(table 3) and horseshoe logistic regression of acute leukemia (table 4). The paper states the families of
priors in words and their numbers in formulas, which its text without formulas lacks: each docstring names our numbers.
"""

from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.nn.functional import logsigmoid

from benchmarks.papers.variational.discretise import Discretiser
from benchmarks.papers.variational.splines import FLOAT, OUTLIERS, PRIOR_VARIANCE, basis, noise_distribution, simulate
from examples.datasets import ionosphere, leukemia


@dataclass(frozen=True)
class Split:
    """Training and test data; the first column of x is 1 where the model has its intercept there."""

    x_train: torch.Tensor
    y_train: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor


def tensors(*arrays):
    return [torch.as_tensor(array, dtype=FLOAT) for array in arrays]


def evaluate(coefficients, x, y, intercept=None):
    """Share of errors and mean log probability, see `by_case`."""
    wrong, log_probability = by_case(coefficients, x, y, intercept)
    return float(wrong.to(FLOAT).mean()), float(log_probability.mean())


def by_case(coefficients, x, y, intercept=None):
    """Errors, as a mask, and log probabilities of the labels, both of the posterior mean probability.

    Draws: ``coefficients (draws, columns of x)``, and ``intercept (draws,)`` where x has no column of ones.
    """
    logits = coefficients @ x.mT
    if intercept is not None:
        logits = logits + intercept.unsqueeze(-1)
    one, zero = (torch.logsumexp(logsigmoid(sign * logits), 0) - np.log(len(logits)) for sign in (1, -1))
    return (one > zero) != (y > 0.5), torch.where(y > 0.5, one, zero)


# ---- P-splines with outliers -------------------------------------------------------------------------------


def spline_data(points=250, outliers=OUTLIERS):
    """``Split`` of basis and responses, and the true means of the test points."""
    x, y, mean = simulate(points, outliers=outliers)
    return Split(basis(x[0]), y[0], basis(x[1]), y[1]), mean[1]


def evaluate_spline(samples, x, y, truth=None, outliers=OUTLIERS):
    """Root mean squared error of the posterior mean curve (to ``truth``, else to y) and mean log predictive density."""
    mean = samples["coefficients"] @ x.mT
    scale = samples["noise_variance"].sqrt()
    densities = noise_distribution(mean, scale, torch.full_like(scale, outliers)).log_prob(y)
    log_density = torch.logsumexp(densities, 0) - np.log(len(densities))
    error = (mean.mean(0) - (y if truth is None else truth)).square().mean().sqrt()
    return float(error), float(log_density.mean())


# ---- Logistic regression of the ionosphere -----------------------------------------------------------------


def with_ones(x):
    return np.concatenate([np.ones((len(x), 1)), x], -1)


def ionosphere_folds(discretise="all", baseline="most frequent", folds=5, seed=0):
    """Stratified folds of the ionosphere, attributes as indicators after a column of ones.

    Cuts from all rows give 111 indicators, as many as Ong, Nott & Smith (2018) have; so theirs, too, will have been cut
    once, before the folds, with sight of the test labels. ``discretise="within"`` cuts each fold from its training rows
    alone, and its number of columns varies. Gelman et al. (2008) leave one level out, here by ``baseline``.
    """
    from sklearn.model_selection import StratifiedKFold

    if discretise not in ("all", "within"):
        raise ValueError(f"discretise is 'all' or 'within', not {discretise!r}.")
    attributes, labels = ionosphere()
    splits = []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(attributes, labels):
        seen = train if discretise == "within" else slice(None)
        discretiser = Discretiser.fit(attributes[seen], labels[seen], baseline)
        x = with_ones(discretiser(attributes))
        splits.append(Split(*tensors(x[train], labels[train], x[test], labels[test])))
    return splits


def logistic(x, y=None):
    """Logistic regression with prior N(0, 10 I) on all coefficients, the intercept's among them."""
    prior = dist.Normal(torch.zeros(x.shape[-1], dtype=FLOAT), PRIOR_VARIANCE**0.5).to_event(1)
    coefficients = pyro.sample("coefficients", prior)
    with pyro.plate("observations", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=x @ coefficients), obs=y)


# ---- Horseshoe regression of leukemia ----------------------------------------------------------------------


def leukemia_split(transform="log"):
    """Leukemia with genes standardised by the training patients; a gene that is constant among them becomes 0.

    ``transform="log"`` is usual for these data (Dudoit et al. 2002, but without their choice of genes, and with Pochet
    et al.'s floor of 20): raw expression is clipped to [20, 16000] and its logarithm taken. ``"arrays"`` standardises
    each patient's array after that, as Dudoit et al. do, and ``"none"`` takes raw values.
    """
    if transform not in ("log", "arrays", "none"):
        raise ValueError(f"transform is 'log', 'arrays' or 'none', not {transform!r}.")
    x_train, y_train, x_test, y_test = leukemia()
    if transform != "none":
        x_train, x_test = (np.log(np.clip(x, 20.0, 16000.0)) for x in (x_train, x_test))
    if transform == "arrays":
        x_train, x_test = ((x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True) for x in (x_train, x_test))
    centre, scale = x_train.mean(0), x_train.std(0)
    varies = scale > 1e-12
    x_train, x_test = (np.where(varies, (x - centre) / np.where(varies, scale, 1.0), 0.0) for x in (x_train, x_test))
    return Split(*tensors(x_train, y_train, x_test, y_test))


def horseshoe(x, y=None, centred=True):
    """Logistic regression with the horseshoe prior β_j = τ λ_j z_j, where τ, λ_j ~ half-Cauchy(1) and z_j ~ N(0, 1).

    Latent: intercept ~ N(0, 10), global_scale, local_scales, and slopes β or, unless ``centred``, standardised z:
    14,260 for 7,129 genes. x has no column of ones. The posterior of β is the same in both, approximations are not:
    without centring, a mean-field guide gains most by τ → 0, where z keeps its prior and the labels say nothing.
    """
    zeros, one = torch.zeros(x.shape[-1], dtype=FLOAT), torch.ones((), dtype=FLOAT)
    intercept = pyro.sample("intercept", dist.Normal(0 * one, PRIOR_VARIANCE**0.5))
    global_scale = pyro.sample("global_scale", dist.HalfCauchy(one))
    local_scales = pyro.sample("local_scales", dist.HalfCauchy(torch.ones_like(zeros)).to_event(1))
    if centred:
        slopes = pyro.sample("slopes", dist.Normal(zeros, global_scale * local_scales).to_event(1))
    else:
        standardised = pyro.sample("standardised", dist.Normal(zeros, 1.0).to_event(1))
        slopes = global_scale * local_scales * standardised
    with pyro.plate("patients", len(x)):
        return pyro.sample("y", dist.Bernoulli(logits=intercept + x @ slopes), obs=y)


def horseshoe_slopes(samples):
    """Draws of β from draws of either parametrisation."""
    if "slopes" in samples:
        return samples["slopes"]
    return samples["global_scale"].unsqueeze(-1) * samples["local_scales"] * samples["standardised"]
