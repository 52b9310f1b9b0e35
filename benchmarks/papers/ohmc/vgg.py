"""CIFAR-10 by VGG-16 with orthogonal kernels: a single draw, and an ensemble.

    python -m benchmarks.papers.ohmc.vgg --data FOLDER [--network orthogonal] [--seeds 1] [--device cuda]

FOLDER is ``cifar-10-batches-py``, as it comes from the authors of CIFAR-10 and as torchvision keeps it. The network has
the thirteen convolutions of VGG-16 and one linear layer. Two things are other than in most programs: after each
convolution is GroupNorm, for BatchNorm makes the density of an image depend on the others of its batch, and
`to_bayesian_` refuses it (the scale of a kernel then does not matter, and there is no gain to choose); and the two wide
linear layers are left out, as usual for images of 32 pixels. "Orthogonal"
has orthonormal rows (or columns) in each kernel as a matrix, out × (in·3·3), "plain" normal priors instead. Images are
moved by up to 4 pixels and mirrored at random while learning.

First descent (temperature 0) with a falling step, then draws of OSGHMC at temperature 1 (``--temperature``) in cycles,
one kept at the end of each. "Single" is the accuracy of the last draw and the mean over all draws, "ensemble" that of
the mean of their probabilities.

The paper (Yanush & Kropotov, arXiv 1901.08045) has test accuracies of 92.70 % for the plain network and 92.85 % for the
orthogonal one. **This program has never been run at its full size**: it takes hours of a GPU, and its step sizes and
epochs are guesses from those of `benchmarks.papers.ohmc.mnist`. A thin network on generated images is what has been run
(``--short``).
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

from benchmarks.papers.ohmc.mnist import Draws
from benchmarks.tables import show
from pyro_manifold.infer import MCMC, OSGHMC
from pyro_manifold.nn import to_bayesian_

FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images' channels in [0, 1]
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MARGIN = 4  # pixels by which an image may be moved
FRICTION = 0.1
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


def run(kind, train, test, seed, *, device, batch, thinner, descent, draws, epochs_a_draw, step_size, temperature=1.0):
    """``(last, mean of singles, ensemble, seconds)``; epochs of descent, then of each draw."""
    pyro.set_rng_seed(seed)
    net = network(kind, thinner).to(device)
    batches = loader(train, batch)
    steps = max(1, round(epochs_a_draw * len(batches)))
    first = math.ceil(descent * len(batches) / steps) * steps

    def size(step):
        """Half a cosine over the descent, then one over each draw; never less than a twentieth."""
        share = step / first if step < first else ((step - first) % steps) / steps
        return step_size * max(0.05, 0.5 * (1 + math.cos(math.pi * share)))

    kernel = OSGHMC(
        posterior(net, len(train[0]), device),
        step_size=size,
        friction=FRICTION,
        num_steps=steps,
        temperature=lambda step: 0.0 if step < first else temperature,
        init_strategy=initial_value,
        integrator="euler",
    )
    found = Draws(net, *(part.to(device) for part in test))
    started = time.perf_counter()
    options = {"save_params": [], "consumers": [found], "disable_progbar": True}
    MCMC(kernel, draws, first // steps, **options).run(data_loader=batches)
    return found.single[-1], sum(found.single) / draws, found.ensemble, time.perf_counter() - started


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
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--step-size", type=float, default=7e-4)
    parser.add_argument("--descent", type=float, default=100, help="epochs of descent")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--epochs-a-draw", type=float, default=5)
    parser.add_argument("--temperature", type=float, default=1.0, help="of the draws")
    parser.add_argument("--short", action="store_true", help="a thin network on few generated images")
    arguments = parser.parse_args(argv)
    names = ("batch", "step_size", "descent", "draws", "epochs_a_draw", "temperature", "device")
    options = {name: getattr(arguments, name) for name in names} | {"thinner": 1}
    if arguments.short:
        with tempfile.TemporaryDirectory() as folder:
            generate(folder)
            train, test = (cifar10(folder, part) for part in FILES)
        # A posterior of 200 images is hardly more than the prior; at a low temperature it can be seen to learn.
        options |= {"batch": 50, "step_size": 1e-2, "descent": 20, "draws": 3, "epochs_a_draw": 1, "temperature": 1e-3}
        options["thinner"] = 16
    elif arguments.data is None:
        parser.error("--data is needed: the folder cifar-10-batches-py (or --short).")
    else:
        train, test = (cifar10(arguments.data, part) for part in FILES)
    rows = (
        [seed, *(f"{figure:.2f}" for figure in run(arguments.network, train, test, seed, **options))]
        for seed in range(arguments.seeds)
    )
    print(f"## VGG-16, {arguments.network} kernels: test accuracy in %\n")
    show(["seed", "last draw", "mean of draws", "ensemble", "seconds"], rows)


if __name__ == "__main__":
    main()
