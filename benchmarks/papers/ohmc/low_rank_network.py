"""Table 7 and Figure 3 of the OHMC paper: digits by 784-784,100-784,10-10,10, as a bottleneck and as U diag(σ) Vᵀ.

    python -m benchmarks.papers.ohmc.low_rank_network --data FOLDER [--seeds 5] [--figure FILE] [--small]

As in the paper (Yanush & Kropotov, arXiv 1901.08045): two hidden layers of 784 units whose weights have rank at most
100 and 10, an output layer of full rank, the first 50,000 of MNIST's training images to train, the other 10,000 to
test, single networks after 20 epochs.

The paper leaves open the nonlinearity, the optimiser with its rate and batches, initial values and a penalty. Here:
ReLU, Adam (`TorchRiemannianAdam`) for both forms with a rate that falls to zero by half a cosine, batches of 256, no
penalty. U and V have ten times the rate of the other parameters. Both forms begin with the same matrices W: U diag(σ)
Vᵀ with uniform U and V and equal σ, and in the bottleneck (U diag(√σ)) (diag(√σ) Vᵀ); ``--initial default`` begins the
bottleneck as `torch.nn.Linear` does. The rate of each form is the best of a few after 4 epochs on 45,000 of the
training images, by the other 5,000 (``--choose``). The order of σ and their signs are those of columns of U, so that
a single network needs no constraint on them. Figures of each network are kept in results/; a second call reads them.
"""

import math
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from benchmarks.arguments import count, new_file, positive, without_effect
from benchmarks.images import generated, mnist
from benchmarks.pictures import pyplot
from benchmarks.stored import check_settings, checksum, read_json, write_json
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show, with_deviation
from pyro_manifold.manifolds import Stiefel
from pyro_manifold.optim import TorchRiemannianAdam

TRAIN, BATCH, EPOCHS = 50_000, 256, 20
RESULTS = Path("results/ohmc_low_rank")
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
FACTOR = 10.0
"""Rate of U and V by that of other parameters: as steps of W then are about those of the bottleneck."""
HELD_OUT, TRIAL_EPOCHS, TRIAL_SEED = 5_000, 4, 100
CHOSEN = {"bottleneck": 3e-3, "SVD": 1e-2}
PAPER = {"bottleneck": ("98.01", "97.53"), "SVD": ("99.90", "98.25")}


class Product(nn.Module):
    """A linear layer W1 W2 of bounded rank, with both factors free."""

    def __init__(self, left, scales, right):
        super().__init__()
        self.left = nn.Parameter(left * scales.sqrt())
        self.right = nn.Parameter(right * scales.sqrt())
        self.bias = nn.Parameter(left.new_zeros(len(left)))

    def forward(self, x):
        return functional.linear(x @ self.right, self.left, self.bias)

    def groups(self):
        return [{"params": [self.left, self.right, self.bias]}]


class SingularValues(nn.Module):
    """A linear layer U diag(σ) Vᵀ with U and V on the Stiefel manifold."""

    def __init__(self, left, scales, right):
        super().__init__()
        self.left, self.right, self.unit = nn.Parameter(left), nn.Parameter(right), float(scales[0])
        self.scales = nn.Parameter(torch.ones_like(scales))
        self.bias = nn.Parameter(left.new_zeros(len(left)))

    def forward(self, x):
        return functional.linear(x @ self.right * (self.unit * self.scales), self.left, self.bias)

    def groups(self):
        return [
            {"params": [self.left, self.right], "manifold": Stiefel(), "factor": FACTOR},
            {"params": [self.scales, self.bias]},
        ]


FORMS = {"bottleneck": Product, "SVD": SingularValues}


def factors(rank, width):
    """U, σ and V of a matrix that keeps the variance of what passes a ReLU."""
    left, right = (Stiefel().random_point(width, rank) for _ in range(2))
    return left, left.new_full((rank,), math.sqrt(2 * width / rank)), right


def network(form, ranks, width, initial):
    """The network and the groups of its parameters."""
    low_rank = [FORMS[form](*factors(rank, width)) for rank in ranks]
    if initial == "default":
        for layer, rank in zip(low_rank, ranks, strict=True):
            layer.right.data = nn.Linear(width, rank, bias=False).weight.mT.detach().clone()
            layer.left.data = nn.Linear(rank, width, bias=False).weight.detach().clone()
    output = nn.Linear(width, 10)
    groups = [group for layer in low_rank for group in layer.groups()]
    return nn.Sequential(low_rank[0], nn.ReLU(), low_rank[1], nn.ReLU(), output), [
        *groups,
        {"params": list(output.parameters())},
    ]


@torch.no_grad()
def assess(net, images, labels):
    """Mean loss and accuracy in %."""
    logits = net(images)
    loss = functional.cross_entropy(logits, labels)
    return float(loss), 100 * float((logits.argmax(-1) == labels).float().mean())


def train(form, data, other, seed, *, rate, epochs, ranks=(100, 10), initial="same"):
    """Yield ``(train loss, train accuracy, test loss, test accuracy)`` after each epoch."""
    torch.manual_seed(seed)
    net, groups = network(form, ranks, data[0].shape[1], initial)
    optimiser = TorchRiemannianAdam([{**group, "lr": rate * group.pop("factor", 1.0)} for group in groups], lr=rate)
    count = len(data[0]) // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * count)
    for _ in range(epochs):
        for rows in torch.randperm(len(data[0]))[: count * BATCH].split(BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(net(data[0][rows]), data[1][rows]).backward()
            optimiser.step()
            schedule.step()
        yield *assess(net, *data), *assess(net, *other)


def choose(form, data, rates, **options):
    """Print accuracies on held-out training images by rate, and return the best rate."""
    learning, held_out = [part[:-HELD_OUT] for part in data], [part[-HELD_OUT:] for part in data]
    found = {}
    for rate in rates:
        *_, last = train(form, learning, held_out, TRIAL_SEED, rate=rate, epochs=TRIAL_EPOCHS, **options)
        found[rate] = last[-1]
    print(f"{form}: " + ", ".join(f"{rate:g} {accuracy:.2f} %" for rate, accuracy in found.items()), flush=True)
    return max(found, key=found.get)


def curve_of(form, data, other, seed, folder, **options):
    """Figures of each epoch, and process seconds; kept in the folder, unless it is None."""
    path = None if folder is None else folder / f"{form}-{options['initial']}-{options['epochs']}-{seed}.json"
    settings = {"rate": CHOSEN[form], "images": checksum(*data), "test images": checksum(*other)}
    if path is not None and path.exists():
        page = read_json(path)
        check_settings(path, page["settings"], settings)
        return page["curve"], page["seconds"]
    started = time.process_time()
    curve, seconds = list(train(form, data, other, seed, rate=CHOSEN[form], **options)), time.process_time() - started
    if path is not None:
        write_json(path, {"settings": settings, "curve": curve, "seconds": seconds})
    return curve, seconds


def rows(forms, seeds, data, other, curves, folder, **options):
    """A row for each form; ``curves`` gets the figures of each epoch of each seed."""
    for form in forms:
        found = [curve_of(form, data, other, seed, folder, **options) for seed in range(seeds)]
        curves[form], seconds = zip(*found, strict=True)
        accuracies = [[curve[-1][k] for curve in curves[form]] for k in (1, 3)]
        means = [with_deviation(each, 2) for each in accuracies]
        cells = [cell for pair in zip(means, PAPER[form], strict=True) for cell in pair]
        each = ", ".join(f"{x:.2f}" for x in accuracies[1])
        yield [form, f"{CHOSEN[form]:g}", *cells, each, f"{statistics.mean(seconds):.0f}"]


def figure(curves, path):
    """Figure 3: losses while training and on test images, and accuracy, by epoch."""
    plt = pyplot()

    fig, panels = plt.subplots(1, 3, figsize=(10, 3.4))
    titles = ("training loss", "test loss", "test accuracy, %")
    for axes, title, k in zip(panels, titles, (0, 2, 3), strict=True):
        for form, colour in {"bottleneck": "#D55E00", "SVD": "#0072B2"}.items():
            for number, curve in enumerate(curves.get(form, ())):
                axes.plot(
                    range(1, len(curve) + 1), [point[k] for point in curve], color=colour, lw=1, alpha=0.8,
                    label=None if number else form,
                )  # fmt: skip
        axes.set(title=title, xlabel="epoch")
        if k == 0:
            axes.set_yscale("log")
    panels[0].legend(frameon=False)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of MNIST's four files"), forms=option(list(FORMS), choices=FORMS),
        seeds=option(5, type=count), epochs=option(EPOCHS, type=count),
        initial=option("same", "values of the bottleneck", choices=("same", "default")),
        choose=switch("rates on held-out training images, and no table"),
        rates=option(list(RATES), "to choose from", type=positive),
        figure=option(None, "where Figure 3 is written", type=new_file),
        small=switch("few generated images, small ranks"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.float32)
    options, folder = {"epochs": arguments.epochs, "initial": arguments.initial}, RESULTS
    if arguments.small:
        without_effect(parser, arguments, ("seeds", "epochs"), "with --small")
        data, other, seeds = generated(1024, 1), generated(200, 2), 1
        options, folder = options | {"epochs": 2, "ranks": (8, 4)}, None
    elif arguments.data is None:
        parser.error("--data is needed: the folder of MNIST's four files (or --small).")
    else:
        whole, seeds = mnist(arguments.data, "train"), arguments.seeds
        data, other = [part[:TRAIN] for part in whole], [part[TRAIN:] for part in whole]
    if arguments.choose:
        return {form: choose(form, data, arguments.rates, initial=arguments.initial) for form in arguments.forms}
    curves = {}
    columns = ["form", "rate", "train accuracy, %", "paper", "test accuracy, %", "paper", "each", "CPU s a network"]
    show(columns, rows(arguments.forms, seeds, data, other, curves, folder, **options))
    if arguments.figure:
        figure(curves, arguments.figure)
    return curves


if __name__ == "__main__":
    main()
