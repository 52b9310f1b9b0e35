"""A sampler trained on a small recurrent network of piano music, on larger ones of four collections, beside SGHMC, SGLD
and pSGLD.

    python -m benchmarks.papers.nnsghmc.music --data FOLDER --train FILE [--rounds 20]
    python -m benchmarks.papers.nnsghmc.music --data FOLDER --sampler FILE [--collection Piano_midi] [--figure FILE]
    python -m benchmarks.papers.nnsghmc.music --paper --data FOLDER --sampler FILE --store FOLDER [--minutes 15]

With ``--paper`` it is the experiment of section 5.3 of Gong, Li & Hernández-Lobato (ICLR 2019) at its full size, see
`whole_pieces`. Without, sizes are cut so that a processor can take it: they train on a GRU of 100 units and test with
200; here it is 50 and 100. Each of 88 notes at a time is predicted from all that was heard before in the same excerpt
of 32 times; at most 1,500 excerpts of a collection train, and 300 test. Batches have 32 excerpts. Priors are standard
normal, and chains begin at small weights. Each sampler has the same seconds of processor time. Probabilities of what is
heard at a time are averaged over the draws of the second half of all chains. The step size of each is the one of a few
with the smallest negative log-likelihood of the validation excerpts of the piano, in a quarter of that time. The first
600 steps are warm-up, in which the guard of NNSGHMC may
halve its steps; a run that it ends later counts as infinite.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyro
import scipy.io
import torch
from torch import nn

from benchmarks.papers.nnsghmc import whole_pieces
from benchmarks.papers.nnsghmc.mnist import small_weights, train_on_networks
from benchmarks.tables import show
from pyro_manifold.infer import NNSGHMC, PSGLD, SGHMC, SGLD, MetaSampler, MetaTask
from pyro_manifold.nn import to_bayesian_

COLLECTIONS = ("Piano_midi", "Nottingham", "MuseData", "JSB_Chorales")
NOTES, LENGTH, BATCH, STEPS = 88, 32, 32, 20
WARMUP = 30  # iterations in which the guard of NNSGHMC may halve its steps
MOST = {"traindata": 1500, "validdata": 300, "testdata": 300}
TRAINING_STEP = math.sqrt(0.01 / MOST["traindata"])


class Recurrent(nn.Module):
    """A gated recurrent unit (Cho et al. 2014) and a linear map to the logits of the next notes."""

    def __init__(self, units):
        super().__init__()
        self.units = units
        self.heard, self.state = nn.Linear(NOTES, 3 * units), nn.Linear(units, 3 * units)
        self.out = nn.Linear(units, NOTES)

    def forward(self, notes):
        """Logits at each time, of notes up to the one before, ``(excerpts, times, 88)``."""
        before = nn.functional.pad(notes[:, :-1], (0, 0, 1, 0))
        heard = self.heard(before)
        state = notes.new_zeros(len(notes), self.units)
        states = []
        for time_ in range(notes.shape[1]):
            (reset, keep, new), (by_reset, by_keep, by_new) = (
                gates.chunk(3, -1) for gates in (heard[:, time_], self.state(state))
            )
            keep = torch.sigmoid(keep + by_keep)
            new = torch.tanh(new + torch.sigmoid(reset + by_reset) * by_new)
            state = new + keep * (state - new)
            states.append(state)
        return self.out(torch.stack(states, 1))


def network(units):
    return to_bayesian_(Recurrent(units), (), prior_scale=1.0)


def excerpts(folder, collection, part):
    """Notes ``(excerpts, 32, 88)``, of pieces cut from their beginnings, and which times belong to a piece.

    Without a folder, a few of random notes.
    """
    if folder is None:
        return torch.bernoulli(torch.full((40, 5, NOTES), 0.04)), torch.ones(40, 5)
    pieces = scipy.io.loadmat(Path(folder) / f"{collection}.mat")[part][0]
    cut = [piece[start : start + LENGTH] for piece in pieces for start in range(0, len(piece), LENGTH)]
    order = np.random.default_rng(0).permutation(len(cut))[: MOST[part]]
    notes, present = torch.zeros(len(order), LENGTH, NOTES), torch.zeros(len(order), LENGTH)
    for row, number in enumerate(order):
        piece = torch.tensor(cut[number], dtype=torch.float32)
        notes[row, : len(piece)], present[row, : len(piece)] = piece, 1.0
    return notes, present


def log_likelihood(logits, notes, present):
    """Of each time of each excerpt, ``(excerpts, times)``."""
    each = notes * logits - nn.functional.softplus(logits)
    return each.sum(-1) * present


def posterior(net, notes, present):
    def model():
        plate = pyro.plate("excerpts", len(notes), subsample_size=min(BATCH, len(notes)))
        with plate as rows:
            heard, there = notes[rows], present[rows]
        logits = net(heard)  # outside of the plate, for its weights belong to all excerpts
        with plate:
            pyro.factor("notes", log_likelihood(logits, heard, there).sum(-1))

    return model


def kernels(sampler, cases):
    """``{name: (step sizes to choose from, settings for a step size)}``."""
    common = {"num_steps": STEPS, "init_strategy": small_weights}
    hamiltonian, own = math.sqrt(0.01 / cases), sampler.step_size_for(cases)
    return {
        "NNSGHMC": (
            [a * own for a in (1, 1.4, 2)],
            lambda ε: (NNSGHMC, {"sampler": sampler, "step_size": ε, **common}),
        ),
        "SGHMC": (
            [a * hamiltonian for a in (1, 1.4, 2)],
            lambda ε: (SGHMC, {"step_size": ε, "friction": 0.01, "integrator": "euler", **common}),
        ),
        "SGLD": ([a * 0.4 / cases for a in (1, 2, 4)], lambda ε: (SGLD, {"step_size": ε, **common})),
        "pSGLD": (
            [a * 2.8e-3 for a in (1, 2, 4)],
            lambda ε: (PSGLD, {"step_size": ε, "decay": 0.99, "damping": 1e-5 * cases, **common}),
        ),
    }


def likelihoods(net, chain, notes, present):
    """Of each time under each draw, ``(chains, excerpts, times)``."""
    draws = chain.values
    with torch.no_grad():
        return torch.stack(
            [
                log_likelihood(
                    pyro.poutine.condition(net, {name: value[k] for name, value in draws.items()})(notes),
                    notes,
                    present,
                )
                for k in range(len(next(iter(draws.values()))))
            ]
        )


def curve(kernel, net, train, test, chains, seconds, seed):
    """``[(seconds, negative log-likelihood of a time)]``, predictions averaged over the later half of the draws."""
    pyro.set_rng_seed(seed)
    make, settings = kernel
    chain = make(posterior(net, *train), **settings).prepare(chains, WARMUP, None)
    spent, found, points = 0.0, [], []
    while spent < seconds:
        started = time.process_time()
        try:
            chain.advance()
        except ArithmeticError:
            return [*points, (spent, math.inf)]
        spent += time.process_time() - started
        found.append(likelihoods(net, chain, *test))
        late = torch.cat(found[len(found) // 2 :])
        of_times = late.logsumexp(0) - math.log(len(late))
        points.append((spent, float(-of_times.sum() / test[1].sum())))
    return points


def step_sizes(sampler, units, piano, chains, seconds, only_these=None):
    """The best of each kernel for the validation excerpts of the piano; by how many times the smallest."""
    train, valid = piano
    net, chosen = network(units), {}
    for name, (sizes, settings) in kernels(sampler, len(train[0])).items():
        if name not in (only_these or [name]):
            continue
        tried = [curve(settings(ε), net, train, valid, chains, seconds / 4, 0)[-1][1] for ε in sizes]
        print(name, [f"{value:.2f}" for value in tried], flush=True)
        chosen[name] = tried.index(min(tried))
    return chosen


def compare(sampler, collections, folder, units, chains, seconds, figure, only_these=None):
    piano = [excerpts(folder, "Piano_midi", part) for part in ("traindata", "validdata")]
    chosen = step_sizes(sampler, units, piano, chains, seconds, only_these) if folder else defaultdict(int)
    rows, curves = [], {}
    for collection in collections:
        train, test = (excerpts(folder, collection, part) for part in ("traindata", "testdata"))
        for name, (sizes, settings) in kernels(sampler, len(train[0])).items():
            if name not in (only_these or [name]):
                continue
            points = curve(settings(sizes[chosen[name]]), network(units), train, test, chains, seconds, 1)
            curves[collection, name] = points
            rows.append([collection, name, f"{points[-1][1]:.2f}", STEPS * len(points)])
            print(rows[-1], flush=True)
    print(f"\n## {units} units, {chains} chains, {seconds:g} s of the processor\n")
    show(["collection", "sampler", "negative log-likelihood of a time", "steps"], rows)
    if figure:
        draw(curves, collections, figure)


def draw(curves, collections, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(collections), figsize=(3.2 * len(collections), 3.0), squeeze=False)
    for axis, collection in zip(axes[0], collections, strict=True):
        ends = []
        for (where, name), points in curves.items():
            if where == collection:
                axis.plot(*zip(*points, strict=True), label=name)
                ends.append(points[-1][1])
        axis.set(title=collection, xlabel="seconds of the processor", ylim=(0.97 * min(ends), 1.35 * max(ends)))
    axes[0, 0].set_ylabel("negative log-likelihood")
    # Below all of them: there is no corner that is free in each.
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False)
    fig.tight_layout(rect=(0, 0.08, 1, 1))
    fig.savefig(path, dpi=110)


def train_sampler(path, train, units, rounds):
    task = MetaTask(posterior(network(units), *train), init_strategy=small_weights)
    command = f"python -m benchmarks.papers.nnsghmc.music --data FOLDER --train FILE --rounds {rounds}"
    training_settings = {"steps": 100, "segments": 2, "truncation": 50, "thinning": 25, "share": 0.05}
    train_on_networks(path, [task], TRAINING_STEP, rounds=rounds, chains=6, command=command, **training_settings)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the four files *.mat")
    parser.add_argument("--train", help="train a sampler and write it here")
    parser.add_argument("--rounds", type=int, help="of training; 20, or 40 of the paper's")
    parser.add_argument("--sampler", help="a name, or a file that --train wrote")
    parser.add_argument("--collection", choices=COLLECTIONS, help="one in place of all")
    parser.add_argument("--chains", type=int, default=3)
    parser.add_argument("--units", type=int, help="100, or the paper's 200")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--figure", help="where to draw the learning curves")
    parser.add_argument("--short", action="store_true", help="a few random notes")
    parser.add_argument("--paper", action="store_true", help="whole pieces, at the paper's budget; see whole_pieces.py")
    parser.add_argument("--store", help="folder in which each epoch of --paper is stored, to go on from there")
    parser.add_argument("--samplers", nargs="*", help="some in place of all")
    parser.add_argument("--offset", type=float, default=0.0, help="what --paper adds to Q of NNSGHMC")
    parser.add_argument("--epochs", type=int, help="of --paper, in place of 20, or 100 of JSB chorales")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which --paper ends")
    parser.add_argument("--tune", action="store_true", help="validation pieces in place of the test's, with --paper")
    parser.add_argument("--training-chains", type=int, default=8, help="of --paper --train")
    arguments = parser.parse_args(argv)
    if arguments.data is None and not arguments.short:
        parser.error("--data is needed: the folder of the four collections (or --short).")
    if arguments.train and arguments.paper:
        return whole_pieces.train(arguments)
    units = arguments.units or 100
    if arguments.train:
        train = excerpts(arguments.data, "Piano_midi", "traindata")
        return train_sampler(arguments.train, train, units // 2, arguments.rounds or 20)
    if arguments.sampler is None:
        parser.error("--sampler is needed: a file that --train wrote.")
    collections = [arguments.collection] if arguments.collection else COLLECTIONS
    if arguments.paper:
        if arguments.store is None:
            parser.error("--store is needed: a folder in which each epoch is stored.")
        return whole_pieces.compare(arguments, collections)
    budget = units, arguments.chains, arguments.seconds
    return compare(
        MetaSampler.load(arguments.sampler), collections, arguments.data, *budget, arguments.figure, arguments.samplers
    )


if __name__ == "__main__":
    main()
