"""Posteriors of networks of digits, and the samplers that are compared on them."""

import itertools
import math
from functools import partial

import torch
from torch import nn

from benchmarks import image_classifier
from pyro_manifold.infer import NNSGHMC, PSGLD, SGHMC, SGLD, MetaSampler
from pyro_manifold.nn import to_bayesian_

BATCH, HELD_OUT = 500, 10_000
posterior = partial(image_classifier.posterior, batch=BATCH)
PROBLEMS = {
    "ReLU": ((784, 40, 40, 10), nn.ReLU, "0123456789"),
    "sigmoid": ((784, 40, 40, 10), nn.Sigmoid, "0123456789"),
    "digits": ((784, 40, 40, 5), nn.ReLU, "56789"),
    "digits, small network": ((784, 20, 5), nn.ReLU, "56789"),
}
"""Layers, activation and digits: of the paper's three tests, NT, AF and Data, and of a smaller network for the last."""


def network(sizes, activation):
    parts = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), activation())]
    return to_bayesian_(nn.Sequential(*parts[:-1]), (), prior_scale=1.0)


def small_weights(site):
    """Initial weights as networks are usually begun, which is far within the prior."""
    return site["fn"].sample() / site["fn"].event_shape[-1] ** 0.5


def only(digits, images, labels):
    """Images of some digits, which are the labels 0, 1, ... from then on."""
    wanted = torch.tensor([int(digit) for digit in digits])
    chosen = torch.isin(labels, wanted)
    return images[chosen], torch.searchsorted(wanted, labels[chosen])


def sampler_of(name):
    """Read a learned sampler; SystemExit if there is none."""
    try:
        return MetaSampler.load(name)
    except (ValueError, FileNotFoundError) as error:
        raise SystemExit(f"--sampler: {error}") from error


def split(images, labels):
    """All but the last 10,000 training images, or a quarter of them; and these, which choose."""
    held_out = min(HELD_OUT, len(images) // 4)
    return (images[:-held_out], labels[:-held_out]), (images[-held_out:], labels[-held_out:])


def kernels(sampler, cases):
    """``{name: (a step size to begin with, by what to change it, other settings)}``: those of the paper."""
    euler = {"kernel": SGHMC, "integrator": "euler"}
    return {
        "NNSGHMC": (sampler.step_size_for(cases), 1.4, {"kernel": NNSGHMC, "sampler": sampler}),
        "SGHMC": (math.sqrt(0.01 / cases), 1.4, {**euler, "friction": 0.01}),
        "SGHMC, friction 0.1": (math.sqrt(0.1 / cases), 1.4, {**euler, "friction": 0.1}),
        "SGLD": (0.4 / cases, 2, {"kernel": SGLD}),
        "pSGLD": (2.8e-3, 2, {"kernel": PSGLD, "decay": 0.99, "damping": 1e-5 * cases}),
    }


def best_of(loss, first, factor):
    """The one of ``first`` times powers of a factor from which a step either way is worse; and all that were tried."""
    tried = {first: loss(first)}
    for ratio in (factor, 1 / factor):
        other = first * ratio
        tried[other] = loss(other)
        while min(tried, key=tried.get) == other:
            other *= ratio
            tried[other] = loss(other)
        if min(tried, key=tried.get) != first:
            break
    return min(tried, key=tried.get), tried
