"""Pyro, NumPyro and PyMC under one set of names, so that a model is written once and is the same density in all.

Families have the names and the order of parameters that the three packages share. A loop over time is Python's own
in Pyro and `lax.scan` in NumPyro, the form that each compiles best; PyMC has none here.
"""

from abc import ABC, abstractmethod

import numpy as np


class Language(ABC):
    """What a model needs of a package; ``xp`` has its functions of arrays."""

    xp = None

    @abstractmethod
    def array(self, values):
        """Data as an array of float64."""

    @abstractmethod
    def flat(self, name, size=None, support="real"):
        """A site with a flat prior: on the reals, ``positive``, ``ordered_vector`` or ``positive_ordered_vector``."""

    @abstractmethod
    def draw(self, name, family, *parameters, size=None):
        """A latent site."""

    @abstractmethod
    def observe(self, name, family, *parameters, of):
        """Observed data."""

    @abstractmethod
    def gaussian(self, name, cholesky, of):
        """A vector of data from a normal distribution with mean 0, by the Cholesky factor of its covariance."""

    @abstractmethod
    def log_density(self, family, *parameters, of):
        """Log density of each entry."""

    @abstractmethod
    def factor(self, name, value):
        """A term of the log density."""

    @abstractmethod
    def log_sum_exp(self, x, axis): ...

    @abstractmethod
    def cholesky(self, x): ...

    @abstractmethod
    def scan(self, step, first, *columns):
        """States ``step(state, *row)`` after each row, stacked."""


class _Programs(Language):
    """Pyro and NumPyro, whose names are the same."""

    def __init__(self, package, distributions, xp):
        self._package, self._families, self.xp = package, distributions, xp

    def flat(self, name, size=None, support="real"):
        constraint = getattr(self._families.constraints, support)
        return self._package.sample(
            name, self._families.ImproperUniform(constraint, (), () if size is None else (size,))
        )

    def draw(self, name, family, *parameters, size=None):
        found = getattr(self._families, family)(*parameters)
        return self._package.sample(name, found if size is None else found.expand([size]).to_event(1))

    def observe(self, name, family, *parameters, of):
        self._package.sample(name, getattr(self._families, family)(*parameters).to_event(len(of.shape)), obs=of)

    def gaussian(self, name, cholesky, of):
        found = self._families.MultivariateNormal(self.xp.zeros(len(of)), scale_tril=cholesky)
        self._package.sample(name, found, obs=of)

    def log_density(self, family, *parameters, of):
        return getattr(self._families, family)(*parameters).log_prob(of)

    def factor(self, name, value):
        self._package.factor(name, value)

    def cholesky(self, x):
        return self.xp.linalg.cholesky(x)


class Pyro(_Programs):
    def __init__(self):
        import pyro
        import pyro.distributions
        import torch

        super().__init__(pyro, pyro.distributions, torch)

    def array(self, values):
        return self.xp.tensor(np.asarray(values, dtype=float))

    def log_sum_exp(self, x, axis):
        return self.xp.logsumexp(x, axis)

    def scan(self, step, first, *columns):
        states = [first]
        for row in zip(*columns, strict=True):
            states.append(step(states[-1], *row))
        return self.xp.stack(states[1:])


class NumPyro(_Programs):
    def __init__(self):
        import jax
        import jax.numpy
        import numpyro
        import numpyro.distributions

        self._jax = jax
        super().__init__(numpyro, numpyro.distributions, jax.numpy)

    def array(self, values):
        return self.xp.asarray(np.asarray(values, dtype=float))

    def log_sum_exp(self, x, axis):
        return self._jax.scipy.special.logsumexp(x, axis)

    def scan(self, step, first, *columns):
        def both(state, row):
            state = step(state, *row)
            return state, state

        return self._jax.lax.scan(both, first, columns)[1]


class PyMC(Language):
    def __init__(self):
        import pymc
        import pytensor.tensor

        self._package, self.xp = pymc, pytensor.tensor
        transforms = pymc.distributions.transforms
        self._transforms = {
            "ordered_vector": transforms.ordered,
            "positive_ordered_vector": transforms.Chain([transforms.log, transforms.ordered]),
        }

    def array(self, values):
        return self.xp.as_tensor_variable(np.asarray(values, dtype=float))

    def flat(self, name, size=None, support="real"):
        family = self._package.HalfFlat if support.startswith("positive") else self._package.Flat
        if support in self._transforms:
            options = {"default_transform": self._transforms[support], "initval": np.arange(1.0, size + 1)}
            return family(name, shape=size, **options)
        return family(name, shape=() if size is None else size)

    def draw(self, name, family, *parameters, size=None):
        options = {} if size is None else {"shape": size}
        return getattr(self._package, family)(name, **_named(family, parameters), **options)

    def observe(self, name, family, *parameters, of):
        getattr(self._package, family)(name, **_named(family, parameters), observed=of)

    def gaussian(self, name, cholesky, of):
        self._package.MvNormal(name, 0.0, chol=cholesky, observed=of)

    def log_density(self, family, *parameters, of):
        return self._package.logp(getattr(self._package, family).dist(**_named(family, parameters)), of)

    def factor(self, name, value):
        self._package.Potential(name, value)

    def log_sum_exp(self, x, axis):
        return self.xp.logsumexp(x, axis)

    def cholesky(self, x):
        return self.xp.linalg.cholesky(x)

    def scan(self, step, first, *columns):
        raise NotImplementedError("loops over time are not written for PyMC")


_PARAMETERS = {
    "Normal": "mu sigma", "LogNormal": "mu sigma", "StudentT": "nu mu sigma", "HalfNormal": "sigma",
    "HalfCauchy": "beta", "Gamma": "alpha beta", "Beta": "alpha beta", "Dirichlet": "a", "Uniform": "lower upper",
    "Exponential": "lam", "Poisson": "mu",
}  # fmt: skip


def _named(family, parameters):
    """Parameters by PyMC's names: of some families it takes no others."""
    return dict(zip(_PARAMETERS[family].split(), parameters, strict=True))
