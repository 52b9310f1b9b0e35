"""Pictures of the runs of the paper's budget: curves beside the authors' stored ones, and contours of Q and D.

The authors' curves are files of their code (github.com/WenboGong/MetaSGMCMC, folder BNN_MNIST), means over ten runs.
Those of the digits have a value for each 20 steps, the others for each 100.
"""

from pathlib import Path

import numpy as np
import torch

from benchmarks.pictures import pyplot
from benchmarks.stored import read_json
from benchmarks.tables import show
from pyro_manifold.contrib.learned_sampler import MetaSampler, Scaling

NAMES = {
    "NNSGHMC": "C0", "SGHMC": "C1", "SGHMC, friction 0.1": "C4", "SGLD": "C2", "pSGLD": "C3",
    "SGD with momentum": "C5", "Adam": "C6",
}  # fmt: skip
THEIRS = {
    "ReLU": ("ReLU_Generalization_Long_Run", 100, ("nnsghmc_fd_0.18", "sghmc", "sgld_correct_0.2", "psgld_step_1.4")),
    "sigmoid": ("Sigmoid_Generalization_Long_Run", 100, ("nnsghmc", "sghmc", "sgld", "psgld_step_1.3")),
    "digits": ("Dataset_Gen_Long_Run", 20, ("nnsghmc", "sghmc", "sgld", "psgld_step_1.3")),
}
"""Folder, steps between values, and ends of the names of files, of NNSGHMC, SGHMC, SGLD and pSGLD."""
ENERGIES = (0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.5)
TITLES = {"ReLU": "NT: ReLU", "sigmoid": "AF: sigmoid", "digits": "Data: digits 5-9"}


def _figure(rows, columns, width, height):
    plt = pyplot()

    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False)


def curves(store, theirs, path):
    """Error and negative log-likelihood by step of the first seed; dotted: the authors' means. A column a problem."""
    files = {
        (problem, name): Path(store) / f"{problem}-{name}-0.json".replace(" ", "-")
        for problem in THEIRS
        for name in NAMES
    }
    pages = {key: read_json(file) for key, file in files.items() if file.exists()}
    if not pages:
        raise SystemExit(f"--store {store} has no runs of --paper: run some first, or name their store.")
    problems = [problem for problem in THEIRS if any(problem == of for of, _ in pages)]
    figure, axes = _figure(2, len(problems), 3 + 4 * len(problems), 7)
    for (error, loss), problem in zip(axes.T, problems, strict=True):
        last = max(page["curve"][-1][0] for (of, _), page in pages.items() if of == problem)
        for name, colour in NAMES.items():
            if (problem, name) in pages:
                steps, accuracy, likelihood = np.array(pages[problem, name]["curve"]).T
                error.plot(steps, np.maximum(100 - accuracy, 0.01), colour, label=name)
                loss.plot(steps, likelihood, colour, label=name)
        for name, steps, accuracy, likelihood in _of_the_authors(theirs, problem) if theirs else ():
            error.plot(steps, accuracy, NAMES[name], linestyle=":", label=f"{name}, authors")
            loss.plot(steps, likelihood, NAMES[name], linestyle=":")
        for axis, name in ((error, "test error, %"), (loss, "negative log-likelihood")):
            lowest = max(0.01, min((line.get_ydata().min() for line in axis.lines), default=1.0))
            axis.set(yscale="log", ylabel=name, ylim=(0.9 * lowest, 6 * lowest), xlim=(0, 1.02 * last))
        error.set(title=TITLES[problem])
        loss.set(xlabel="steps")
    labelled = {
        label: line for error in axes[0] for line, label in zip(*error.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labelled.values(), labelled, loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=90)


def _of_the_authors(folder, problem):
    inside, between, ends = THEIRS[problem]
    for name, end in zip(("NNSGHMC", "SGHMC", "SGLD", "pSGLD"), ends, strict=True):
        errors, losses = (np.loadtxt(Path(folder) / inside / f"{what}_Avg_{end}") for what in ("Acc", "NLL"))
        yield name, between * np.arange(1, len(errors) + 1), 100 * errors, losses


def contours(sampler: MetaSampler, path):
    """Q by energy and momentum; the learned part of D by energy and momentum, and by momentum and gradient.

    The learned part is what the network of D adds to c and αQ², as the fraction of the momentum that a step removes.
    Prints means and standard deviations over standard normal momenta at some energies, with a gradient of 1.
    """
    if not sampler.sees_energy or sampler.data_size == 1:
        raise SystemExit("--contours is for a sampler of networks whose Q sees the energy: --paper --train writes one.")
    figure, axes = _figure(1, 3, 13, 3.8)
    sampler = sampler.to(torch.zeros(()))
    energies, momenta, gradients = torch.linspace(0.25, 2.5, 80), torch.linspace(-3, 3, 81), torch.linspace(-5, 5, 79)
    curl, learned, _ = _coefficients(sampler, energies, momenta, torch.ones(()))
    at_once = _coefficients(sampler, torch.full((79,), 0.4), momenta, gradients.unsqueeze(1))[1]
    pictures = [
        (energies, curl, "energy of an image", "Q"),
        (energies, learned, "energy of an image", "learned friction of a step, gradient 1"),
        (gradients, at_once, "gradient", "learned friction of a step, energy 0.4"),
    ]
    for axis, (x, values, label, title) in zip(axes[0], pictures, strict=True):
        lines = axis.contourf(x, momenta, values.T, 20)
        axis.set(xlabel=label, ylabel="momentum", title=title)
        figure.colorbar(lines, ax=axis)
    figure.savefig(path, dpi=90)
    momenta = torch.randn(4001, generator=torch.Generator().manual_seed(0))
    rows = zip(ENERGIES, *_coefficients(sampler, torch.tensor(ENERGIES), momenta, torch.ones(())), strict=True)
    headings = [f"{name}{over}" for name in ("Q", "learned friction", "friction") for over in ("", ", ± over momenta")]
    show(
        ["energy of an image", *headings],
        (
            [f"{energy:g}", *(f"{x:.4f}" for each in values for x in (each.mean(), each.std()))]
            for energy, *values in rows
        ),
    )


def _coefficients(sampler, energies, momenta, gradients):
    """Q, the learned part of the friction of a step, and all of that friction; energies are of an image."""
    found = sampler.coefficients(
        sampler.data_size * energies,
        momenta.expand(len(energies), -1),
        gradients.expand(len(energies), len(momenta)),
        Scaling(sampler.dimension, sampler.data_size),
    )
    curl, friction = found.curl.detach(), sampler.step_size * found.friction.detach()
    return curl, friction - sampler.constant_friction - sampler.curl_friction * curl.square(), friction
