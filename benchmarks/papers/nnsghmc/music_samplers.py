"""Posteriors of music and their samplers: kernels of the package, Adam, and Santa; see `music`.

Santa is that of Chen et al.'s program (github.com/cchangyou/Santa, rnn_music), with its constants; as there, gradients
of Adam and Santa are of the mean over the times of a piece, and scaled to the norm 5.
"""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyro
import scipy.io
import torch
from torch import Tensor

from benchmarks.papers.nnsghmc import gru
from benchmarks.papers.nnsghmc.digits import small_weights
from pyro_manifold.infer import NNSGHMC, SGHMC
from pyro_manifold.nn import to_bayesian_

RATE, FRICTION, NORM = 0.001, 0.01, 5.0
SAMPLERS = ("SGHMC", "NNSGHMC", "NNSGHMC-s", "Adam", "Santa")


class Pieces(NamedTuple):
    """Notes of all pieces, one after another, ``(times, 88)`` as bytes; where each begins, and the end of the last."""

    notes: Tensor
    starts: Tensor

    @property
    def count(self):
        return len(self.starts) - 1


def pieces(folder, collection, part):
    """Read the pieces of a part of a collection; without a folder, make a few of random notes."""
    if folder is None:
        found = [np.random.default_rng(k).random((5 + k, gru.NOTES)) < 0.04 for k in range(6)]
    else:
        file = Path(folder) / f"{collection}.mat"
        if not file.exists():
            raise SystemExit(f"--data {folder}: expected a folder of all collections; no {file.name} there.")
        found = scipy.io.loadmat(file)[part][0]
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
            per_chain_minibatches=True,
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
