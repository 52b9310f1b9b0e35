"""Ensembles of networks as in the OHMC paper: descent, burn-in, and members at equal distances, stored in parts."""

import math
from collections.abc import Callable
from typing import NamedTuple

import pyro
import torch

from pyro_manifold.infer import MCMC, OSGHMC


class Plan(NamedTuple):
    """The budget of a run, in steps.

    Attributes:
        descent: at temperature 0, rounded up to a multiple of ``between``.
        rate: ε at each step of the descent.
        burn_in: a multiple of ``between``.
        members: networks of the ensemble.
        between: steps from one member to the next.
        step_size: ε after the descent.
        temperature: after the descent.
        friction: α.
    """

    descent: int
    rate: Callable[[int], float]
    burn_in: int
    members: int
    between: int
    step_size: float
    temperature: float = 1.0
    friction: float = 0.1

    @property
    def parts_of_descent(self):
        """Descent in parts of ``between`` steps."""
        return math.ceil(self.descent / self.between)


class Descended:
    """Accuracy of the network at the end of the descent, kept in a file since a resumed run does not return there.

    Attributes:
        accuracy: in %; NaN if the run was past the descent when this began.
    """

    def __init__(self, path, plan, network, test):
        self._path, self._plan, self._network, self._test = path, plan, network, test
        self.accuracy = float(path.read_text()) if path.exists() else math.nan

    def __call__(self, iteration):
        if iteration.stage == "Warmup" and iteration.index + 1 == self._plan.parts_of_descent:
            (self.accuracy,), _ = accuracies(self._network, iteration.values, *self._test)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(f"{self.accuracy}\n")


def stored_members(model, plan, folder, init_strategy, data_loader=None, consumers=()):
    """Draws of the members, ``{site: (members, ...)}``.

    The run is stored below ``folder`` while it samples: a call after an interruption resumes it, bit for bit.
    """
    first = plan.parts_of_descent * plan.between
    kernel = OSGHMC(
        model, step_size=lambda step: plan.rate(step) if step < first else plan.step_size, friction=plan.friction,
        num_steps=plan.between, temperature=lambda step: 0.0 if step < first else plan.temperature,
        init_strategy=init_strategy, integrator="euler",
    )  # fmt: skip
    warmup = (first + plan.burn_in) // plan.between
    options = {"store": folder, "resume": True, "consumers": list(consumers), "disable_progbar": True}
    mcmc = MCMC(kernel, plan.members, warmup, **options)
    mcmc.run(**({} if data_loader is None else {"data_loader": data_loader}))
    return mcmc.get_samples()


def accuracies(network, draws, images, labels, batch=1000):
    """Accuracy in % of each member, and of the mean of their probabilities."""
    members, total = [], 0.0
    for k in range(len(next(iter(draws.values())))):
        values = {name: value[k].to(images.device) for name, value in draws.items()}
        with torch.no_grad():
            conditioned = pyro.poutine.condition(network, values)
            probabilities = torch.cat([conditioned(part).softmax(-1) for part in images.split(batch)])
        members.append(accuracy(probabilities, labels))
        total = total + probabilities
    return members, accuracy(total, labels)


def accuracy(probabilities, labels):
    return 100 * float((probabilities.argmax(-1) == labels).double().mean())
