"""Published models of every kind in Pyro, NumPyro and PyMC: one density in three languages.

Orthonormal matrices are polar factors of Gaussian ones for packages that sample no manifold.
"""

from contextlib import contextmanager
from typing import NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from benchmarks.problems.posterior import Posterior
from benchmarks.problems.published import published

NAMES = {
    "eight schools, centred": "eight_schools_centred", "eight schools, non-centred": "eight_schools_non_centred",
    "rats": "rats", "seeds": "seeds", "radon": "radon", "logistic regression of breast cancer": "logistic",
    "horseshoe": "horseshoe", "Gaussian process": "gaussian_process",
    "latent AR(1) of counts": "latent_autoregression", "stochastic volatility": "stochastic_volatility",
    "item response, two parameters": "two_parameters", "mixture of two normals": "mixture",
    "exercises, rank 1": "reduced_rank_of_exercises", "Florentine marriages": "marriages",
}  # fmt: skip
"""Models, and the functions that have them in NumPyro and PyMC."""
BATCH = 1000  # draws whose densities are evaluated at once


class Published(NamedTuple):
    """A posterior for three packages.

    Attributes:
        name: of the model in each package.
        posterior: the Pyro model and its functionals.
    """

    name: str
    posterior: Posterior

    @property
    def pyro_model(self):
        return self.posterior.model

    @property
    def numpyro_model(self):
        from benchmarks.problems.published.peers import in_numpyro

        return getattr(in_numpyro, NAMES[self.name])

    def pymc_model(self):
        import pymc

        from benchmarks.problems.published.peers import in_pymc

        with pymc.Model() as model:
            getattr(in_pymc, NAMES[self.name])()
        return model

    def values(self, draws):
        """Compute ``{functional: (chains, draws)}``, the log density by the Pyro model among them, of any package's.

        Args:
            draws: ``{site: (chains, draws, ...)}`` of all latent sites of the Pyro model, in NumPy; others are ignored.
        """
        with float64_by_default():
            tensors = {site: torch.tensor(draws[site]) for site in latent_shapes(self.pyro_model)}
            values = self.posterior.functionals(tensors)
            values["log density"] = log_densities(self.pyro_model, tensors)
        return {name: value.numpy() for name, value in values.items()}


@contextmanager
def float64_by_default():
    """Set torch's default dtype, which packages other than Pyro leave at float32, and put it back."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def latent_shapes(model):
    """Return ``{site: shape}`` of all sites that are not data."""
    with pyro.validation_enabled(False):  # draws from a wide prior may overflow in the likelihood
        nodes = poutine.trace(model).get_trace().iter_stochastic_nodes()
    return {site: node["value"].shape for site, node in nodes if not site_is_subsample(node)}


def log_densities(model, draws):
    """Compute the log density ``(chains, draws)`` of constrained draws ``{site: (chains, draws, ...)}``."""
    flat = {site: values.flatten(0, 1) for site, values in draws.items()}
    count = len(next(iter(flat.values())))
    parts = [_batch(model, {site: x[k : k + BATCH] for site, x in flat.items()}) for k in range(0, count, BATCH)]
    return torch.cat(parts).reshape(next(iter(draws.values())).shape[:2])


def _batch(model, draws):
    """Give draws a plate of their own, left of all plates of the model, and sum the density over everything else."""
    count = len(next(iter(draws.values())))
    together = pyro.plate("draws", count, dim=-3)(model)
    shapes = latent_shapes(together)
    values = {site: x.reshape(shapes[site]) for site, x in draws.items()}
    trace = poutine.trace(poutine.condition(together, values)).get_trace()
    trace.compute_log_prob()
    terms = (node["log_prob"] for node in trace.nodes.values() if "log_prob" in node and not site_is_subsample(node))
    return sum(term.reshape(count, -1).sum(-1) for term in terms)


PROBLEMS = {name: Published(name, published()[name]) for name in NAMES}
