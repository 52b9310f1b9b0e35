"""A sampler trained on a small network of digits, on other networks and digits, beside SGHMC, SGLD and pSGLD.

    python -m benchmarks.stochastic.meta_mnist --data FOLDER --train FILE [--rounds 30] [--digits 01234]
    python -m benchmarks.stochastic.meta_mnist --data FOLDER --sampler FILE [--problem ReLU] [--seconds 600]

The experiment of section 5.2 of Gong, Li & Hernández-Lobato (ICLR 2019). Training is on 784-20-10 with ReLU. The three
problems: 784-40-40-10 with ReLU, the same with sigmoids, and the digits 5 to 9 by 784-20-5 with ReLU (for which the
paper trains on the digits 0 to 4). Each sampler has one chain from a draw of the prior, batches of 500, and the same
seconds of processor time; its draws of the second half are averaged. The step size of each is the one of a few with the
smallest negative log-likelihood of 10,000 held-out training images, in a quarter of that time. Training uses the
cross-chain loss alone, as the paper does for networks. Priors are normal with
variance 1/fan-in. Accuracy in % and negative log-likelihood, of all test images together, in the paper:

    784-40-40-10 ReLU      NNSGHMC 98.36, 641    SGHMC 98.21, 706    SGLD 98.27, 632    pSGLD 98.31, 610
    the same, sigmoid      NNSGHMC 97.72, 876    SGHMC 97.72, 929    SGLD 97.62, 905    pSGLD 97.67, 975
    digits 0-4 -> 5-9      NNSGHMC 98.62, 230    SGHMC 98.52, 246    SGLD 98.54, 232    pSGLD 98.60, 225
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from benchmarks.stochastic.images import generated, mnist
from benchmarks.tables import show
from pyro_manifold.infer import NNSGHMC, PSGLD, SGHMC, SGLD, MetaSampler, MetaTask, train_meta_sampler
from pyro_manifold.nn import to_bayesian_

BATCH, STEPS, HELD_OUT = 500, 40, 10_000
TRAINING_STEP = math.sqrt(0.007 / 60_000)
PROBLEMS = {
    "ReLU": ((784, 40, 40, 10), nn.ReLU, "0123456789"),
    "sigmoid": ((784, 40, 40, 10), nn.Sigmoid, "0123456789"),
    "digits": ((784, 20, 5), nn.ReLU, "56789"),
}


def network(sizes, activation):
    parts = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), activation())]
    return to_bayesian_(nn.Sequential(*parts[:-1]), (), prior_scale=1.0)


def small_weights(site):
    """Where chains begin: weights as networks are usually begun, which is far within the prior."""
    return site["fn"].sample() / site["fn"].event_shape[-1] ** 0.5


def posterior(net, images, labels, batch=BATCH):
    def model():
        plate = pyro.plate("images", len(images), subsample_size=min(batch, len(images)))
        with plate as rows:
            x, y = images[rows], labels[rows]
        logits = net(x)  # outside of the plate, for its weights belong to all images
        with plate:
            pyro.sample("labels", dist.Categorical(logits=logits), obs=y)

    return model


def only(digits, images, labels):
    """Images of some digits, which are the labels 0, 1, ... from then on."""
    wanted = torch.tensor([int(digit) for digit in digits])
    chosen = torch.isin(labels, wanted)
    return images[chosen], torch.searchsorted(wanted, labels[chosen])


def kernels(sampler, cases):
    """``{name: (step sizes to choose from, kernel of a step size)}``, those of the paper times 1/2, 1 and 2."""
    options = {"num_steps": STEPS, "init_strategy": small_weights}
    own = sampler.step_size_for(cases)
    return {
        "NNSGHMC": ([own / 2, own, 1.5 * own], lambda ε: {"kernel": NNSGHMC, "sampler": sampler, "step_size": ε}),
        "SGHMC": (
            [a * math.sqrt(0.01 / cases) for a in (0.5, 1, 2)],
            lambda ε: {"kernel": SGHMC, "step_size": ε, "friction": 0.01, "integrator": "euler"},
        ),
        "SGLD": ([a * 0.4 / cases for a in (0.5, 1, 2)], lambda ε: {"kernel": SGLD, "step_size": ε}),
        "pSGLD": (
            [a * 1e-3 for a in (0.5, 1, 2)],
            lambda ε: {"kernel": PSGLD, "step_size": ε, "decay": 0.99, "damping": 1e-5},
        ),
    }, options


def run(settings, options, net, train, test, seconds, seed):
    """``(accuracy, negative log-likelihood, steps)`` after so many seconds of the processor."""
    pyro.set_rng_seed(seed)
    settings = dict(settings)
    chain = settings.pop("kernel")(posterior(net, *train), **settings, **options).prepare(1, 0, None)
    spent, total, draws = 0.0, 0.0, 0
    while spent < seconds:
        started = time.process_time()
        try:
            chain.advance()
        except ArithmeticError:
            return 0.0, math.inf, chain.iteration * STEPS
        spent += time.process_time() - started
        if spent > seconds / 2:
            values = {name: value[0] for name, value in chain.values.items()}
            with torch.no_grad():
                total = total + pyro.poutine.condition(net, values)(test[0]).softmax(-1)
            draws += 1
    mean = total / draws
    likelihood = -mean[torch.arange(len(mean)), test[1]].clamp(min=1e-30).log().sum()
    return 100 * float((mean.argmax(1) == test[1]).double().mean()), float(likelihood), chain.iteration * STEPS


def compare(problem, sampler, train, test, seconds, seeds, tuned=True):
    sizes, activation, digits = PROBLEMS[problem]
    train, test = only(digits, *train), only(digits, *test)
    held_out = min(HELD_OUT, len(train[0]) // 4)
    parts = [t[:-held_out] for t in train], [t[-held_out:] for t in train]
    table, options = kernels(sampler, len(train[0]))
    rows = []
    for name, (step_sizes, settings) in table.items():
        net = network(sizes, activation)
        tried = {ε: run(settings(ε), options, net, *parts, seconds / 4, 0)[1] for ε in step_sizes} if tuned else {}
        chosen = min(tried, key=tried.get, default=step_sizes[0])
        found = [run(settings(chosen), options, net, train, test, seconds, 1 + seed) for seed in range(seeds)]
        accuracy, likelihood, steps = torch.tensor(found, dtype=torch.double).mean(0).tolist()
        rows.append([name, f"{chosen:.3g}", f"{accuracy:.2f}", f"{likelihood:.0f}", f"{steps:.0f}"])
        print(rows[-1], flush=True)
    print(f"\n## {problem}: {'-'.join(map(str, sizes))}, {seconds:g} s of the processor, {seeds} seeds\n")
    show(["sampler", "step size", "accuracy, %", "negative log-likelihood", "steps"], rows)


def train_sampler(path, images, labels, rounds, digits):
    images, labels = only(digits, images, labels)
    net = network((784, 20, len(digits)), nn.ReLU)
    task = MetaTask(posterior(net, images, labels), init_strategy=small_weights)
    command = (
        f"python -m benchmarks.stochastic.meta_mnist --data FOLDER --train FILE --rounds {rounds} --digits {digits}"
    )
    schooling = {"chains": 8, "steps": 100, "segments": 6, "truncation": 10, "thinning": 5, "share": 0.1}
    schooling.update({"learning_rate": 0.01, "within": 0.0})
    sampler = train_meta_sampler(
        [task],
        step_size=TRAINING_STEP,
        rounds=rounds,
        command=command,
        checkpoint=f"{path}.training",
        checkpoint_every=2,
        **schooling,
    )
    sampler.save(path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of MNIST's four files")
    parser.add_argument("--train", help="train a sampler and write it here")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--digits", default="0123456789", help="to train on")
    parser.add_argument("--sampler", help="a file that --train wrote")
    parser.add_argument("--problem", choices=PROBLEMS, default="ReLU")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="few generated images")
    arguments = parser.parse_args(argv)
    if arguments.short:
        train, test = generated(600, 1), generated(200, 2)
    elif arguments.data is None:
        parser.error("--data is needed: the folder of MNIST's four files (or --short).")
    else:
        train, test = (mnist(arguments.data, part) for part in ("train", "test"))
    if arguments.train:
        return train_sampler(arguments.train, *train, arguments.rounds, arguments.digits)
    if arguments.sampler is None:
        parser.error("--sampler is needed: a file that --train wrote.")
    sampler = MetaSampler.load(arguments.sampler)
    return compare(arguments.problem, sampler, train, test, arguments.seconds, arguments.seeds, not arguments.short)


if __name__ == "__main__":
    main()
