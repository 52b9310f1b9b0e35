"""A network small enough for HMC with all of its data: 160 digits, 784-20-10, and what it is asked about.

It learns from the first 16 images of each class and predicts the first 1,000 test images. Hidden units are tanh; priors
are N(0, 1/784) for the hidden weights, N(0, 1) for all others. The hidden weights are written as standard normal
numbers divided by 28, so that all sites have unit scale under the prior, which is what kernels without masses need; the
distribution of functions is that of the plain form.
"""

import hashlib
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.images import generated, mnist
from pyro_manifold.nn import to_bayesian_

PIXELS, WIDTH, CLASSES = 784, 20, 10
IN_EACH_CLASS, TESTED = 16, 1000
OUTSIDE = ("permuted", "turned")
"""Images that are no digits: the tested ones with their pixels in another order, the same for all images, which leaves
brightness and takes the strokes; and turned by a quarter, of which some (0, 1, 8) stay near to a digit."""


class Digits(NamedTuple):
    """Images ``(cases, 784)`` and labels to learn from; images to predict, and labels of some.

    Attributes:
        asked: the tested images, and those of `OUTSIDE`, ``(3, tested, 784)``.
        tested_labels: of the tested images.
    """

    images: Tensor
    labels: Tensor
    asked: Tensor
    tested_labels: Tensor

    @property
    def fingerprint(self):
        """Checksum of all that a reference depends on, to refuse one of other data."""
        parts = [part.detach().cpu().float().numpy().tobytes() for part in self]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def digits(folder):
    """Small digits from MNIST's four files."""
    images, labels = mnist(folder, "train")
    chosen = torch.cat([(labels == k).nonzero().flatten()[:IN_EACH_CLASS] for k in range(CLASSES)])
    tested, tested_labels = (part[:TESTED] for part in mnist(folder, "test"))
    return Digits(images[chosen], labels[chosen], _asked(tested), tested_labels)


def patterns(cases=40, tested=50):
    """Generated ones, to see that code runs."""
    tested, tested_labels = generated(tested, 2)
    return Digits(*generated(cases, 1), _asked(tested), tested_labels)


def _asked(tested):
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))
    turned = tested.reshape(-1, 28, 28).rot90(1, (1, 2)).reshape(-1, PIXELS)
    return torch.stack([tested, tested[:, order], turned])


class Scaled(nn.Linear):
    """A linear layer whose inputs are divided by the root of their number."""

    def forward(self, x):
        return super().forward(x / math.sqrt(self.in_features))


def plain_network(width=WIDTH):
    """The network with parameters, all of which have the prior N(0, 1)."""
    return nn.Sequential(Scaled(PIXELS, width), nn.Tanh(), nn.Linear(width, CLASSES))


def bayesian_network(width=WIDTH):
    """The same with sites in place of parameters."""
    return to_bayesian_(plain_network(width), (), prior_scale=1.0)


def orthogonal_network(width=WIDTH):
    """Another model: hidden weights with orthonormal rows, uniform, whose entries have the variance 1/784 too."""
    return to_bayesian_(nn.Sequential(nn.Linear(PIXELS, width), nn.Tanh(), nn.Linear(width, CLASSES)), prior_scale=1.0)


def probabilities(logits):
    """Probabilities of the classes, the form in which predictions are averaged."""
    return logits.softmax(-1)
