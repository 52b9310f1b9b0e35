"""Models whose evidence is known without sequential Monte Carlo, each for every package that finds it.

For PyMC and BlackJAX an orthonormal matrix is the polar factor of a normal one, and principal components are a normal
matrix of loadings, which has the same evidence: `NormalSingularValues` beside a uniform U is the prior of W Wᵀ.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import scipy.integrate
import scipy.special
import scipy.stats
import torch

from benchmarks.problems.expansions import closed_form
from pyro_manifold.distributions import NormalSingularValues, StiefelUniform

CONCENTRATIONS = 3.0, 1.5
KAPPA, SPHERE = 6.0, 5
RANK, COLUMNS, ROWS = 3, 5, 40


class Problem(NamedTuple):
    """One model.

    Attributes:
        name: how tables call it.
        pyro_model: without arguments.
        truth: to the log evidence and its standard error.
        pymc_model: to PyMC's; None if it is not compared.
        jax_parts: to a draw of the prior from a key, its log density, and the log likelihood; a flat vector.
    """

    name: str
    pyro_model: Callable[[], Any]
    truth: Callable[[], tuple[float, float]]
    pymc_model: Callable[[], Any] | None = None
    jax_parts: Callable[[], tuple[Callable, Callable, Callable]] | None = None


def in_jax():
    """JAX, its arrays and its distributions."""
    import jax
    import jax.numpy
    import jax.scipy.stats

    return jax, jax.numpy, jax.scipy.stats


# ---- matrix Langevin --------------------------------------------------------------------------------------------


def langevin():

    U = pyro.sample("U", StiefelUniform(3, 2))
    pyro.factor("langevin", CONCENTRATIONS[0] * U[..., 0, 0] + CONCENTRATIONS[1] * U[..., 1, 1])


def langevin_truth():
    """The second column is uniform on the circle that the first leaves, which gives a Bessel function of its radius."""
    a, b = CONCENTRATIONS

    def density(angle, height):  # the first column; heights are uniform on a sphere
        second = math.sqrt(1 - height**2) * math.cos(angle)
        return math.exp(a * height) * scipy.special.i0(b * math.sqrt(max(0.0, 1 - second**2))) / (4 * math.pi)

    mass, error = scipy.integrate.dblquad(density, -1, 1, 0, 2 * math.pi)
    return math.log(mass), error / mass


def langevin_pymc():
    import pymc
    import pytensor.tensor as pt

    with pymc.Model() as model:
        X = closed_form(pymc.Normal("Z", shape=(3, 2)), pt)
        pymc.Potential("langevin", CONCENTRATIONS[0] * X[0, 0] + CONCENTRATIONS[1] * X[1, 1])
    return model


def langevin_jax():
    jax, jnp, _ = in_jax()

    def log_likelihood(z):
        X = closed_form(z.reshape(3, 2), jnp)
        return CONCENTRATIONS[0] * X[0, 0] + CONCENTRATIONS[1] * X[1, 1]

    return lambda key: jax.random.normal(key, (6,)), lambda z: -jnp.sum(z**2) / 2, log_likelihood


def von_mises_fisher():

    pyro.factor("langevin", KAPPA * pyro.sample("x", StiefelUniform(SPHERE, 1))[..., 0, 0])


def von_mises_fisher_truth():
    order = SPHERE / 2 - 1
    bessel = math.log(scipy.special.ive(order, KAPPA)) + KAPPA
    return math.lgamma(SPHERE / 2) + order * math.log(2 / KAPPA) + bessel, 0.0


# ---- linear regression ------------------------------------------------------------------------------------------


@cache
def cases():
    random = np.random.default_rng(0)
    return random.normal(size=(30, 4)), random.normal(size=30)


def linear():
    x, y = map(torch.as_tensor, cases())
    w = pyro.sample("w", dist.Normal(torch.zeros(4, dtype=x.dtype), 2.0).to_event(1))
    pyro.sample("y", dist.Normal(x @ w, 0.5).to_event(1), obs=y)


def linear_truth():
    x, y = cases()
    covariance = 4 * x @ x.T + 0.25 * np.eye(30)
    return float(scipy.stats.multivariate_normal(np.zeros(30), covariance).logpdf(y)), 0.0


def linear_pymc():
    import pymc

    x, y = cases()
    with pymc.Model() as model:
        w = pymc.Normal("w", 0.0, 2.0, shape=4)
        pymc.Normal("y", x @ w, 0.5, observed=y)
    return model


def linear_jax():
    jax, jnp, stats = in_jax()
    x, y = map(jnp.asarray, cases())
    return (
        lambda key: 2 * jax.random.normal(key, (4,)),
        lambda w: stats.norm.logpdf(w, 0.0, 2.0).sum(),
        lambda w: stats.norm.logpdf(y, x @ w, 0.5).sum(),
    )


# ---- two modes --------------------------------------------------------------------------------------------------

CENTRE, WIDTH, SHARE, SPREAD = 4.0, 0.1, 0.3, 5.0


def two_modes():
    x = pyro.sample("x", dist.Normal(torch.zeros(2, dtype=torch.float64), SPREAD).to_event(1))
    left = dist.Normal(-CENTRE, WIDTH).log_prob(x).sum(-1) + math.log(SHARE)
    right = dist.Normal(CENTRE, WIDTH).log_prob(x).sum(-1) + math.log(1 - SHARE)
    pyro.factor("modes", torch.logaddexp(left, right))


def two_modes_truth():
    """Both have the same prior density around them."""
    return 2 * float(scipy.stats.norm(0, math.hypot(SPREAD, WIDTH)).logpdf(CENTRE)), 0.0


def two_modes_pymc():
    import pymc
    import pytensor.tensor as pt

    with pymc.Model() as model:
        x = pymc.Normal("x", 0.0, SPREAD, shape=2)
        left = pymc.logp(pymc.Normal.dist(-CENTRE, WIDTH), x).sum() + math.log(SHARE)
        right = pymc.logp(pymc.Normal.dist(CENTRE, WIDTH), x).sum() + math.log(1 - SHARE)
        pymc.Potential("modes", pt.logaddexp(left, right))
    return model


def two_modes_jax():
    jax, jnp, stats = in_jax()

    def log_likelihood(x):
        left = stats.norm.logpdf(x, -CENTRE, WIDTH).sum() + math.log(SHARE)
        return jnp.logaddexp(left, stats.norm.logpdf(x, CENTRE, WIDTH).sum() + math.log(1 - SHARE))

    return (
        lambda key: SPREAD * jax.random.normal(key, (2,)),
        lambda x: stats.norm.logpdf(x, 0, SPREAD).sum(),
        log_likelihood,
    )


# ---- principal components ---------------------------------------------------------------------------------------


@cache
def scores():
    random = np.random.default_rng(1)
    loadings = np.linalg.qr(random.normal(size=(COLUMNS, RANK)))[0] * np.array([3.0, 2.0, 1.2])
    return random.normal(size=(ROWS, RANK)) @ loadings.T + 0.5 * random.normal(size=(ROWS, COLUMNS))


def components():

    y = torch.as_tensor(scores())
    U = pyro.sample("U", StiefelUniform(COLUMNS, RANK))
    scales = pyro.sample("scales", NormalSingularValues(COLUMNS, RANK))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    covariance = U * scales[..., None, :], noise[..., None] ** 2 * torch.ones(COLUMNS, dtype=y.dtype)
    with pyro.plate("rows", ROWS):
        pyro.sample("y", dist.LowRankMultivariateNormal(torch.zeros(COLUMNS, dtype=y.dtype), *covariance), obs=y)


def components_pymc():
    import pymc
    import pytensor.tensor as pt

    with pymc.Model() as model:
        W = pymc.Normal("W", shape=(COLUMNS, RANK))
        noise = pymc.HalfNormal("noise", 1.0)
        pymc.MvNormal("y", np.zeros(COLUMNS), cov=W @ W.T + noise**2 * pt.eye(COLUMNS), observed=scores())
    return model


def components_jax():
    jax, jnp, stats = in_jax()
    y, size = jnp.asarray(scores()), COLUMNS * RANK

    def draw(key):
        first, second = jax.random.split(key)
        noise = jnp.log(jnp.abs(jax.random.normal(second, (1,))))
        return jnp.concatenate([jax.random.normal(first, (size,)), noise])

    def log_prior(v):
        return stats.norm.logpdf(v[:size]).sum() + stats.norm.logpdf(jnp.exp(v[size])) + jnp.log(2.0) + v[size]

    def log_likelihood(v):
        W = v[:size].reshape(COLUMNS, RANK)
        covariance = W @ W.T + jnp.exp(2 * v[size]) * jnp.eye(COLUMNS)
        return stats.multivariate_normal.logpdf(y, jnp.zeros(COLUMNS), covariance).sum()

    return draw, log_prior, log_likelihood


def components_truth(draws=400_000):
    from benchmarks.accuracy.evidence.components import log_evidence

    return log_evidence(scores(), RANK, draws)


# ---- a narrow mode beside a wide one ----------------------------------------------------------------------------

DISTANCE = 10.0


def unequal(dimensions, width, spread=6.0):
    """Two normals of equal mass, of standard deviations ``width`` and 1, under a prior with that of ``spread``."""
    centre = torch.zeros(dimensions, dtype=torch.float64)
    centre[0] = DISTANCE / 2
    x = pyro.sample("x", dist.Normal(torch.zeros_like(centre), spread).to_event(1))
    narrow = dist.Normal(-centre, width).log_prob(x).sum(-1)
    wide = dist.Normal(centre, 1.0).log_prob(x).sum(-1)
    pyro.factor("modes", torch.logaddexp(narrow, wide) - math.log(2))


def unequal_truth(dimensions, width, spread=6.0):
    def of_mode(width):
        variance = spread**2 + width**2
        return -(dimensions * math.log(2 * math.pi * variance) + (DISTANCE / 2) ** 2 / variance) / 2

    return float(np.logaddexp(of_mode(width), of_mode(1.0)) - math.log(2)), 0.0


# ---- unknown mean and variance ----------------------------------------------------------------------------------

SHAPE, RATE, PRIOR_ROWS = 3.0, 2.0, 0.1


@cache
def measured():
    return np.random.default_rng(2).normal(2.0, 1.5, size=20)


def normal_inverse_gamma():
    y = torch.as_tensor(measured())
    variance = pyro.sample("variance", dist.InverseGamma(torch.tensor(SHAPE, dtype=y.dtype), RATE))
    mean = pyro.sample("mean", dist.Normal(0.0, (variance / PRIOR_ROWS).sqrt()))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(mean, variance.sqrt()), obs=y)


def normal_inverse_gamma_truth():
    """A multivariate t of the data."""
    y = measured()
    shape = RATE / SHAPE * (np.eye(len(y)) + 1 / PRIOR_ROWS)
    return float(scipy.stats.multivariate_t(np.zeros(len(y)), shape, df=2 * SHAPE).logpdf(y)), 0.0


UNEQUAL = {
    problem.name: problem
    for problem in (
        Problem(
            f"widths {width} and 1 in {dimensions} dimensions",
            partial(unequal, dimensions, width),
            partial(unequal_truth, dimensions, width),
        )
        for dimensions in (2, 3, 5)
        for width in (0.1, 0.2, 0.5)
    )
}

PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("von Mises–Fisher V(5,1)", von_mises_fisher, von_mises_fisher_truth),
        Problem("matrix Langevin V(3,2)", langevin, langevin_truth, langevin_pymc, langevin_jax),
        Problem("linear regression", linear, linear_truth, linear_pymc, linear_jax),
        Problem("normal, inverse gamma", normal_inverse_gamma, normal_inverse_gamma_truth),
        Problem("two modes", two_modes, two_modes_truth, two_modes_pymc, two_modes_jax),
        Problem("PCA, 3 columns of 5", components, components_truth, components_pymc, components_jax),
    )
}
