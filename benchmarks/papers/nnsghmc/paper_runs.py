"""Runs of the paper's budget: 20 chains, 12,000 steps, predictions of all chains at one time, stored and resumed.

As in the code of Gong, Li & Hernández-Lobato (github.com/WenboGong/MetaSGMCMC, BNN_MNIST): all training images,
batches of 500 that all chains share, weights that begin with standard deviation 0.01, and after each 100 steps the
probabilities of the test images averaged over the 20 chains' draws of that time. 12,000 steps are 100 epochs of the
60,000 images; of the digits 5 to 9, whose 100 epochs are 5,800 steps, the curve is read there too. `RATES` are the
per-batch rates with which the paper ran its samplers, that of NNSGHMC after its first three epochs, which have half
of it. Each run writes its curve and its state every 500 steps, and the same command resumes it.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import pyro
import torch

from benchmarks.papers.nnsghmc.digits import BATCH, PROBLEMS, network, only, posterior, split
from pyro_manifold.infer import NNSGHMC, PSGLD, SGHMC, SGLD

CHAINS, STEPS, BETWEEN, SAVED = 20, 12_000, 100, 500
RATES = {
    "ReLU": {"NNSGHMC": 0.018, "SGHMC": 0.01, "SGLD": 0.2, "pSGLD": 1.4e-3},
    "sigmoid": {"NNSGHMC": 0.18, "SGHMC": 1.0, "SGLD": 0.15, "pSGLD": 1.3e-3},
    "digits": {"NNSGHMC": 0.018, "SGHMC": 0.01, "SGLD": 0.2, "pSGLD": 1.3e-3},
}
"""Rates of the paper's samplers; SGHMC with friction 0.1, which it has not, begins with ten times the rate."""
SHORT_RATE_EPOCHS, SHORT_RATE = 3, 0.47


def tiny_weights(site):
    return 0.01 * site["fn"].sample()


def settings(name, rate, sampler, cases):
    """Kernel and its settings at a per-batch rate γ: steps of √(γ/N), of 2γ/N for SGLD, of 2γ for pSGLD."""
    if name == "SGLD":
        return SGLD, {"step_size": 2 * rate / cases}
    if name == "pSGLD":
        return PSGLD, {"step_size": 2 * rate, "decay": 0.99, "damping": 1e-5 * cases}
    step_size = math.sqrt(rate / cases)
    if name != "NNSGHMC":
        return SGHMC, {"step_size": step_size, "friction": 0.1 if "0.1" in name else 0.01, "integrator": "euler"}
    first = SHORT_RATE_EPOCHS * (cases // BATCH)
    return NNSGHMC, {
        "sampler": sampler,
        "step_size": lambda step: step_size * (math.sqrt(SHORT_RATE) if step < first else 1.0),
    }


def rate_of(problem, name):
    rates = RATES[problem]
    return rates[name] if name in rates else 10 * rates["SGHMC"]


def of_all_chains(draws, sizes, activation, images, labels):
    """``(accuracy in %, negative log-likelihood)`` of the mean of the chains' probabilities.

    Args:
        draws: ``{site: (chains, ...)}`` of a network of these layers.
        sizes: widths of the layers.
        activation: between them.
        images: ``(cases, pixels)``.
        labels: ``(cases,)``.
    """
    values = list(draws.values())
    weights = [value for value in values if value.dim() == 3]
    biases = [value for value in values if value.dim() == 2]
    assert [len(weight[0]) for weight in weights] == [len(bias[0]) for bias in biases] == list(sizes[1:])
    correct, loss, function = 0, 0.0, activation()
    for x, y in zip(images.split(2000), labels.split(2000), strict=True):
        h = x.unsqueeze(0)
        for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            h = (function(h) if k else h) @ weight.mT + bias.unsqueeze(1)
        logs = h.log_softmax(-1).logsumexp(0) - math.log(len(h))
        correct += int((logs.argmax(1) == y).sum())
        loss -= float(logs[torch.arange(len(y)), y].double().sum())
    return 100 * correct / len(labels), loss


def ordered(draws, sizes):
    """Sites in the order of the layers: the weights and bias of a layer share its name but for the last part."""
    return {name: draws[name] for name in sorted(draws, key=lambda name: (name.rsplit(".", 1)[0], name))}


class Run:
    """A run that is stored in one file after each 500 steps: its curve, the seconds of its steps, and its state."""

    def __init__(self, file, problem, name, rate, sampler, train, test, seed, chains=CHAINS):
        sizes, self._activation, _ = PROBLEMS[problem]
        self._sizes, self._test, self._file = sizes, test, Path(file)
        pyro.set_rng_seed(seed)
        kernel, options = settings(name, rate, sampler, len(train[0]))
        model = posterior(network(sizes, self._activation), *train)
        between = min(BETWEEN, 10) if len(train[0]) < 1000 else BETWEEN
        self._between = between
        kernel = kernel(model, **options, num_steps=between, init_strategy=tiny_weights)
        self._chain = kernel.prepare(chains, 0, None)
        self.curve, self.seconds = [], 0.0
        if self._file.exists():
            saved = torch.load(self._file, weights_only=True)
            self.curve, self.seconds = saved["curve"], saved["seconds"]
            self._chain.load_state_dict(saved["state"])

    @property
    def steps(self):
        return self._chain.iteration * self._between

    def advance(self, steps):
        """Run up to so many steps in all; the curve then has ``(steps, accuracy, negative log-likelihood)``."""
        while self.steps < steps and not (self.curve and math.isinf(self.curve[-1][2])):
            started = time.process_time()
            try:
                self._chain.advance()
            except ArithmeticError:
                self.curve.append((self.steps, 0.0, math.inf))
                self.save()
                return
            self.seconds += time.process_time() - started
            draws = ordered(self._chain.values, self._sizes)
            self.curve.append((self.steps, *of_all_chains(draws, self._sizes, self._activation, *self._test)))
            if self.steps % SAVED == 0 or self.steps >= steps:
                self.save()

    def save(self):
        if self._file.parent.name:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._file.with_suffix(".unfinished")
        content = {"curve": self.curve, "seconds": self.seconds, "state": self._chain.state_dict()}
        torch.save(content, unfinished)
        os.replace(unfinished, self._file)
        self._file.with_suffix(".json").write_text(json.dumps({"seconds": self.seconds, "curve": self.curve}))
