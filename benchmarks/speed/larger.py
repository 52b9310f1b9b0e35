"""Two models of the size that people fit, in Pyro and in NumPyro: orthonormal matrices in a plate, and Bayesian PCA.

Of NumPyro's side each is over the expansion that is fastest there, and factors of low rank stay of low rank.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.problems.components import principal_components
from benchmarks.problems.expansions import fastest
from benchmarks.speed.tuning.posteriors import groups_of_matrices, of_components, of_matrices, plate_of_matrices


class Model(NamedTuple):
    """A posterior for two packages.

    Attributes:
        pyro_model: without arguments.
        numpyro_model: of the same density.
        functionals: ``{name: (chains, draws)}`` of draws ``{site: (chains, draws, ...)}`` as tensors.
    """

    pyro_model: Callable
    numpyro_model: Callable
    functionals: Callable

    def values(self, draws):
        found = self.functionals({name: torch.tensor(np.asarray(value)) for name, value in draws.items()})
        return {name: value.numpy() for name, value in found.items()}


def orthonormal_in_numpyro(name, batch, n, p):
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    Z = numpyro.sample(f"{name} expanded", dist.Normal(0.0, 1.0).expand((*batch, n, p)).to_event(2 + len(batch)))
    expansion = partial(fastest(p), xp=jnp)
    return numpyro.deterministic(name, jax.vmap(expansion)(Z) if batch else expansion(Z))


def matrices_in_numpyro():
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    y, rows = groups_of_matrices()
    groups, n, p = y.shape
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([p]).to_event(1))
    U = orthonormal_in_numpyro("U", (groups,), n, p)
    with numpyro.plate("groups", groups):
        own = numpyro.sample("own", dist.LogNormal(level, spread).to_event(1))
        mean = U * own[:, None, :]
        numpyro.sample("y", dist.Normal(mean, rows**-0.5).to_event(2), obs=jnp.asarray(y.numpy()))


def components_in_numpyro(y, rank):
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    n = y.shape[-1]
    U = orthonormal_in_numpyro("U", (), n, rank)
    scales = numpyro.sample("scales", dist.HalfNormal(5.0).expand([rank]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        covariance = {"cov_factor": U * scales, "cov_diag": noise**2 * jnp.ones(n)}
        numpyro.sample("y", dist.LowRankMultivariateNormal(jnp.zeros(n), **covariance), obs=jnp.asarray(y.numpy()))


def rows_of_rank_five(rows=200, n=50):
    generator = torch.Generator().manual_seed(0)
    options = {"generator": generator, "dtype": torch.float64}
    loadings = torch.linalg.qr(torch.randn(n, 5, **options))[0] * torch.tensor([8.0, 6.0, 4.0, 3.0, 2.0]).double()
    return torch.randn(rows, 5, **options) @ loadings.mT + torch.randn(rows, n, **options)


MATRICES, COMPONENTS = "20 matrices V(5,2) in a plate", "Bayesian PCA 200×50, rank 5"
DATA = rows_of_rank_five()
PROBLEMS = {
    MATRICES: Model(plate_of_matrices(), matrices_in_numpyro, of_matrices),
    COMPONENTS: Model(partial(principal_components, DATA, 5), partial(components_in_numpyro, DATA, 5), of_components),
}
