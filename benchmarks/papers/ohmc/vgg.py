"""CIFAR-10 by VGG-16 with orthogonal kernels: a single draw, and an ensemble.

    python -m benchmarks.papers.ohmc.vgg --data FOLDER [--network orthogonal] [--seeds 5] [--device cuda]
    python -m benchmarks.papers.ohmc.vgg --data FOLDER --thinner 4 --epochs 30 [--network orthogonal] [--seeds 1]

FOLDER is ``cifar-10-batches-py``, as it comes from the authors of CIFAR-10 and as torchvision keeps it, or a folder
with ``train/airplane/*.png`` and so on, as in the GitHub repository cyizhuo/CIFAR-10-dataset (read by Pillow, which
matplotlib installs).

The network has the thirteen convolutions of VGG-16 and one linear layer. Two things are other than in most programs:
after each convolution is GroupNorm, for BatchNorm makes the density of an image depend on the others of its batch, and
`to_bayesian_` refuses it (the scale of a kernel then does not matter, and there is no gain to choose); and the two wide
linear layers are left out, as usual for images of 32 pixels. "Orthogonal" has orthonormal rows (or columns) in each
kernel as a matrix, out × (in·3·3), "plain" normal priors instead. Images are moved by up to 4 pixels and mirrored at
random while learning.

Without ``--epochs`` the budget is that of Table 5 of Yanush & Kropotov (arXiv 1901.08045): 200 epochs of descent
(temperature 0) with batches of 128 and the rate 0.1, from the 150th epoch 0.01, then 24,000 steps with ε = 1e-5, the
first 4,000 of which are burn-in and every 2,000th of the others a member (10), five runs. A rate of 0.1 for the mean
loss of N images is ε = √(0.1/N) here, with the friction 0.1 for a momentum of 0.9. The paper has 92.70 ± 0.05 (single)
and 92.85 ± 0.03 % (ensemble) for the orthogonal network, and quotes 93.25 ± 0.16 and 93.59 ± 0.16 % for one that is
not. **This program has never been run at that size**: it takes hours of a GPU.

``--thinner 4`` divides all channels by 4, for a CPU. ``--epochs 30`` is a budget of its own, not the paper's: nine
tenths of the epochs are descent, whose rate grows for an epoch and then falls by half a cosine to a hundredth; the last
tenth has twelve equal parts, the first two of which are burn-in, and each other ends with a member.

A run is stored in parts below ``--store`` and resumed by the same command: the descent, and the draws at each
``--temperature``, which begin where the descent ended. ``--held-out 5000`` tests on so many training images, to choose
settings by.
"""

import io
import math
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from benchmarks.arguments import check_held_out, count, natural, positive, without_effect
from benchmarks.papers.ohmc.ensemble import Plan, accuracies, stored_members
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show
from pyro_manifold.nn import to_bayesian_

FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images' channels in [0, 1]
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
MARGIN = 4  # pixels by which an image may be moved
FRICTION = 0.1
FALL = 0.75  # share of the descent after which its rate is a tenth
PAPER = {"batch": 128, "descent": 200, "burn_in": 4000, "members": 10, "between": 2000}
SMALL = {"batch": 50, "descent": 20, "burn_in": 4, "members": 3, "between": 4}
RATE, STEP_SIZE = 0.1, 1e-5  # the paper's, of the descent and of the draws
SCALE = 0.25  # prior standard deviation of biases, and of the weights of GroupNorm about 1


def cifar10(folder, part):
    """Images ``(cases, 3, 32, 32)``, standardised, float32, and labels ``(cases,)``.

    Raises:
        SystemExit: if the folder lacks a file; the sentence says which folders are expected.
    """
    read = _from_pictures if (Path(folder) / part).is_dir() else _from_batches
    pixels, labels = read(Path(folder), part)
    images = torch.from_numpy(pixels).float() / 255
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (images - mean) / deviation, torch.tensor(labels)


def _from_pictures(folder, part):
    """Pixels ``(cases, 3, 32, 32)`` and labels; classes are numbered by the alphabet, as their authors number them."""
    from PIL import Image

    pictures = sorted((folder / part).glob("*/*.png"))
    if not pictures:
        raise SystemExit(f"{folder / part} has no pictures */*.png: give the folder of CIFAR-10 as --data.")
    classes = sorted({path.parent.name for path in pictures})
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in pictures])
    return pixels.transpose(0, 3, 1, 2), [classes.index(path.parent.name) for path in pictures]


def _from_batches(folder, part):
    pixels, labels = [], []
    for name in FILES[part]:
        path = folder / name
        if not path.exists():
            raise SystemExit(
                f"{path} is missing: give the folder cifar-10-batches-py as --data, or one with train/ and test/ of "
                "pictures."
            )
        # A pickle can run any program: only the two kinds of values that these files have are let through.
        try:
            batch = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        except (pickle.UnpicklingError, EOFError) as error:
            raise SystemExit(f"{path} is damaged or no file of CIFAR-10 ({error}): fetch it again.") from error
        pixels.append(np.asarray(batch[b"data"], np.uint8))
        labels.extend(batch[b"labels"])
    return np.concatenate(pixels).reshape(-1, 3, 32, 32), labels


def split(train, held_out):
    """The training images without a random part of them, and that part, as a test."""
    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(0))
    return [tuple(values[rows] for values in train) for rows in (order[held_out:], order[:held_out])]


class _Plain(pickle.Unpickler):
    """Reads arrays, lists and strings, and nothing else."""

    def find_class(self, module, name):
        allowed = {"_reconstruct", "ndarray", "dtype", "_frombuffer", "encode"}
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a file of CIFAR-10.")
        return super().find_class(module, name)


class Moved(Dataset):
    """Batches of images, each moved and mirrored at random, on their device; asked for by a list of their numbers.

    Random numbers are drawn on the CPU, so that they are the same for each device.
    """

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        rows, (height, width) = torch.tensor(rows), self.images.shape[-2:]
        down, right = torch.randint(2 * MARGIN + 1, (2, len(rows), 1))
        column = right + torch.arange(width)
        column = torch.where(torch.rand(len(rows), 1) < 0.5, column, column.flip(-1))
        row = (down + torch.arange(height))[:, :, None]
        rows, row, column = (numbers.to(self.images.device) for numbers in (rows, row, column[:, None, :]))
        padded = functional.pad(self.images[rows], [MARGIN] * 4)
        case = torch.arange(len(rows), device=rows.device)[:, None, None]
        moved = padded.permute(0, 2, 3, 1)[case, row, column]
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


def steep(step, steps, _):
    """Share of the rate at a step of the descent: the paper's, a tenth of it for the last quarter."""
    return 1.0 if step < FALL * steps else 0.1


def half_cosine(step, steps, epoch):
    """Share of the rate at a step of the descent: growth for an epoch, then half a cosine to a hundredth."""
    return min(1.0, (step + 1) / epoch) * max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def run(
    kind, train, test, seed, folder, *, device, batch, thinner, descent, share, burn_in, between, members,
    step_size, rate, temperature,
):  # fmt: skip
    """``(after descent, last, mean of singles, ensemble, CPU seconds)``; epochs of descent, steps of all else."""
    pyro.set_rng_seed(seed)
    net = network(kind, thinner).to(device)
    batches = loader([part.to(device) for part in train], batch)
    epoch = len(batches)
    steps, first, folder = round(descent * epoch), math.sqrt(rate / len(train[0])), Path(folder) / f"{kind}-{seed}"

    def size(step):
        return first * math.sqrt(share(step, steps, epoch))

    # The last part of the descent is its only draw, from which those at all temperatures begin.
    down = Plan(steps - between, size, 0, 1, between, size(steps), temperature=0.0, friction=FRICTION)
    plan = Plan(0, size, burn_in, members, between, step_size, temperature, FRICTION)
    started = time.process_time()
    model = posterior(net, len(train[0]), device)
    descended = stored_members(model, down, folder / "descent", initial_value, batches)
    last = {name: value[-1] for name, value in descended.items()}
    place = folder / f"temperature-{temperature:g}-{step_size:g}"
    draws = stored_members(model, plan, place, init_to_value(values=last), batches)
    seconds, test = time.process_time() - started, [part.to(device) for part in test]
    singles, ensemble = accuracies(net, draws, *test)
    return accuracies(net, descended, *test)[1], singles[-1], sum(singles) / members, ensemble, seconds


def budget(epochs, images, batch):
    """Options of a run of so many epochs in all, nine tenths of which are descent."""
    between = max(1, round(0.1 * epochs * (images // batch) / 12))
    return {"descent": 0.9 * epochs, "burn_in": 2 * between, "members": 10, "between": between, "share": half_cosine}


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
    parser = parser_of(
        __doc__, data=option(None, "folder cifar-10-batches-py, or one with train/ and test/ of pictures"),
        network=option("orthogonal", choices=("orthogonal", "plain")),
        thinner=option(1, "divides the channels", type=count, choices=(1, 2, 4, 8, 16)),
        epochs=option(None, "of descent and draws together; default: the paper's budget", type=positive),
        rate=option(RATE, "of the descent, for the mean loss", type=positive),
        step_size=option(STEP_SIZE, "ε of the draws", type=positive), temperature=option(1.0, "of the draws"),
        held_out=option(0, "so many training images as the test", type=natural), seeds=option(5, type=count),
        device="cpu", store=option("results/ohmc_cifar10", "where runs are stored"),
        small=switch("a thin network on few generated images"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.float32)
    names = ("device", "thinner", "rate", "step_size", "temperature")
    options = PAPER | {"share": steep} | {name: getattr(arguments, name) for name in names}
    if arguments.small:
        without_effect(parser, arguments, ("rate", "thinner", "seeds", "data"), "with --small")
        with tempfile.TemporaryDirectory() as generated:
            generate(generated)
            train, test = (cifar10(generated, part) for part in FILES)
        options |= SMALL | {"thinner": 16, "rate": 0.02}
    elif arguments.data is None:
        parser.error("--data is needed: the folder of CIFAR-10 (or --small).")
    else:
        train, test = (cifar10(arguments.data, part) for part in FILES)
    if arguments.held_out:
        check_held_out(parser, arguments.held_out, len(train[0]))
        train, test = split(train, arguments.held_out)
    if arguments.epochs:
        options |= budget(arguments.epochs, len(train[0]), options["batch"])
    seeds, folder = range(1 if arguments.small else arguments.seeds), Path(arguments.store)
    folder = folder / f"thinner-{options['thinner']}" if options["thinner"] > 1 else folder
    rows = (
        [seed, *(f"{figure:.2f}" for figure in run(arguments.network, train, test, seed, folder, **options))]
        for seed in seeds
    )
    print(f"## VGG-16, {arguments.network} kernels: test accuracy in %\n")
    show(["seed", "after descent", "last draw", "mean of draws", "ensemble", "CPU seconds"], rows)


if __name__ == "__main__":
    main()
