"""CIFAR-10 by VGG-16 with orthogonal kernels: a single draw, and an ensemble.

    python -m benchmarks.papers.ohmc.vgg --data FOLDER [--network orthogonal] [--seeds 5] [--device cuda]

FOLDER is ``cifar-10-batches-py``, as it comes from the authors of CIFAR-10 and as torchvision keeps it. The network has
the thirteen convolutions of VGG-16 and one linear layer. Two things are other than in most programs: after each
convolution is GroupNorm, for BatchNorm makes the density of an image depend on the others of its batch, and
`to_bayesian_` refuses it (the scale of a kernel then does not matter, and there is no gain to choose); and the two wide
linear layers are left out, as usual for images of 32 pixels. "Orthogonal"
has orthonormal rows (or columns) in each kernel as a matrix, out × (in·3·3), "plain" normal priors instead. Images are
moved by up to 4 pixels and mirrored at random while learning.

The budget is that of Table 5 of Yanush & Kropotov (arXiv 1901.08045): 200 epochs of descent (temperature 0) with
batches of 128 and the rate 0.1, from the 150th epoch 0.01, then 24,000 steps with ε = 1e-5, the first 4,000 of which
are burn-in and every 2,000th of the others a member (10), five runs. A rate of 0.1 for the mean loss of N images is ε =
√(0.1/N) here, with the friction 0.1 for a momentum of 0.9. Each run is stored below ``--store`` and resumed by the same
command, so that it can be made in parts. The paper has 92.70 ± 0.05 (single) and 92.85 ± 0.03 % (ensemble) for the
orthogonal network, and quotes 93.25 ± 0.16 and 93.59 ± 0.16 % for one that is not.

**This program has never been run at its full size**: it takes hours of a GPU. A thin network on generated images is
what has been run (``--small``).
"""

from __future__ import annotations

import argparse
import io
import math
import os
import pickle
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.papers.ohmc.ensemble import Plan, accuracies, stored_members
from benchmarks.tables import show
from pyro_manifold.nn import to_bayesian_

FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images' channels in [0, 1]
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MARGIN = 4  # pixels by which an image may be moved
FRICTION = 0.1
FALL = 0.75  # share of the descent after which its rate is a tenth
PAPER = {
    "batch": 128, "descent": 200, "rate": 0.1, "burn_in": 4000, "members": 10, "between": 2000, "step_size": 1e-5,
}  # fmt: skip
SMALL = {"batch": 50, "descent": 20, "rate": 0.02, "burn_in": 4, "members": 3, "between": 4, "step_size": 1e-5}
SCALE = 0.25  # prior standard deviation of biases, and of the weights of GroupNorm about 1


def cifar10(folder, part):
    """Images ``(cases, 3, 32, 32)``, standardised, float32, and labels ``(cases,)``.

    Raises:
        FileNotFoundError: if the folder lacks a file; the sentence says which folder is expected.
    """
    pixels, labels = [], []
    for name in FILES[part]:
        path = Path(folder) / name
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: give the folder cifar-10-batches-py as --data.")
        # A pickle can run any program: only the two kinds of values that these files have are let through.
        batch = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        pixels.append(np.asarray(batch[b"data"], np.uint8))
        labels.extend(batch[b"labels"])
    images = torch.from_numpy(np.concatenate(pixels).reshape(-1, 3, 32, 32)).float() / 255
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (images - mean) / deviation, torch.tensor(labels)


class _Plain(pickle.Unpickler):
    """Reads arrays, lists and strings, and nothing else."""

    def find_class(self, module, name):
        allowed = {"_reconstruct", "ndarray", "dtype", "_frombuffer", "encode"}
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of CIFAR-10.")
        return super().find_class(module, name)


class Moved(Dataset):
    """Batches of images, each moved and mirrored at random; asked for by a list of their numbers."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        images, (height, width) = self.images[rows], self.images.shape[-2:]
        padded = functional.pad(images, [MARGIN] * 4)
        down, right = torch.randint(2 * MARGIN + 1, (2, len(images), 1))
        column = right + torch.arange(width)
        column = torch.where(torch.rand(len(images), 1) < 0.5, column, column.flip(-1))
        case = torch.arange(len(images))[:, None, None]
        row = (down + torch.arange(height))[:, :, None]
        moved = padded.permute(0, 2, 3, 1)[case, row, column[:, None, :]]
        return moved.permute(0, 3, 1, 2).contiguous(), self.labels[rows]


def loader(data, batch):
    """Batches in a random order; the last, smaller one is left out, for its shape would need a graph of its own."""
    dataset = Moved(*data)
    sampler = BatchSampler(RandomSampler(dataset), min(batch, len(dataset)), drop_last=True)
    return DataLoader(dataset, batch_size=None, sampler=sampler)


def network(kind, thinner=1):
    """VGG-16, its channels divided by ``thinner``."""
    layers, channels = [], 3
    for stage in STAGES:
        for full in stage:
            width = full // thinner
            convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)  # GroupNorm has biases
            layers += [convolution, nn.GroupNorm(min(32, width // 2), width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(channels, 10)]
    return to_bayesian_(nn.Sequential(*layers), nn.Conv2d if kind == "orthogonal" else (), bias_scale=SCALE)


def initial_value(site):
    """Vectors at their prior's mean, for thirteen layers with random biases hardly pass anything on; else a draw."""
    return site["fn"].mean.clone() if site["fn"].event_dim == 1 else site["fn"].sample()


def posterior(net, cases, device):
    """The model of a batch."""

    def model(images, labels):
        logits = net(images.to(device))
        with pyro.plate("images", cases, subsample_size=len(images)):
            pyro.sample("labels", dist.Categorical(logits=logits), obs=labels.to(device))

    return model


def run(
    kind, train, test, seed, folder, *, device, batch, thinner, descent, burn_in, between, members, step_size, rate
):
    """``(last, mean of singles, ensemble, seconds)``; epochs of descent, steps of all else."""
    pyro.set_rng_seed(seed)
    net = network(kind, thinner).to(device)
    batches = loader(train, batch)
    steps, first = round(descent * len(batches)), math.sqrt(rate / len(train[0]))

    def size(step):
        return first if step < FALL * steps else first / math.sqrt(10)

    plan = Plan(steps, size, burn_in, members, between, step_size, friction=FRICTION)
    started = time.perf_counter()
    model = posterior(net, len(train[0]), device)
    draws = stored_members(model, plan, Path(folder) / f"{kind}-{seed}", initial_value, batches)
    singles, ensemble = accuracies(net, draws, *(part.to(device) for part in test))
    return singles[-1], sum(singles) / members, ensemble, time.perf_counter() - started


def generate(folder, cases=40, size=32):
    """Files in the format of CIFAR-10, of ten coloured patterns with noise, to see that code runs."""
    random, folder = np.random.default_rng(0), Path(folder)
    coarse = random.uniform(0, 255, (10, 3, 4, 4))
    patterns = coarse.repeat(size // 4, axis=2).repeat(size // 4, axis=3)
    for name in FILES["train"] + FILES["test"]:
        labels = random.integers(10, size=cases)
        images = patterns[labels] + 30 * random.standard_normal((cases, 3, size, size))
        content = {b"data": images.clip(0, 255).astype(np.uint8).reshape(cases, -1), b"labels": labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder cifar-10-batches-py")
    parser.add_argument("--network", choices=("orthogonal", "plain"), default="orthogonal")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--store", default="results/ohmc_cifar10", help="where runs are stored")
    parser.add_argument("--small", action="store_true", help="a thin network on few generated images")
    arguments = parser.parse_args(argv)
    options, seeds, folder = PAPER | {"device": arguments.device, "thinner": 1}, arguments.seeds, arguments.store
    if arguments.small:
        with tempfile.TemporaryDirectory() as generated:
            generate(generated)
            train, test = (cifar10(generated, part) for part in FILES)
        options |= SMALL | {"thinner": 16}
        seeds = 1
    elif arguments.data is None:
        parser.error("--data is needed: the folder cifar-10-batches-py (or --small).")
    else:
        train, test = (cifar10(arguments.data, part) for part in FILES)
    rows = (
        [seed, *(f"{figure:.2f}" for figure in run(arguments.network, train, test, seed, folder, **options))]
        for seed in range(seeds)
    )
    print(f"## VGG-16, {arguments.network} kernels: test accuracy in %\n")
    show(["seed", "last draw", "mean of draws", "ensemble", "seconds"], rows)


if __name__ == "__main__":
    main()
