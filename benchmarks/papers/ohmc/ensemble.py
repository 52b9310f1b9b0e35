"""Ensembles of networks as in the OHMC paper: descent, burn-in, and members at equal distances, stored in parts."""

from __future__ import annotations

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


def stored_members(model, plan, folder, init_strategy, data_loader=None):
    """Draws of the members, ``{site: (members, ...)}``.

    The run is stored below ``folder`` while it samples: a call after an interruption resumes it, bit for bit.
    """
    first = math.ceil(plan.descent / plan.between) * plan.between
    kernel = OSGHMC(
        model,
        step_size=lambda step: plan.rate(step) if step < first else plan.step_size,
        friction=plan.friction,
        num_steps=plan.between,
        temperature=lambda step: 0.0 if step < first else plan.temperature,
        init_strategy=init_strategy,
        integrator="euler",
    )
    warmup = (first + plan.burn_in) // plan.between
    mcmc = MCMC(kernel, plan.members, warmup, store=folder, resume=True, disable_progbar=True)
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
