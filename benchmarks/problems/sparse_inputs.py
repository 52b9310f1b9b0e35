"""Gaussian processes of ten inputs, at 40 points: the model of `examples.sparse_inputs` in Pyro and in NumPyro."""

from functools import partial
from typing import NamedTuple

import torch

from benchmarks.problems.posterior import Posterior, all_entries
from benchmarks.problems.published.peers import float64_by_default
from examples import sparse_inputs


def functionals(draws):
    """Return the mean of the process, and logarithms of all that is positive."""
    return all_entries({site: x if site == "mean" else x.log() for site, x in draws.items() if site != "relevance"})


class SparseInputs(NamedTuple):
    """A function of which ten inputs are given, in the form that `benchmarks.peers` asks for."""

    function: str

    @property
    def name(self):
        return f"{self.function} of ten inputs"

    @property
    def data(self):
        with float64_by_default():
            return sparse_inputs.design(self.function)[:2]

    @property
    def posterior(self):
        return Posterior(self.pyro_model, functionals)

    @property
    def pyro_model(self):
        return partial(sparse_inputs.model, *self.data)

    def numpyro_model(self):
        """The model of BoTorch's release 0.18, with the names of ours."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        x, y = (jnp.asarray(values.numpy()) for values in self.data)
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        variance = numpyro.sample("variance", dist.Gamma(2.0, 0.15))
        noise = sparse_inputs.LEAST_NOISE + numpyro.sample("noise", dist.Gamma(0.9, 10.0))
        overall = numpyro.sample("overall", dist.HalfCauchy(0.1))
        own = numpyro.sample("own", dist.HalfCauchy(1.0).expand([x.shape[-1]]).to_event(1))
        squares = ((x[:, None] - x) ** 2 * overall * own).sum(-1)
        distance = jnp.sqrt(jnp.maximum(5 * squares, 1e-30))
        covariance = variance * (1 + distance + distance**2 / 3) * jnp.exp(-distance) + noise * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(jnp.broadcast_to(mean, len(x)), covariance), obs=y)

    def values(self, draws):
        tensors = {site: torch.as_tensor(x) for site, x in draws.items()}
        return {name: value.numpy() for name, value in functionals(tensors).items()}


PROBLEMS = {problem.name: problem for problem in map(SparseInputs, sparse_inputs.FUNCTIONS)}
