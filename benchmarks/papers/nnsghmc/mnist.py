"""A sampler trained on a small network of digits, on other networks and digits, beside SGHMC, SGLD and pSGLD.

    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --paper --train FILE [--rounds 40] [--digits 01234]
    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --paper --tune --sampler FILE [--problem ReLU] [--store S]
    python -m benchmarks.papers.nnsghmc.mnist --store S --figure PICTURE [--curves BNN_MNIST]
    python -m benchmarks.papers.nnsghmc.mnist --sampler FILE --contours PICTURE
    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --paper --profile --sampler FILE --problem sigmoid --store S
    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --paper --gradients
    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --train FILE [--rounds 4] [--digits 01234]
    python -m benchmarks.papers.nnsghmc.mnist --data FOLDER --sampler FILE [--problem ReLU] [--seconds 12]

The experiments of section 5.2 of Gong, Li & Hernández-Lobato (ICLR 2019), as their code has them
(github.com/WenboGong/MetaSGMCMC). With ``--paper`` they have the budget of the paper: see `paper_training` and
`paper_runs`, whose states are resumed by the same command. Accuracy in % and negative log-likelihood of all test images
together, in the paper:

    784-40-40-10 ReLU      NNSGHMC 98.36, 640    SGHMC 98.21, 705    SGLD 98.27, 631    pSGLD 98.31, 610
    the same, sigmoid      NNSGHMC 97.72, 875    SGHMC 97.72, 929    SGLD 97.62, 905    pSGLD 97.67, 975
    digits 0-4 -> 5-9      NNSGHMC 98.62, 230    SGHMC 98.52, 246    SGLD 98.54, 232    pSGLD 98.60, 224

Without ``--paper`` the experiment is cut, and so is the network of ``--problem 'digits, small network'``, 784-20-5.
Theirs, and here: standard normal priors, which chains begin far within and hardly fill; batches of 500; the friction of
SGHMC, 0.01, beside which there is one of 0.1 here. Here are fewer chains, each sampler has the same seconds of the
processor (without predictions), and draws of the second half are averaged. The step size of each sampler is the one
from which neither a longer nor a shorter one has a smaller negative log-likelihood of 10,000 held-out training images
in a quarter of that time. ``--sampler networks`` has seen all ten digits in training.

Cut training begins with the friction 0.1 and its step, √(0.1/N), at small weights, without the last 10,000 training
images, by which ``--validate`` compares in place of the test images. Networks do not see the energy. Only the
cross-chain loss is used, as in the paper for networks, with scores of each coordinate by itself.
"""

import argparse
import math
import time

import pyro
import torch

from benchmarks.arguments import count, new_file, positive, without_effect
from benchmarks.images import generated, mnist
from benchmarks.papers.nnsghmc import paper_figures, paper_profile, paper_runs, paper_training
from benchmarks.papers.nnsghmc.digits import (
    PROBLEMS,
    best_of,
    kernels,
    network,
    only,
    posterior,
    sampler_of,
    small_weights,
    split,
)
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import formatted, show

STEPS, SHORT_STEPS = 100, 200
NO_ENERGY = 1e12  # a unit of energy beside which all energies are 0, so that networks do not see them
FRICTION = 0.1  # with which training begins; the step of SGHMC with that is √(FRICTION / number of images)


def predictions(net, chain, images):
    """Class probabilities ``(images, classes)`` of the draws of all chains together."""
    draws = chain.values
    with torch.no_grad():
        return sum(
            pyro.poutine.condition(net, {name: value[k] for name, value in draws.items()})(images).softmax(-1)
            for k in range(len(next(iter(draws.values()))))
        )


def run(settings, net, train, test, chains, seconds, seed):
    """``(accuracy, negative log-likelihood, steps)`` after so many seconds of the processor, without predictions."""
    pyro.set_rng_seed(seed)
    settings = dict(settings)
    kernel = settings.pop("kernel")(posterior(net, *train), **settings, num_steps=STEPS, init_strategy=small_weights)
    chain = kernel.prepare(chains, 0, None)
    spent, total = 0.0, 0.0
    while spent < seconds:
        started = time.process_time()
        try:
            chain.advance()
        except ArithmeticError:
            return 0.0, math.inf, chain.iteration * STEPS
        spent += time.process_time() - started
        if spent > seconds / 2:
            total = total + predictions(net, chain, test[0])
    mean = total / total.sum(1, keepdim=True)
    likelihood = -mean[torch.arange(len(mean)), test[1]].clamp(min=1e-30).log().sum()
    return 100 * float((mean.argmax(1) == test[1]).double().mean()), float(likelihood), chain.iteration * STEPS


def compare(problem, sampler, train, test, chains, seconds, seeds, only_these, tuned=True):
    sizes, activation, digits = PROBLEMS[problem]
    train, test = only(digits, *train), only(digits, *test)
    parts = split(*train)
    rows = []
    for name, (chosen, factor, settings) in kernels(sampler, len(train[0])).items():
        if name not in (only_these or [name]):
            continue
        net = network(sizes, activation)
        if tuned:

            def loss(ε, net=net, settings=settings):
                return run({**settings, "step_size": ε}, net, *parts, chains, seconds / 4, 0)[1]

            chosen, tried = best_of(loss, chosen, factor)
            print(name, {f"{ε:.3g}": f"{value:.0f}" for ε, value in tried.items()}, flush=True)
        made = {**settings, "step_size": chosen}
        found = [run(made, net, train, test, chains, seconds, 1 + seed) for seed in range(seeds)]
        accuracy, likelihood, steps = torch.tensor(found, dtype=torch.double).T
        each = ", ".join(f"{value:.0f}" for value in likelihood)
        cells = formatted(".2f .0f .0f", accuracy.mean(), likelihood.mean(), steps.mean())
        rows.append([name, f"{chosen:.3g}", *cells[:2], each, cells[2]])
        print(rows[-1], flush=True)
    print(f"\n## {problem}: {'-'.join(map(str, sizes))}, {chains} chains, {seconds:g} s of the processor\n")
    show(["sampler", "step size", "accuracy, %", "negative log-likelihood", "of each seed", "steps"], rows)


def train_sampler(path, images, labels, rounds, digits):
    """Train with the cut budget."""
    steps = 10 if len(only(digits, *split(images, labels)[0])[0]) < 10_000 else 100

    def networks(_):
        return {"hidden": 6, "constant_friction": FRICTION, "energy_scale": NO_ENERGY}

    settings = {"chains": 8, "steps": steps, "segments": 10, "truncation": steps, "thinning": steps // 5}
    settings |= {"scores": "marginal", "learning_rate": 0.02, "checkpoint_every": 2, "rounds": rounds}
    command = f"--train FILE --rounds {rounds}"
    options = FRICTION, small_weights, networks, command
    paper_training.written(path, images, labels, digits, *options, **settings)


def run_with_the_budget_of_the_paper(arguments, sampler, train, test):
    if arguments.problem not in paper_runs.RATES:
        raise SystemExit(f"--paper is for the problems {list(paper_runs.RATES)}, found {arguments.problem!r}.")
    names = arguments.kernels or [*paper_runs.NAMES, *(paper_runs.OPTIMISERS if arguments.optimisers else ())]
    data, parts = paper_runs.parts_of(arguments.problem, train, test)
    steps, chains = arguments.steps, arguments.chains or paper_runs.CHAINS
    if arguments.profile:
        found = paper_profile.profile(arguments.problem, sampler, data[0], arguments.store, chains, steps)
        show(paper_profile.HEADINGS, found)
        return
    if arguments.tune:
        chosen = [name for name in names if name not in paper_runs.OPTIMISERS]
        budget = chains, min(paper_runs.TUNING_STEPS, steps)
        paper_runs.tune(arguments.problem, chosen, sampler, parts, arguments.store, *budget)
    options = arguments.store, arguments.seeds or 1, steps, chains
    rows = paper_runs.compare(arguments.problem, names, sampler, data, *options)
    print(f"\n## {arguments.problem}: {chains} chains\n")
    show(paper_runs.HEADINGS, rows)


def digits(text):
    """Read digits to train on, at least two and in ascending order, as the labels 0, 1, ... have it."""
    if len(text) < 2 or not text.isdecimal() or list(text) != sorted(set(text)):
        raise argparse.ArgumentTypeError(f"{text!r}, expected two or more digits in ascending order, such as 01234")
    return text


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of MNIST's four files"),
        train=option(None, "train a sampler and write it here"),
        paper=switch("training, or runs, with the budget of the paper"),
        rounds=option(None, "of training; default: 4, and 40 with --paper", type=count),
        digits=option("0123456789", "to train on", type=digits),
        root_mean_square=switch("unit of gradients in the training of --paper"),
        gradients=switch("how large gradients are in training and in use"),
        validate=switch("held-out training images in place of the test's"),
        sampler=option(None, "a file that --train wrote"), problem=option("ReLU", choices=PROBLEMS),
        chains=option(None, "default: 8, and 20 with --paper", type=count), seconds=option(12.0, type=positive),
        seeds=option(None, "default: 3, and 1 with --paper", type=count),
        kernels=option(None, "some of all", nargs="+", choices=(*paper_runs.NAMES, *paper_runs.OPTIMISERS)),
        steps=option(paper_runs.STEPS, "of the runs of --paper", type=count),
        store=option("results/nnsghmc", "where the runs of --paper are stored"),
        tune=switch("first look for the rates of --paper, on training images"),
        optimisers=switch("SGD with momentum and Adam too, with --paper"),
        figure=option(None, "draw the curves of all problems of the store of --paper", type=new_file),
        curves=option(None, "folder BNN_MNIST of the authors' code, for their curves in the figure"),
        contours=option(None, "draw Q and D of the sampler", type=new_file),
        profile=switch("how fast NNSGHMC moves at the rates of the store"), short=switch("few generated images"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    if arguments.figure:
        return paper_figures.curves(arguments.store, arguments.curves, arguments.figure)
    if arguments.contours:
        if arguments.sampler is None:
            parser.error("--contours needs --sampler: a file that --paper --train wrote.")
        return paper_figures.contours(sampler_of(arguments.sampler), arguments.contours)
    if arguments.paper:
        without_effect(parser, arguments, ("validate", "seconds"), "with --paper")
    else:
        names = ("steps", "store", "tune", "optimisers", "profile", "root_mean_square", "gradients")
        without_effect(parser, arguments, names, "without --paper")
        if set(arguments.kernels or ()) & set(paper_runs.OPTIMISERS):
            parser.error(f"--kernels: {paper_runs.OPTIMISERS} are compared with --paper only.")
    if arguments.short and arguments.paper:
        arguments.steps = min(arguments.steps, SHORT_STEPS)
        if arguments.store == parser.get_default("store"):
            arguments.store = f"{arguments.store}_short"
    if arguments.short:
        train, test = generated(600, 1), generated(200, 2)
    elif arguments.data is None:
        parser.error("--data is needed: the folder of MNIST's four files (or --short).")
    else:
        train, test = (mnist(arguments.data, part) for part in ("train", "test"))
    if arguments.train and arguments.paper:
        rounds = arguments.rounds or 40
        options = arguments.root_mean_square, arguments.short
        return paper_training.train(arguments.train, *train, rounds, arguments.digits, *options)
    if arguments.train:
        return train_sampler(arguments.train, *train, arguments.rounds or 4, arguments.digits)
    if arguments.gradients:
        times = (40, 80, 120) if arguments.short else (200, 400, 600)
        show(["problem", *(f"gradient after {n} steps" for n in times)], paper_profile.gradients(train, times))
        return None
    if arguments.sampler is None:
        parser.error("--sampler is needed: a file that --train wrote.")
    sampler = sampler_of(arguments.sampler)
    if arguments.paper:
        return run_with_the_budget_of_the_paper(arguments, sampler, train, test)
    if arguments.validate:
        train, test = split(*train)
    budget = arguments.chains or 8, arguments.seconds, arguments.seeds or 3, arguments.kernels
    return compare(arguments.problem, sampler, train, test, *budget, tuned=not arguments.short)


if __name__ == "__main__":
    main()
