"""Training of a sampler of networks as in the paper: its Q sees the energy.

Section 5.2 and the appendix of Gong, Li & Hernández-Lobato (ICLR 2019), and their code where the two differ. Theirs,
and here: 784-20-10 with ReLU (784-20-5 for the digits 0 to 4), standard normal priors, batches of 500 that all chains
share, 20 chains that begin at weights of standard deviation 0.2 in each epoch, per-batch rate 0.007, that is steps of
√(0.007/N), 8 segments of 100 steps an epoch with one change of the weights after each, only the cross-chain loss, on
every 5th draw, Stein scores of all coordinates together, friction 0.01 Q², networks of 10 hidden units, Adam with
3e-3. Gradients, of a mean image, are multiplied by 70. The paper has 100 epochs, the file of its figures was written
after 40.

Other than theirs: networks are smooth and take squares (see `MetaSampler`); Q begins near 1 in place of 0; there is a
constant friction of 0.002, in place of none; back-propagation is over 20 steps (15 and 10 in their two programs), at a
fiftieth of the coordinates; the last 10,000 training images are left out, and momenta begin as draws. With
``--root-mean-square`` gradients are in units of their root mean square, in place of the factor 70.
"""

import itertools
import math

import torch
from torch import nn

from benchmarks.papers.nnsghmc.digits import network, only, posterior, split
from pyro_manifold.infer import MetaSampler, MetaTask, train_meta_sampler

CHAINS, RATE, WIDTH = 20, 0.007, 20
GRADIENTS = 70  # factor of the gradient of a mean image as an input of the networks
CENTRE, SCALE = 0.6, 0.4
"""Centre and scale of the energy by the number of images, which falls from about 5 to 0.4 within a round."""


def broad_weights(site):
    """Initial weights of training in the authors' code: standard deviation 0.2 for each weight and bias."""
    return 0.2 * site["fn"].sample()


def written(path, images, labels, digits, rate, start, networks, command, further="", **settings):
    """Train a sampler on 784-20 and as many outputs as digits, resumed from ``path.training`` if it exists; write it.

    Args:
        path: of the sampler.
        images: all training images, of which the last 10,000 are left out.
        labels: of the images.
        digits: to train on.
        rate: of a batch.
        start: initial weights.
        networks: arguments of `MetaSampler.random`, by the number of images.
        command: that trains the sampler, without its digits.
        further: options that follow the digits.
        settings: of the training.
    """
    images, labels = only(digits, *split(images, labels)[0])
    sizes, cases = (784, WIDTH, len(digits)), len(images)
    task = MetaTask(posterior(network(sizes, nn.ReLU), images, labels), init_strategy=start)
    problem = {
        "step_size": math.sqrt(rate / cases),
        "dimension": sum((before + 1) * after for before, after in itertools.pairwise(sizes)),
        "data_size": cases,
    }
    sampler = MetaSampler.random(random=torch.Generator().manual_seed(0), **networks(cases), **problem)
    command = f"python -m benchmarks.papers.nnsghmc.mnist --data FOLDER {command}"
    command += ("" if digits == "0123456789" else f" --digits {digits}") + further
    train_meta_sampler(
        [task],
        step_size=problem["step_size"],
        sampler=sampler,
        within=0.0,  # the cross-chain loss alone, as in the paper
        fraction=0.02,
        checkpoint=f"{path}.training",
        command=command,
        **settings,
    ).save(path)


def train(path, images, labels, rounds, digits, root_mean_square=False, short=False):
    """Train for so many rounds in all, as in the paper."""

    def networks(cases):
        unit = None if root_mean_square else cases / GRADIENTS
        energy = {"energy_centre": CENTRE * cases, "energy_scale": SCALE * cases}
        return {"hidden": 10, "curl_friction": 0.01, "constant_friction": 0.002, "gradient_scale": unit, **energy}

    command = f"--paper --train FILE --rounds {rounds}"
    budget = {"chains": 4, "steps": 10, "segments": 2, "truncation": 10} if short else {}
    settings = {"chains": CHAINS, "steps": 100, "segments": 8, "truncation": 20, **budget}
    settings |= {"thinning": 5, "scores": "joint", "per_chain_minibatches": False, "learning_rate": 0.003}
    further = " --root-mean-square" * root_mean_square + " --short" * short
    options = {"rounds": rounds, "checkpoint_every": 1, "further": further}
    written(path, images, labels, digits, RATE, broad_weights, networks, command, **options, **settings)
