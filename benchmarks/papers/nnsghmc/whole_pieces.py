"""Music as in the paper: whole pieces, one at a time, by a gated recurrent unit of 200 units; `music --paper`.

Section 5.3 and appendix of Gong, Li & Hernández-Lobato (ICLR 2019), who follow Chen, Carlson, Gan, Li & Carin (AISTATS
2016). As there: a sampler is trained on 100 units and Piano-midi (40 epochs of 7 times 70 steps, cross-chain loss),
and used with 200; batches of one piece; 20 epochs, 100 on JSB chorales; the rate of a batch 0.001, so that
ε = √(0.001 / N) for N times of all pieces together; friction 0.01 of SGHMC; Adam with 0.001. The likelihood is weighted
as theirs: U = -N / T log p(piece) + prior for a piece of T times, which gives each piece the same weight.
Santa is that of Chen et al.'s program (github.com/cchangyou/Santa, rnn_music), with its constants; like there,
gradients of Adam and Santa are of the mean over the times of a piece, and scaled to the norm 5.

What the paper leaves open, and here: standard normal priors; weights begin normal with variance 1 / inputs; the first
state is 0; three chains with their own orders of pieces; probabilities of a chain averaged over its draws at the ends
of the later half of epochs so far (those of Adam and Santa: of the present weights); a quarter of the epochs is
warm-up, in which the guard of NNSGHMC may halve its steps. ``--offset`` is β of Q, by which they accelerate the sampler
on other collections than that of its training, tuned on the validation pieces of Piano-midi (``--tune``); NNSGHMC-s is
without.

Each epoch is stored, so that the command goes on where it was ended; ``--minutes`` ends it.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro
import scipy.io
import torch
from torch import Tensor

from benchmarks.papers.nnsghmc import gru
from benchmarks.papers.nnsghmc.mnist import small_weights
from benchmarks.tables import show
from pyro_manifold.infer import NNSGHMC, SGHMC, MetaSampler, MetaTask, train_meta_sampler
from pyro_manifold.nn import to_bayesian_

RATE, FRICTION, NORM = 0.001, 0.01, 5.0
EPOCHS = {"Piano_midi": 20, "Nottingham": 20, "MuseData": 20, "JSB_Chorales": 100}
SAMPLERS = ("SGHMC", "NNSGHMC", "NNSGHMC-s", "Adam", "Santa")


class Pieces(NamedTuple):
    """Notes of all pieces, one after another, ``(times, 88)`` as bytes; where each begins, and the end of the last."""

    notes: Tensor
    starts: Tensor

    @property
    def count(self):
        return len(self.starts) - 1


def pieces(folder, collection, part):
    """Those of a part of a collection; without a folder, a few of random notes."""
    if folder is None:
        found = [np.random.default_rng(k).random((5 + k, gru.NOTES)) < 0.04 for k in range(6)]
    else:
        found = scipy.io.loadmat(Path(folder) / f"{collection}.mat")[part][0]
    starts = np.cumsum([0, *map(len, found)])
    notes = np.ascontiguousarray(np.concatenate(found), dtype=np.uint8)  # arrays of MATLAB are stored by columns
    return Pieces(torch.from_numpy(notes), torch.tensor(starts))


class Piece(torch.nn.Module):
    """Log-likelihood of a time step of one piece."""

    def __init__(self, units, data):
        super().__init__()
        self.heard, self.state = torch.nn.Linear(gru.NOTES, 3 * units), torch.nn.Linear(units, 3 * units)
        self.out, self._data = torch.nn.Linear(units, gru.NOTES), data

    def forward(self, row):
        weights = [x for part in (self.heard, self.state, self.out) for x in (part.weight, part.bias)]
        return gru.mean_likelihood(weights, *self._data, row)


NAMES = [f"{part}.{what}" for part in ("heard", "state", "out") for what in ("weight", "bias")]


def posterior(units, data):
    net = to_bayesian_(Piece(units, data), (), prior_scale=1.0).float()

    def model():
        plate = pyro.plate("pieces", data.count, subsample_size=1)
        with plate as row:
            pass
        each = len(data.notes) / data.count * net(row)  # outside of the plate, for its weights belong to all pieces
        with plate:
            pyro.factor("notes", each.reshape(1))

    return model


def likelihoods(weights, data):
    """Log-likelihood of each time of all pieces under each chain, ``(chains, times)``."""
    return torch.stack([_of_chain([x[chain] for x in weights], data) for chain in range(len(weights[0]))])


def _of_chain(weights, data):
    *recurrent, out, bias = (x.contiguous() for x in weights)
    bounds = data.starts.tolist()
    states = [gru.states_of(recurrent, data.notes[a:b])[0][1:] for a, b in itertools.pairwise(bounds)]
    logits = torch.addmm(bias, torch.cat(states), out.T)
    return (data.notes * logits - torch.nn.functional.softplus(logits)).sum(1)


# ---- samplers: objects with epoch(), weights() and a state that can be stored ---------------------------------------


class Chains:
    """A kernel, an epoch at an iteration."""

    def __init__(self, make, units, data, chains, warmup, **settings):
        self._run = make(
            posterior(units, data),
            num_steps=data.count,
            init_strategy=small_weights,
            own_minibatches=True,
            **settings,
        ).prepare(chains, warmup, None)

    def epoch(self):
        self._run.advance()
        found = self._run.statistics
        return {name: found[name].tolist() for name in ("kinetic_temperature", "step_size")}

    def weights(self):
        return [self._run.sites[name] for name in NAMES]

    def state_dict(self):
        return self._run.state_dict()

    def load_state_dict(self, saved):
        self._run.load_state_dict(saved)


class Descent:
    """Adam, and Santa of Chen et al.'s program: `update` changes weights, given the gradient of a piece."""

    def __init__(self, units, data, chains, epochs):
        self._data, self._epochs = data, epochs
        self._random = torch.Generator().manual_seed(1)
        shapes = [x.shape for x in Piece(units, data).parameters()]
        self._x = [torch.randn(chains, *s, generator=self._random) / s[-1] ** 0.5 for s in shapes]
        self._memory = [self.begun(x) for x in self._x]
        self._count = 0

    def epoch(self):
        explores = self._count < 0.15 * self._epochs * self._data.count
        orders = [torch.randperm(self._data.count, generator=self._random) for _ in self._x[0]]
        for rows in torch.stack(orders, 1):
            self._count += 1
            _, *slopes = gru.likelihood(self._x, *self._data, rows.unsqueeze(1))
            norms = torch.stack([g.flatten(1).square().sum(1) for g in slopes]).sum(0).sqrt()
            for x, g, memory in zip(self._x, slopes, self._memory, strict=True):
                self.update(x, -NORM * g / norms.view(-1, *[1] * (g.dim() - 1)), memory, explores)
        return {}

    def weights(self):
        return self._x

    def state_dict(self):
        return {"x": self._x, "memory": self._memory, "count": self._count, "random": self._random.get_state()}

    def load_state_dict(self, saved):
        self._x, self._memory, self._count = saved["x"], saved["memory"], saved["count"]
        self._random.set_state(saved["random"])


class Adam(Descent):
    def begun(self, x):
        return {"mean": torch.zeros_like(x), "square": torch.zeros_like(x)}

    def update(self, x, g, memory, _):
        memory["mean"].lerp_(g, 0.1)
        memory["square"].lerp_(g * g, 0.001)
        fix = (1 - 0.999**self._count) ** 0.5 / (1 - 0.9**self._count)
        x.addcdiv_(memory["mean"], memory["square"].sqrt() + 1e-8, value=-RATE * fix)


class Santa(Descent):
    def begun(self, x):
        return {"momentum": torch.zeros_like(x), "square": torch.zeros_like(x), "thermostat": torch.full_like(x, 0.5)}

    def update(self, x, g, memory, explores):
        u, heat = memory["momentum"], RATE / self._count**0.5
        if explores:
            memory["thermostat"].add_(u * u - heat)
        square = memory["square"].lerp_(g * g, 0.05)
        unit = (square.sqrt() + 1e-8).sqrt()
        u.mul_(1 - memory["thermostat"]).sub_(RATE * g / unit)
        if explores:
            noise = torch.randn(u.shape, generator=self._random)
            u.add_((2 * heat * square / len(self._data.notes)).sqrt() * noise)
        x.add_(u / unit)


def made(name, sampler, offset, units, data, chains, epochs):
    ε = math.sqrt(RATE / len(data.notes))
    if name in ("Adam", "Santa"):
        return {"Adam": Adam, "Santa": Santa}[name](units, data, chains, epochs)
    if name == "SGHMC":
        settings = {"step_size": ε, "friction": FRICTION, "integrator": "euler"}
        return Chains(SGHMC, units, data, chains, 0, **settings)
    if name == "NNSGHMC":
        sampler = replace(sampler, constant_curl=sampler.constant_curl + offset)
    settings = {"sampler": sampler, "step_size": ε, "data_size": len(data.notes)}
    return Chains(NNSGHMC, units, data, chains, max(1, epochs // 4), **settings)


# ---- runs ------------------------------------------------------------------------------------------------------------


def curve(each, late=True):
    """Negative log-likelihood of a time after each epoch, ``(epochs, chains)``, from ``(epochs, chains, times)``."""
    found = []
    for epoch in range(len(each)):
        part = each[(epoch + 1) // 2 : epoch + 1] if late else each[epoch : epoch + 1]
        found.append(-(part.logsumexp(0) - math.log(len(part))).mean(1))
    return torch.stack(found)


def run(store, name, sampler, offset, units, data, test, chains, epochs, ends):
    """Go on until an epoch or the time ends; return what is stored."""
    pyro.set_rng_seed(1)
    torch.set_default_dtype(torch.float32)
    kept = {"likelihoods": [], "measured": [], "seconds": 0.0, "error": ""}
    chain = made(name, sampler, offset, units, data, chains, epochs)
    if store.exists():
        kept = torch.load(store, weights_only=True)
        chain.load_state_dict(kept.pop("state"))
    while len(kept["likelihoods"]) < epochs and time.monotonic() < ends and not kept["error"]:
        started = time.process_time()
        try:
            measured = chain.epoch()
        except ArithmeticError as error:
            kept["error"] = str(error)
        else:
            kept["measured"].append(measured)
            kept["seconds"] += time.process_time() - started
            kept["likelihoods"].append(likelihoods(chain.weights(), test))
            last = -kept["likelihoods"][-1].mean(1)
            print(store.stem, len(kept["likelihoods"]), [f"{x:.3f}" for x in last], measured, flush=True)
        unfinished = store.with_suffix(".unfinished")
        torch.save({**kept, "state": chain.state_dict()}, unfinished)
        os.replace(unfinished, store)
    return kept


def row(collection, name, kept, epochs):
    if not kept["likelihoods"]:
        return [collection, name, "–", "–", "–", f"0 of {epochs}", kept["error"] or "–"]
    each = torch.stack(kept["likelihoods"])
    averaged, single = curve(each, name not in ("Adam", "Santa")), curve(each, late=False)
    last, done = averaged[-1], len(each)
    hot = kept["measured"][-1].get("kinetic_temperature")
    temperature = "–" if hot is None else f"{np.mean(hot):.2f}"
    words = f"{last.mean():.2f} ± {last.std():.2f}" if len(last) > 1 else f"{float(last):.2f}"
    end = f"{done} of {epochs}" + (", ended by its guard" if kept["error"] else "")
    lowest = f"{averaged.mean(1).min():.2f} after {int(averaged.mean(1).argmin()) + 1}"
    return [collection, name, words, lowest, f"{single[-1].mean():.2f}", temperature, end, f"{kept['seconds']:.0f}"]


HEADINGS = [
    *("collection", "sampler", "negative log-likelihood", "lowest, after epoch", "of the last draws"),
    *("temperature", "epochs", "CPU seconds of all chains"),
]


def compare(arguments, collections):
    sampler = MetaSampler.load(arguments.sampler)
    folder = Path(arguments.store)
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * arguments.minutes
    rows, parts = [], ("traindata", "validdata" if arguments.tune else "testdata")
    unknown = set(arguments.samplers or []) - set(SAMPLERS)
    if unknown:
        raise SystemExit(f"--samplers {min(unknown)}: expected some of {', '.join(SAMPLERS)}.")
    names = arguments.samplers or [name for name in SAMPLERS if name != "NNSGHMC-s"]
    for collection in collections:
        data, test = (pieces(arguments.data, collection, part) for part in parts)
        epochs = arguments.epochs or EPOCHS[collection]
        for name in names:
            offset = f"-{arguments.offset:g}" if name == "NNSGHMC" else ""
            tuned = "-validation" if arguments.tune else ""
            store = folder / f"{collection}-{name}{offset}{tuned}.pt"
            budget = (arguments.units or 200, data, test, arguments.chains, epochs, ends)
            kept = run(store, name, sampler, arguments.offset, *budget)
            rows.append(row(collection, name, kept, epochs))
    show(HEADINGS, rows)


def train(arguments):
    """The paper's training, on half of the units; resumed from its checkpoint."""
    data = pieces(arguments.data, "Piano_midi", "traindata")
    torch.set_default_dtype(torch.float32)
    task = MetaTask(
        posterior((arguments.units or 200) // 2, data), init_strategy=small_weights, data_size=len(data.notes)
    )
    command = "python -m benchmarks.papers.nnsghmc.music --paper --data FOLDER --train FILE"
    sampler = train_meta_sampler(
        [task],
        step_size=math.sqrt(RATE / len(data.notes)),
        rounds=arguments.rounds or 40,
        constant_friction=FRICTION,
        chains=max(4, arguments.training_chains),
        steps=70,
        segments=7,
        truncation=70,
        thinning=5,
        share=0.05,
        within=0.0,
        scores="marginal",
        learning_rate=0.01,
        checkpoint=f"{arguments.train}.training",
        checkpoint_every=1,
        command=f"{command} --rounds {arguments.rounds or 40} --training-chains {arguments.training_chains}",
    )
    sampler.save(arguments.train)
