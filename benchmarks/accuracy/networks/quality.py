"""Ways to a Bayesian network ranked against long chains of HMC, at equal time.

    python -m benchmarks.accuracy.networks.quality [--only plain] [--data FOLDER] [--seconds 30] [--seed 0]

The network, its 160 digits and the images it is asked about are in `small_network.py`, the long chains in
`reference.py`. Every way has the same seconds of one core (process time, tracing and predictions included) and begins
at draws of the prior.

- SGLD, PSGLD and SGHMC: 8 chains, batches of 32, 1,000 steps of descent (temperature 0), then temperature 1, a draw of
  each chain every 200 steps. "Constant" is one step size; "cycles" are `CosineCycles` of 200 steps from twice that size
  on, the draw at the end of each. Each with two step sizes, of which a user would not know the better one.
- SGHMC at temperature 0: the same without noise, an ensemble of 8 modes.
- OHMC: 8 chains with all of the data, 125 iterations of warm-up.
- Ensembles: networks by Adam with a falling rate on the same log posterior (so that its prior is the weight decay),
  1,000 steps each from starts of their own: the first alone, the first five, and all that fit into the time.

OSGHMC on a network without orthonormal matrices is SGHMC, and has no row of its own. The network with an orthogonal
hidden layer is another model, with long chains and a table of its own. There OSGHMC has
a draw every 50 steps, for its steps cost more, and either unit masses after the same descent, or ``scales="adapt"``
from draws of the prior on, with 20 iterations of warm-up. ``--seeds`` repeats its rows.

Scores for images from elsewhere are entropies of the predictions. The first row is the reference itself, its agreement
and total variation those between two halves of its chains: nothing can be told apart below that.
"""

import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyro
import torch
from torch import nn

from benchmarks.accuracy.networks import reference, scores
from benchmarks.accuracy.networks.small_network import (
    OUTSIDE,
    bayesian_network,
    digits,
    orthogonal_network,
    patterns,
    plain_network,
    probabilities,
)
from benchmarks.image_classifier import posterior
from benchmarks.predictions import Predictions
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import line, show
from examples.datasets import data_folder
from pyro_manifold.infer import OSGHMC, PSGLD, SGHMC, SGLD, CosineCycles
from pyro_manifold.infer.mcmc.running import Iteration
from pyro_manifold.infer.mcmc.transitions import NotFiniteError

BATCH, CHAINS = 32, 8
STEP_SIZES = {SGLD: (1e-3, 4e-3), PSGLD: (4e-3, 1.6e-2), SGHMC: (0.01, 0.04)}
ORTHOGONAL_STEP_SIZES = (7e-4, 3e-3)  # smaller, for entries of orthonormal rows have the scale 1/28, and masses are 1
ADAPTED_STEP_SIZES = (0.1, 0.2)  # relative to the scales that warm-up finds
ORTHOGONAL_STEPS = 50
RATE = 0.03  # of Adam
COLUMNS = [
    "way", "step size", "seconds", "draws", "R-hat, 95 %", "agreement", "total variation", "NLL", "ECE", "Brier",
    "accuracy", *(f"AUROC, {name}" for name in OUTSIDE),
]  # fmt: skip


class Length(NamedTuple):
    """Budget of a run: steps of descent, steps of a draw, HMC's warm-up, steps of a member, seconds, step sizes."""

    descent: int
    steps: int
    warmup: int
    member: int
    seconds: float
    sizes: int = 2


class Found(NamedTuple):
    """Results of one way: probabilities ``(3, tested, 10)``, seconds, draws or networks, and R-hat, if it has one."""

    probabilities: torch.Tensor
    seconds: float
    draws: str
    r_hat: float = math.nan


# ---- ways --------------------------------------------------------------------------------------------------------


def stochastic(kernel, network, data, length, step_size, *, cycles=False, temperature=1.0, **options):
    """A stochastic-gradient kernel with a schedule: descent, then draws."""
    cycle = CosineCycles(2 * step_size, length.steps, smallest=step_size / 20)
    return kernel(
        posterior(network, data.images, data.labels, min(BATCH, len(data.images))),
        step_size=(lambda step: step_size if step < length.descent else cycle(step)) if cycles else step_size,
        temperature=lambda step: 0.0 if step < length.descent else temperature,
        num_steps=length.steps,
        init_strategy=pyro.infer.autoguide.init_to_sample,
        **options,
    )


def adapted(network, data, length, step_size):
    """OSGHMC that learns the masses of sites, without a descent."""
    return OSGHMC(
        posterior(network, data.images, data.labels, min(BATCH, len(data.images))), step_size=step_size,
        num_steps=length.steps, scales="adapt", init_strategy=pyro.infer.autoguide.init_to_sample,
    )  # fmt: skip


def sampled(kernel, network, data, warmup, seconds):
    """Mean predictions of chains that run for so many seconds, and have at least two draws."""
    started = time.process_time()
    predictions = Predictions(network, data.asked, statistic=probabilities)
    # Not by MCMC, which goes by the number of iterations.
    with pyro.validation_enabled(False):
        run = kernel.prepare(CHAINS, warmup, None)
        while predictions.draws < 2 or time.process_time() - started < seconds:
            run.iterate()
            if not run.warming_up:
                draw = predictions.draws
                predictions(Iteration("Sample", draw, draw, run.positions, run.statistics, run.target))
    taken = time.process_time() - started
    r_hat = float(predictions.r_hat[0].flatten().quantile(0.95))
    return Found(predictions.mean, taken, f"{CHAINS} × {predictions.draws}", r_hat)


def ensemble(data, width, steps, seconds):
    """Predictions of one network, of five, and of all that fit into the time."""
    started, total, members = time.process_time(), 0.0, 0
    while members < 5 or time.process_time() - started < seconds:
        network = fitted(data, width, steps)
        with torch.no_grad():
            total = total + probabilities(network(data.asked))
        members += 1
        found = Found(total / members, time.process_time() - started, str(members))
        if members in (1, 5):
            yield found
    yield found


def fitted(data, width, steps):
    """A mode of the posterior, by Adam on the mean loss of batches from a draw of the prior."""
    network = plain_network(width).to(data.images.dtype)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    cases, order = len(data.images), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if not len(order):
            order = torch.randperm(cases)
        rows, order = order[:BATCH], order[BATCH:]
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(data.images[rows]), data.labels[rows])
        prior = 0.5 * sum(parameter.square().sum() for parameter in network.parameters())
        (loss + prior / cases).backward()
        optimiser.step()
        schedule.step()
    return network


# ---- the tables --------------------------------------------------------------------------------------------------


def cells(name, step_size, found, truth, labels):
    """A row; ``truth`` is what the probabilities of the tested images should be, or None."""
    inside, *outside = found.probabilities
    near = (
        ["", ""] if truth is None else [_rounded(f(inside, truth)) for f in (scores.agreement, scores.total_variation)]
    )
    uncertainty, right = scores.entropy(inside), (inside.argmax(-1) == labels).to(inside.dtype).mean()
    scored = [f(inside, labels) for f in (scores.negative_log_likelihood, scores.calibration_error, scores.brier)]
    figures = *scored, right, *(scores.auroc(uncertainty, scores.entropy(part)) for part in outside)
    r_hat = "" if math.isnan(found.r_hat) else f"{found.r_hat:.2f}"
    return [name, step_size, f"{found.seconds:.0f}", found.draws, r_hat, *near, *map(_rounded, figures)]


def _rounded(value):
    return f"{float(value):.3f}"


def of_reference(kept, about, labels):
    """The row of the long chains."""
    draws = f"{about['chains']} × {about['draws']}"
    found = Found(kept, about["seconds_of_one_core"], draws, about["r_hat"]["tested"][1])
    row = cells("reference", "", found, None, labels)
    near = [_rounded(about["halves"][name]) for name in ("agreement", "total_variation")]
    at = COLUMNS.index("agreement")
    return [*row[:at], *near, *row[at + 2 :]]


def row_of(name, step_size, kernel, network, data, length, truth, warmup):
    """A kernel's row, or that its chains left the finite numbers."""
    try:
        found = sampled(kernel, network, data, warmup, length.seconds)
    except NotFiniteError:
        return [name, step_size, "not finite"]
    return cells(name, step_size, found, truth, data.tested_labels)


def of_the_same_model(data, truth, width, length, seed):
    """Rows of all ways to the posterior of the reference."""
    network, warmup = bayesian_network(width), math.ceil(length.descent / length.steps)
    for kernel, step_sizes in STEP_SIZES.items():
        for step_size in step_sizes[: length.sizes]:
            for cycles in (False, True):
                pyro.set_rng_seed(seed)
                made = stochastic(kernel, network, data, length, step_size, cycles=cycles)
                name = f"{kernel.__name__}, {'cycles' if cycles else 'constant'}"
                yield row_of(name, step_size, made, network, data, length, truth, warmup)
    pyro.set_rng_seed(seed)
    cold = stochastic(SGHMC, network, data, length, STEP_SIZES[SGHMC][0], temperature=0.0)
    yield row_of("SGHMC, temperature 0", STEP_SIZES[SGHMC][0], cold, network, data, length, truth, warmup)
    pyro.set_rng_seed(seed)
    yield row_of("OHMC", "", reference.full_batch(network, data), network, data, length, truth, length.warmup)
    pyro.set_rng_seed(seed)
    for found in ensemble(data, width, length.member, length.seconds):
        name = "one network, Adam" if found.draws == "1" else f"ensemble of {found.draws}, Adam"
        yield cells(name, RATE, found, truth, data.tested_labels)


def of_the_orthogonal_model(data, truth, width, length, seeds):
    """Rows of the network with an orthogonal hidden layer, of each seed."""
    network = orthogonal_network(width)
    length = length._replace(steps=min(length.steps, ORTHOGONAL_STEPS))
    warmup = math.ceil(length.descent / length.steps)
    for seed in seeds:
        for step_size in ADAPTED_STEP_SIZES[: length.sizes]:
            pyro.set_rng_seed(seed)
            made = adapted(network, data, length, step_size)
            yield row_of("OSGHMC, masses adapted", step_size, made, network, data, length, truth, warmup)
        for step_size in ORTHOGONAL_STEP_SIZES[: length.sizes]:
            for friction in (0.1, 0.01):
                pyro.set_rng_seed(seed)
                made = stochastic(OSGHMC, network, data, length, step_size, friction=friction)
                name = f"OSGHMC, unit masses, friction {friction}"
                yield row_of(name, step_size, made, network, data, length, truth, warmup)
        pyro.set_rng_seed(seed)
        yield row_of("OHMC", "", reference.full_batch(network, data), network, data, length, truth, length.warmup)


def _kept(file, data, parser):
    """Kept long chains of these images."""
    kept, about = reference.load(file)
    if about["fingerprint"] != data.fingerprint:
        parser.error(f"{file} is of other images: make one with {reference.COMMAND}.")
    return kept, about


def printed(title, reference_row, rows, by=None):
    """Print a table, and its rows on the standard error as they come; sorted by a column that rows may lack."""
    found = []
    for row in rows:
        print(line(row), file=sys.stderr, flush=True)
        found.append(row)
    if by is not None:
        place = COLUMNS.index(by)
        found.sort(key=lambda row: float(row[place]) if len(row) > place else math.inf)
    print(f"### {title}\n")
    show(COLUMNS, [reference_row, *found])
    print()


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of MNIST's four files, by default mnist in PYRO_MANIFOLD_DATA"),
        reference=option(reference.FILE, "what benchmarks.accuracy.networks.reference kept", type=Path),
        orthogonal_reference=option(reference.ORTHOGONAL_FILE, type=Path),
        seconds=option(30.0, "of one core, for each row"),
        only=option(None, "hidden layer, in place of both", choices=["plain", "orthogonal"]), seed=0,
        seeds=option(1, "number of seeds of the orthogonal network's rows"),
        short=switch("a tiny network, generated images, hardly any time"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    data = patterns() if arguments.short else digits(arguments.data or data_folder() / "mnist")
    length = Length(20, 5, 20, 20, 0.0, 1) if arguments.short else Length(1000, 200, 125, 1000, arguments.seconds)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    tables = {
        "plain": ("", arguments.reference, partial(of_the_same_model, seed=arguments.seed), "total variation"),
        "orthogonal": (
            " with an orthogonal hidden layer", arguments.orthogonal_reference,
            partial(of_the_orthogonal_model, seeds=seeds), None,
        ),
    }  # fmt: skip
    for kind, (title, file, rows_of, by) in tables.items():
        if arguments.only in (None, kind):
            kept, about = _kept(file, data, parser)
            title = f"784-{about['width']}-10{title}" + (", by total variation from the reference" if by else "")
            rows = rows_of(data, kept[0].to(data.images.dtype), about["width"], length)
            printed(title, of_reference(kept, about, data.tested_labels), rows, by)


if __name__ == "__main__":
    main()
