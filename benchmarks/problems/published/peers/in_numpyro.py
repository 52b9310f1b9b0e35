"""Published models as a user of NumPyro writes them, with the sites, priors and data of the Pyro models."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

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

numpyro.enable_x64()


def arrays(*tensors):
    return [jnp.asarray(tensor.numpy()) for tensor in tensors]


def eight_schools_centred():
    errors, y = arrays(data.SCHOOL_ERRORS, data.SCHOOL_EFFECTS)
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        effects = numpyro.sample("effects", dist.Normal(level, spread))
        numpyro.sample("y", dist.Normal(effects, errors), obs=y)


def eight_schools_non_centred():
    errors, y = arrays(data.SCHOOL_ERRORS, data.SCHOOL_EFFECTS)
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        standard = numpyro.sample("standard", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(level + spread * standard, errors), obs=y)


def rats():
    ages, y = arrays(data.RAT_AGES - 22, data.RAT_WEIGHTS.reshape(30, 5))
    level = numpyro.sample("level", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfCauchy(jnp.array([25.0, 5.0])).to_event(1))
    noise = numpyro.sample("noise", dist.HalfCauchy(10.0))
    with numpyro.plate("rats", 30):
        curve = numpyro.sample("curve", dist.Normal(level, spread).to_event(1))
        expected = curve[:, :1] + curve[:, 1:] * ages
        numpyro.sample("y", dist.Normal(expected, noise).to_event(1), obs=y)


def seeds():
    design, counts, y = arrays(seed_design(), data.SEEDS, data.SEEDS_GERMINATED)
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("plates", 21):
        own = numpyro.sample("own", dist.Normal(design @ slopes, spread))
        numpyro.sample("y", dist.Binomial(counts, logits=own), obs=y)


def radon():
    county, floor, y = arrays(*houses())
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    standard = numpyro.sample("standard", dist.Normal(0.0, 1.0).expand([20, 2]).to_event(2))
    own = (mean + spread * standard)[county]
    numpyro.sample("y", dist.Normal(own[:, 0] + own[:, 1] * floor, noise).to_event(1), obs=y)


def logistic():
    x, y = arrays(*breast_cancer())
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 2.5).expand([30]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    numpyro.sample("y", dist.Bernoulli(logits=level + x @ slopes).to_event(1), obs=y)


def horseshoe():
    x, y = arrays(*sparse_data(*SPARSE))
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    own = numpyro.sample("own", dist.HalfCauchy(1.0).expand([15]).to_event(1))
    standard = numpyro.sample("standard", dist.Normal(0.0, 1.0).expand([15]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(x @ (standard * own * overall), noise).to_event(1), obs=y)


def gaussian_process():
    x, y = arrays(*points_of_a_curve())
    length = numpyro.sample("length", dist.InverseGamma(5.0, 5.0))
    size = numpyro.sample("size", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    covariance = size**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + noise**2 * jnp.eye(40)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(40), covariance), obs=y)


def latent_autoregression():
    (y,) = arrays(counts_over_time())
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    persistence = numpyro.sample("persistence", dist.Beta(5.0, 1.5))
    shock = numpyro.sample("shock", dist.HalfNormal(0.5))
    state = numpyro.sample("state", dist.ImproperUniform(dist.constraints.real_vector, (), (80,)))
    first = dist.Normal(0.0, shock / jnp.sqrt(1 - persistence**2)).log_prob(state[0])
    steps = dist.Normal(persistence * state[:-1], shock).log_prob(state[1:])
    numpyro.factor("states", first + steps.sum())
    numpyro.sample("y", dist.Poisson(jnp.exp(level + state)).to_event(1), obs=y)


def stochastic_volatility():
    (y,) = arrays(returns())
    level = numpyro.sample("level", dist.Normal(0.0, 5.0))
    persistence = numpyro.sample("persistence", dist.Beta(20.0, 1.5))
    shock = numpyro.sample("shock", dist.HalfCauchy(1.0))
    standard = numpyro.sample("standard", dist.Normal(0.0, 1.0).expand([100]).to_event(1))
    first = standard[:1] / jnp.sqrt(1 - persistence**2)
    shocks = shock * jnp.concatenate([first, standard[1:]])

    def step(state, shock):
        state = persistence * state + shock
        return state, state

    _, state = jax.lax.scan(step, 0.0, shocks)
    numpyro.sample("y", dist.Normal(0.0, jnp.exp(0.5 * (level + state))).to_event(1), obs=y)


def two_parameters():
    (y,) = arrays(answers_to_items_that_discriminate())
    spread = numpyro.sample("spread", dist.HalfCauchy(2.0).expand([2]).to_event(1))
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    ability = numpyro.sample("ability", dist.Normal(0.0, 1.0).expand([PERSONS]).to_event(1))
    discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, spread[0]).expand([ITEMS]).to_event(1))
    difficulty = numpyro.sample("difficulty", dist.Normal(mean, spread[1]).expand([ITEMS]).to_event(1))
    logits = discrimination * (ability[:, None] - difficulty)
    numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)


def mixture():
    (y,) = arrays(points_of_two_normals())
    low = numpyro.sample("low", dist.Normal(0.0, 2.0))
    gap = numpyro.sample("gap", dist.HalfNormal(3.0))
    scales = numpyro.sample("scales", dist.HalfNormal(2.0).expand([2]).to_event(1))
    share = numpyro.sample("share", dist.Beta(5.0, 5.0))
    components = dist.Normal(jnp.stack([low, low + gap]), scales)
    shares = dist.Categorical(jnp.stack([share, 1 - share]))
    numpyro.sample("y", dist.MixtureSameFamily(shares, components).expand([120]).to_event(1), obs=y)


def polar(name, rows, columns):
    """A uniform orthonormal matrix, the polar factor of a Gaussian one."""
    Z = numpyro.sample(f"Z of {name}", dist.Normal(0.0, 1.0).expand([rows, columns]).to_event(2))
    return numpyro.deterministic(name, closed_form(Z, jnp))


def reduced_rank_of_exercises():
    x, y = arrays(*exercises())
    U, V = polar("U", 3, 1), polar("V", 3, 1)
    sizes = numpyro.sample("sizes", dist.HalfNormal(3.0).expand([1]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (U * sizes) @ V.T, noise).to_event(2), obs=y)


def marriages():
    pairs, y = arrays(*pairs_of_families())
    U = polar("U", 15, 2)
    values = numpyro.sample("values", dist.Normal(0.0, 15.0**0.5).expand([2]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 10.0))
    logits = level + ((U * values) @ U.T)[pairs[0], pairs[1]]
    numpyro.sample("links", dist.Bernoulli(logits=logits).to_event(1), obs=y)
