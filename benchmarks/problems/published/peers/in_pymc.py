"""Published models as a user of PyMC and nutpie writes them, with the sites, priors and data of the Pyro models.

Each function is called inside ``with pymc.Model():``.
"""

import numpy as np
import pymc
import pytensor.tensor as pt

from benchmarks.problems.expansions import closed_form
from benchmarks.problems.published import data
from benchmarks.problems.published.hierarchies import houses, seed_design
from benchmarks.problems.published.latent import (
    ITEMS,
    PERSONS,
    answers_to_items_that_discriminate,
    points_of_two_normals,
)
from benchmarks.problems.published.orthonormal import exercises, pairs_of_families
from benchmarks.problems.published.regressions import SPARSE, breast_cancer, points_of_a_curve, sparse_data
from benchmarks.problems.published.time_series import counts_over_time, returns


def arrays(*tensors):
    return [tensor.numpy() for tensor in tensors]


def eight_schools_centred():
    errors, y = arrays(data.SCHOOL_ERRORS, data.SCHOOL_EFFECTS)
    level = pymc.Normal("level", 0.0, 5.0)
    spread = pymc.HalfCauchy("spread", 5.0)
    effects = pymc.Normal("effects", level, spread, shape=8)
    pymc.Normal("y", effects, errors, observed=y)


def eight_schools_non_centred():
    errors, y = arrays(data.SCHOOL_ERRORS, data.SCHOOL_EFFECTS)
    level = pymc.Normal("level", 0.0, 5.0)
    spread = pymc.HalfCauchy("spread", 5.0)
    standard = pymc.Normal("standard", shape=8)
    pymc.Normal("y", level + spread * standard, errors, observed=y)


def rats():
    ages, y = arrays(data.RAT_AGES - 22, data.RAT_WEIGHTS.reshape(30, 5))
    level = pymc.Normal("level", 0.0, 100.0, shape=2)
    spread = pymc.HalfCauchy("spread", np.array([25.0, 5.0]), shape=2)
    noise = pymc.HalfCauchy("noise", 10.0)
    curve = pymc.Normal("curve", level, spread, shape=(30, 2))
    pymc.Normal("y", curve[:, :1] + curve[:, 1:] * ages, noise, observed=y)


def seeds():
    design, counts, y = arrays(seed_design(), data.SEEDS, data.SEEDS_GERMINATED)
    slopes = pymc.Normal("slopes", shape=4)
    spread = pymc.HalfCauchy("spread", 1.0)
    own = pymc.Normal("own", design @ slopes, spread, shape=21)
    pymc.Binomial("y", counts.astype(int), logit_p=own, observed=y.astype(int))


def radon():
    county, floor, y = arrays(*houses())
    mean = pymc.Normal("mean", 0.0, 10.0, shape=2)
    spread = pymc.HalfNormal("spread", 1.0, shape=2)
    noise = pymc.HalfNormal("noise", 1.0)
    standard = pymc.Normal("standard", shape=(20, 2))
    own = (mean + spread * standard)[county]
    pymc.Normal("y", own[:, 0] + own[:, 1] * floor, noise, observed=y)


def logistic():
    x, y = arrays(*breast_cancer())
    slopes = pymc.Normal("slopes", 0.0, 2.5, shape=30)
    level = pymc.Normal("level", 0.0, 5.0)
    pymc.Bernoulli("y", logit_p=level + x @ slopes, observed=y.astype(int))


def horseshoe():
    x, y = arrays(*sparse_data(*SPARSE))
    overall = pymc.HalfCauchy("overall", 1.0)
    own = pymc.HalfCauchy("own", 1.0, shape=15)
    standard = pymc.Normal("standard", shape=15)
    noise = pymc.HalfNormal("noise", 2.0)
    pymc.Normal("y", x @ (standard * own * overall), noise, observed=y)


def gaussian_process():
    x, y = arrays(*points_of_a_curve())
    length = pymc.InverseGamma("length", 5.0, 5.0)
    size = pymc.HalfNormal("size", 2.0)
    noise = pymc.HalfNormal("noise", 1.0)
    covariance = size**2 * pt.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + noise**2 * np.eye(40)
    pymc.MvNormal("y", np.zeros(40), covariance, observed=y)


def latent_autoregression():
    (y,) = arrays(counts_over_time())
    level = pymc.Normal("level", 0.0, 5.0)
    persistence = pymc.Beta("persistence", 5.0, 1.5)
    shock = pymc.HalfNormal("shock", 0.5)
    first = pymc.Normal.dist(0.0, shock / pt.sqrt(1 - persistence**2))
    state = pymc.AR("state", persistence[None], shock, init_dist=first, shape=80)
    pymc.Poisson("y", pt.exp(level + state), observed=y.astype(int))


def stochastic_volatility():
    (y,) = arrays(returns())
    level = pymc.Normal("level", 0.0, 5.0)
    persistence = pymc.Beta("persistence", 20.0, 1.5)
    shock = pymc.HalfCauchy("shock", 1.0)
    standard = pymc.Normal("standard", shape=100)
    first = standard[:1] / pt.sqrt(1 - persistence**2)
    shocks = shock * pt.concatenate([first, standard[1:]])
    lags = np.subtract.outer(np.arange(100), np.arange(100))
    state = pt.where(lags >= 0, persistence ** np.maximum(lags, 0), 0.0) @ shocks
    pymc.Normal("y", 0.0, pt.exp(0.5 * (level + state)), observed=y)


def two_parameters():
    (y,) = arrays(answers_to_items_that_discriminate())
    spread = pymc.HalfCauchy("spread", 2.0, shape=2)
    mean = pymc.Normal("mean", 0.0, 5.0)
    ability = pymc.Normal("ability", shape=PERSONS)
    discrimination = pymc.LogNormal("discrimination", 0.0, spread[0], shape=ITEMS)
    difficulty = pymc.Normal("difficulty", mean, spread[1], shape=ITEMS)
    pymc.Bernoulli("y", logit_p=discrimination * (ability[:, None] - difficulty), observed=y.astype(int))


def mixture():
    (y,) = arrays(points_of_two_normals())
    low = pymc.Normal("low", 0.0, 2.0)
    gap = pymc.HalfNormal("gap", 3.0)
    scales = pymc.HalfNormal("scales", 2.0, shape=2)
    share = pymc.Beta("share", 5.0, 5.0)
    pymc.NormalMixture("y", pt.stack([share, 1 - share]), pt.stack([low, low + gap]), scales, observed=y)


def polar(name, rows, columns):
    """A uniform orthonormal matrix, the polar factor of a Gaussian one."""
    Z = pymc.Normal(f"Z of {name}", shape=(rows, columns))
    # PyTensor does not know how many columns Z has when it builds the graph.
    return pymc.Deterministic(name, Z / pt.sqrt((Z**2).sum()) if columns == 1 else closed_form(Z, pt))


def reduced_rank_of_exercises():
    x, y = arrays(*exercises())
    U, V = polar("U", 3, 1), polar("V", 3, 1)
    sizes = pymc.HalfNormal("sizes", 3.0, shape=1)
    noise = pymc.HalfNormal("noise", 1.0, shape=3)
    pymc.Normal("y", x @ (U * sizes) @ V.T, noise, observed=y)


def marriages():
    pairs, y = arrays(*pairs_of_families())
    U = polar("U", 15, 2)
    values = pymc.Normal("values", 0.0, 15.0**0.5, shape=2)
    level = pymc.Normal("level", 0.0, 10.0)
    logits = level + ((U * values) @ U.T)[pairs[0], pairs[1]]
    pymc.Bernoulli("links", logit_p=logits, observed=y.astype(int))
