"""Runs of the paper's budget: 20 chains, 12,000 steps, predictions of all chains at one time, stored and resumed.

As in the code of Gong, Li & Hernández-Lobato (github.com/WenboGong/MetaSGMCMC, BNN_MNIST): all training images,
batches of 500 that all chains share, weights that begin with standard deviation 0.01, and after each 100 steps the
probabilities of the test images averaged over the 20 chains' draws of that time. 12,000 steps are 100 epochs of the
60,000 images; of the digits 5 to 9, 100 epochs are 5,900 steps, after which the curve is read too. `RATES` are the
per-batch rates with which the paper ran its samplers, that of NNSGHMC after its first three epochs, which have half
of it. Each run writes its curve and its state every 500 steps, and the same command resumes it.

``--tune`` looks for the rate of each sampler on the last 10,000 training images, by runs of 2,000 steps: the one of the
paper's rate times powers of two from which neither way is better. Later runs of the same store have these rates.

The comparison of the appendix, by ``--steps 500 --optimisers``: SGD with momentum is SGHMC without noise (temperature
0), at the rate of SGHMC; Adam has the rates 0.002 (ReLU) and 0.01 (sigmoids); 20 networks each, averaged as draws are.
"""

import math
import time
from pathlib import Path

import pyro
import torch

from benchmarks.papers.nnsghmc.digits import BATCH, PROBLEMS, best_of, network, only, posterior, split
from benchmarks.stored import check_settings, checksum, read_json, read_state, write_json, write_state
from benchmarks.tables import with_deviation
from pyro_manifold.infer import NNSGHMC, PSGLD, SGHMC, SGLD

CHAINS, STEPS, BETWEEN, SAVED = 20, 12_000, 100, 500
TUNING_STEPS = 2000
LATE = 2000  # last steps over which the curve is averaged, since it varies from step to step
NAMES = ("NNSGHMC", "SGHMC", "SGHMC, friction 0.1", "SGLD", "pSGLD")
OPTIMISERS = ("SGD with momentum", "Adam")
RATES = {
    "ReLU": {"NNSGHMC": 0.018, "SGHMC": 0.01, "SGLD": 0.2, "pSGLD": 1.4e-3, "Adam": 0.002},
    "sigmoid": {"NNSGHMC": 0.18, "SGHMC": 1.0, "SGLD": 0.15, "pSGLD": 1.3e-3, "Adam": 0.01},
    "digits": {"NNSGHMC": 0.018, "SGHMC": 0.01, "SGLD": 0.2, "pSGLD": 1.3e-3, "Adam": 0.002},
}
"""The paper's; SGHMC with friction 0.1, which it has not, begins with ten times the rate of the one with 0.01."""
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
        options = {"friction": 0.1 if "0.1" in name else 0.01, "temperature": float(name != OPTIMISERS[0])}
        return SGHMC, {"step_size": step_size, "integrator": "euler", **options}
    first = SHORT_RATE_EPOCHS * (cases // BATCH)
    return NNSGHMC, {
        "sampler": sampler,
        "step_size": lambda step: step_size * (math.sqrt(SHORT_RATE) if step < first else 1.0),
    }


def rate_of(problem, name, store):
    """The rate that was tuned in this store, or that of the paper."""
    tuned = Path(store) / f"rates-{problem}.json"
    rates = RATES[problem] | (read_json(tuned) if tuned.exists() else {})
    if name == OPTIMISERS[0]:
        return rates["SGHMC"]
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


def in_layers(draws):
    """Sites in the order of the layers, the weight of a layer before its bias."""
    return {name: draws[name] for name in sorted(draws, key=lambda name: (name.split(".")[0], -draws[name].dim()))}


class Adam:
    """As many networks as chains, each descended by Adam, with the interface of a run that is used here."""

    def __init__(self, run, rate, cases, between):
        self._problem, self._cases, self._between = run.problem, cases, between
        self._position = {block: x.clone() for block, x in run.problem.position.items()}
        self._optimiser = torch.optim.Adam(self._position.values(), lr=rate)
        self.iteration = 0

    @property
    def values(self):
        return self._problem.layout.unpack(self._position)

    def advance(self):
        for step in range(self.iteration * self._between, (self.iteration + 1) * self._between):
            _, slopes = self._problem.at_step(step)(self._position)
            for block, x in self._position.items():
                x.grad = slopes[block] / self._cases
            self._optimiser.step()
        self.iteration += 1

    def state_dict(self):
        return {"position": list(self._position.values()), "Adam": self._optimiser.state_dict(), "n": self.iteration}

    def load_state_dict(self, saved):
        for x, value in zip(self._position.values(), saved["position"], strict=True):
            x.copy_(value)
        self._optimiser.load_state_dict(saved["Adam"])
        self.iteration = saved["n"]


class Run:
    """A run whose curve, seconds and state are written after each 500 steps, into ``file`` and one beside it.

    Attributes:
        curve: ``(steps, accuracy in %, negative log-likelihood)`` after each 100 steps.
        seconds: of the processor, without predictions.
    """

    def __init__(self, file, problem, name, rate, sampler, train, test, seed, chains=CHAINS):
        self._file, self._page = Path(file), Path(file).with_suffix(".json")
        self._made = (problem, name, rate, sampler, train, seed, chains)
        self._test, self._chain = test, None
        learned = {"sampler": sampler.fingerprint} if name == "NNSGHMC" else {}
        data = {"training images": checksum(*train), "test images": checksum(*test)}
        self._settings = {"problem": problem, "name": name, "rate": rate, "seed": seed, "chains": chains}
        self._settings |= {**learned, **data}
        self.curve, self.seconds = [], 0.0
        if self._page.exists() and self._file.exists():
            page = read_json(self._page)
            check_settings(self._page, page.get("settings", {}), self._settings)
            self.curve, self.seconds = page["curve"], page["seconds"]

    def _prepare(self):
        problem, name, rate, sampler, train, seed, chains = self._made
        sizes, activation, _ = PROBLEMS[problem]
        pyro.set_rng_seed(seed)
        kernel, options = settings("SGLD" if name == "Adam" else name, rate, sampler, len(train[0]))
        between = BETWEEN if len(train[0]) > 2 * BATCH else 10
        model = posterior(network(sizes, activation), *train)
        chain = kernel(model, **options, num_steps=between, init_strategy=tiny_weights).prepare(chains, 0, None)
        self._between = between
        self._chain = Adam(chain, rate, len(train[0]), between) if name == "Adam" else chain
        if self._file.exists():
            saved = read_state(self._file)
            check_settings(self._file, saved.get("settings", {}), self._settings)
            self._chain.load_state_dict(saved["state"])
            self.curve, self.seconds = saved["curve"], saved["seconds"]

    def advance(self, steps):
        """Run up to so many steps in all, or until a value is not finite."""
        if self.curve and (self.curve[-1][0] >= steps or math.isinf(self.curve[-1][2])):
            return
        self._prepare()
        sizes, activation, _ = PROBLEMS[self._made[0]]
        while self._chain.iteration * self._between < steps:
            started = time.process_time()
            try:
                self._chain.advance()
            except ArithmeticError:
                self.curve.append((self._chain.iteration * self._between, 0.0, math.inf))
                break
            self.seconds += time.process_time() - started
            done = self._chain.iteration * self._between
            figures = of_all_chains(in_layers(self._chain.values), sizes, activation, *self._test)
            self.curve.append((done, *figures))
            if done % SAVED == 0:
                self._save()
        self._save()

    def _save(self):
        content = {"curve": self.curve, "seconds": self.seconds, "settings": self._settings}
        write_state(self._file, {**content, "state": self._chain.state_dict()})
        write_json(self._page, content)


def parts_of(problem, train, test):
    """The digits of a problem: all training and test images, and the former without and only the held-out ones."""
    digits = PROBLEMS[problem][2]
    train, test = only(digits, *train), only(digits, *test)
    return (train, test), split(*train)


def tune(problem, names, sampler, parts, store, chains, steps):
    """Write the best rate of each sampler, by the negative log-likelihood of held-out training images."""
    path = Path(store) / f"rates-{problem}.json"
    for name in names:

        def loss(rate, name=name):
            file = Path(store) / "tuning" / f"{problem}-{name}-{rate:.4g}.pt".replace(" ", "-")
            run = Run(file, problem, name, rate, sampler, *parts, 0, chains)
            run.advance(steps)
            return run.curve[-1][2]

        first = RATES[problem].get(name, 10 * RATES[problem]["SGHMC"])
        best, tried = best_of(loss, first, 2)
        print(problem, name, {f"{rate:.3g}": f"{value:.0f}" for rate, value in sorted(tried.items())}, flush=True)
        rates = read_json(path) if path.exists() else {}
        write_json(path, {**rates, name: best})


HEADINGS = (
    *("sampler", "rate", "steps", "accuracy, %", "negative log-likelihood", "of each seed"),
    *("mean of the last 2,000 steps", "after 100 epochs: accuracy, %", "negative log-likelihood", "CPU seconds a seed"),
)


def compare(problem, names, sampler, data, store, seeds, steps, chains):
    """Run each sampler from each seed, or go on with it, and return rows of figures, means ± deviations over seeds."""
    rows = []
    for name in names:
        found, seconds = [], []
        rate = rate_of(problem, name, store)
        for seed in range(seeds):
            file = Path(store) / f"{problem}-{name}-{seed}.pt".replace(" ", "-")
            run = Run(file, problem, name, rate, sampler, *data, 1 + seed, chains)
            run.advance(steps)
            end = 100 * math.ceil(len(data[0][0]) / BATCH)  # 100 epochs
            after = next((point for point in run.curve if point[0] >= end), run.curve[-1])
            late = [loss for step, _, loss in run.curve if step > run.curve[-1][0] - LATE]
            found.append((*run.curve[-1], sum(late) / len(late), *after[1:]))
            seconds.append(run.seconds)
            accuracy, loss = found[-1][1:3]
            print(f"{problem}, {name}, seed {seed}: {accuracy:.2f} %, {loss:.1f}, {run.seconds:.0f} s", flush=True)
        steps_taken, accuracy, loss, late, accuracy_after, loss_after = torch.tensor(found, dtype=torch.double).T
        each = ", ".join(f"{value:.0f}" for value in loss)
        row = [name, f"{rate:.3g}", f"{int(steps_taken[0])}", with_deviation(accuracy, 2), with_deviation(loss, 0)]
        row += [each, with_deviation(late, 0), with_deviation(accuracy_after, 2), with_deviation(loss_after, 0)]
        rows.append([*row, f"{sum(seconds) / seeds:.0f}"])
    return rows
