"""Simulation-based calibration: ranks of true values among draws, for many data sets at once.

Parameters are drawn from the prior, data from the model, and a sampler draws from the posterior of each data set. Among
L independent draws of the right posterior the rank of the true value of any quantity is uniform on 0, …, L. (Talts,
Betancourt, Simpson, Vehtari & Gelman, arXiv 1804.06788; the log likelihood as a quantity that depends on the data:
Modrák et al., Bayesian Analysis 2023.)

Each chain of a vectorised run has its own data set and therefore its own posterior: a thousand data sets cost one run.
Warm-up then tunes common settings for all posteriors, on which the distribution of no kernel depends.
"""

from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import pyro.infer
import torch
from pyro.infer import NUTS
from torch.distributions import biject_to

from pyro_manifold.contrib.calibration import Uniformity
from pyro_manifold.density import BatchedDensity, Batches, Minibatch, target_from_model
from pyro_manifold.distributions import StiefelUniform
from pyro_manifold.infer import MCMC
from pyro_manifold.manifolds import Stiefel

NOISE = 1.0
SPREAD = 0.3
ROWS = 2
QUANTITIES = (*(f"U[{i},{j}]" for i in range(3) for j in range(2)), "scale", "shift", "log likelihood")


class Model:
    """Model y = shift + scale · U + noise of one data set, conditioned on the attribute ``data``.

    The data are weakly informative, so that posteriors are nearly as wide as the prior and errors in it are visible.
    """

    def __init__(self, data, chart="polar"):
        self.data, self._chart = data, chart

    def __call__(self):
        U = pyro.sample("U", StiefelUniform(3, 2, chart=self._chart))
        scale = pyro.sample("scale", dist.LogNormal(0.0, SPREAD))
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        mean = shift[..., None, None] + scale[..., None, None] * U
        pyro.sample("y", dist.Normal(mean, NOISE).expand([ROWS, 3, 2]).to_event(3), obs=self.data)


@dataclass(frozen=True)
class Simulated:
    """Draws from the prior and the model: true values ``{site: (data sets, ...)}`` and ``(data sets, rows, 3, 2)``."""

    truth: dict
    data: torch.Tensor


def simulate(data_sets, uneven=0.5):
    """Simulate data sets, in which U[0,0] is positive with probability ``uneven``: 0.5 is the prior of `Model`."""
    U = Stiefel().random_point(data_sets, 3, 2)
    positive = torch.rand(data_sets) < uneven
    U = torch.where(((U[:, 0, 0] > 0) == positive)[:, None, None], U, -U)
    truth = {"U": U, "scale": (SPREAD * torch.randn(data_sets)).exp(), "shift": torch.randn(data_sets)}
    mean = truth["shift"][:, None, None] + truth["scale"][:, None, None] * U
    return Simulated(truth, mean[:, None] + NOISE * torch.randn(data_sets, ROWS, 3, 2))


def quantities(values, data):
    """Return the ranked quantities, ``(data sets, draws, quantities)``, of sites ``(data sets, draws, ...)``."""
    mean = values["shift"][..., None, None] + values["scale"][..., None, None] * values["U"]
    log_likelihood = -0.5 * ((data[:, None] - mean[:, :, None]) / NOISE).square().flatten(2).sum(-1)
    numbers = [values["scale"], values["shift"], log_likelihood]
    return torch.cat([values["U"].flatten(2), torch.stack(numbers, -1)], -1)


def ranks(simulated, draws):
    """Return the numbers of draws below the true value, ``(data sets, quantities)``."""
    true = quantities({name: value[:, None] for name, value in simulated.truth.items()}, simulated.data)
    return (quantities(draws, simulated.data) < true).sum(1)


# ---- a data set for each chain ----------------------------------------------------------------------------------


class OwnBatches(Batches):
    """Constant batch: the data set of each chain, ``(chains, ...)``."""

    def __init__(self, data):
        super().__init__(lambda _: {})
        self.data = data

    def __call__(self, number):
        return {"y": self.data}


def own_data(model, data, target, example, compile=None):
    """Return a function for energies and gradients of many chains, each conditioned on its own data set."""

    def potential(sites, batch):
        before, model.data = model.data, batch["y"]
        try:
            return target.potential_fn(sites)
        finally:
            model.data = before  # that of a trace is no tensor for others

    minibatch = Minibatch(potential, {})
    return BatchedDensity(lambda _: minibatch, OwnBatches(data), example, target.manifolds, own=True, compile=compile)


def draw_vectorised(make, simulated, *, draws, thinning, warmup_steps, chart="polar"):
    """Return draws ``{site: (data sets, draws, ...)}`` of a kernel, ``make(model)``, with all data sets in one run."""
    model = Model(simulated.data[0], chart)
    kernel = make(model)
    kernel.batched = lambda target, example: own_data(model, simulated.data, target, example)
    chains = len(simulated.data)
    mcmc = MCMC(kernel, draws * thinning, warmup_steps, num_chains=chains, thinning=thinning, disable_progbar=True)
    mcmc.run()
    return mcmc.get_samples(group_by_chain=True)


# ---- uniformity of ranks ----------------------------------------------------------------------------------------


def p_values(ranks_of, draws):
    """Return a p-value for each quantity, of ranks ``(data sets, quantities)``."""
    uniformity = Uniformity(len(ranks_of))
    return [uniformity.p_value(uniformity.statistic(column, draws)) for column in np.asarray(ranks_of).T]


# ---- Pyro's NUTS, one data set after the other ------------------------------------------------------------------


class _Graph(torch.autograd.Function):
    """Traced energy with its traced gradient, for a sampler that uses automatic differentiation."""

    @staticmethod
    def forward(context, potential, names, *values):
        energy, gradient = potential({name: value.unsqueeze(0) for name, value in zip(names, values, strict=True)})
        context.save_for_backward(*(gradient[name][0] for name in names))
        return energy[0].clone()

    @staticmethod
    def backward(context, slope):
        return None, None, *(slope * gradient for gradient in context.saved_tensors)


def draw_by_nuts(simulated, *, draws, thinning, warmup_steps, chart="polar"):
    """Return draws as `draw_vectorised` does, by Pyro's NUTS with a registered transform and a traced potential."""
    model = Model(simulated.data[0], chart)
    target = target_from_model(model, transforms={"U": biject_to(StiefelUniform(3, 2, chart=chart).support).inv})
    start = {name: value.unsqueeze(0) for name, value in target.draw().items()}
    names = list(start)
    own = own_data(model, simulated.data[:1], target, start, compile={})
    found = []
    for data in simulated.data:
        own.batches.data = data.unsqueeze(0)
        kernel = NUTS(potential_fn=lambda sites: _Graph.apply(own, names, *(sites[name] for name in names)))
        mcmc = pyro.infer.MCMC(
            kernel, draws * thinning, warmup_steps, initial_params=target.draw(), disable_progbar=True
        )
        mcmc.run()
        sites = {name: value[thinning - 1 :: thinning] for name, value in mcmc.get_samples().items()}
        found.append(target.values(sites))
    return {name: torch.stack([values[name] for values in found]) for name in names}
