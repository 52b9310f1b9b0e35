"""A problem: one density, for every package in the form that it samples."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.problems.expansions import closed_form, fastest


@dataclass(frozen=True)
class Problem:
    """One target: a density of an orthonormal X (n×p) and real coordinates v, base measure Haar × Lebesgue.

    Attributes:
        name: how tables call it.
        shape: (n, p) of the orthonormal site.
        coordinates: number of unconstrained coordinates beside it.
        log_density: ``(X, v, array_module) -> scalar`` for torch, numpy, jax.numpy and pytensor.tensor alike.
        functionals: ``{name: (X, v) -> values}`` on NumPy arrays ``(..., n, p)`` and ``(..., coordinates)``.
        truths: ``{functional: (mean, standard error)}``, those that are known.
        gradient: ``(X, v) -> (by X, by v)`` of the log density, for a package without derivatives of its own.
        expansion: the function of `benchmarks.problems.expansions` that NumPyro samples through; None for the fastest.
    """

    name: str
    shape: tuple[int, int]
    coordinates: int
    log_density: Callable
    functionals: dict[str, Callable]
    truths: Callable[[], dict[str, tuple[float, float]]] = dict
    gradient: Callable | None = None
    expansion: Callable | None = None

    def values(self, draws):
        """``{functional: (chains, draws)}`` of draws ``{site: (chains, draws, ...)}``."""
        return {name: f(draws["X"], draws.get("v")) for name, f in self.functionals.items()}

    def pyro_model(self):
        """Return the model for both packages that sample a Pyro model."""
        import pyro
        import pyro.distributions as dist
        import torch

        from pyro_manifold.distributions import StiefelUniform

        X = pyro.sample("X", StiefelUniform(*self.shape))
        v = None
        if self.coordinates:
            flat = dist.Normal(0.0, 1.0).expand([self.coordinates]).to_event(1).mask(False)
            v = pyro.sample("v", flat)
        pyro.factor("density", self.log_density(X, v, torch))

    def numpyro_model(self):
        """Over an expansion."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        Z = numpyro.sample("Z", dist.Normal(0.0, 1.0).expand(self.shape).to_event(2))
        expansion = self.expansion or fastest(self.shape[1])
        X = numpyro.deterministic("X", expansion(Z, jnp))
        v = None
        if self.coordinates:
            v = numpyro.sample("v", dist.ImproperUniform(dist.constraints.real_vector, (), (self.coordinates,)))
        numpyro.factor("density", self.log_density(X, v, jnp))

    def pymc_model(self):
        """Over the polar expansion in closed form, of two columns."""
        import pymc
        import pytensor.tensor as pt

        with pymc.Model() as model:
            Z = pymc.Normal("Z", shape=self.shape)
            X = pymc.Deterministic("X", closed_form(Z, pt))
            v = pymc.Flat("v", shape=self.coordinates) if self.coordinates else None
            pymc.Potential("density", self.log_density(X, v, pt))
        return model
