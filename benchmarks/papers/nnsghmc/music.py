"""Recurrent networks of music: a sampler trained on piano music, on larger networks of four collections.

    python -m benchmarks.papers.nnsghmc.music --data FOLDER --train FILE [--rounds 40]
    python -m benchmarks.papers.nnsghmc.music --data FOLDER --sampler FILE --store FOLDER --collection Piano_midi --tune
    python -m benchmarks.papers.nnsghmc.music --data FOLDER --sampler FILE --store FOLDER [--offset 4] [--minutes 15]
    python -m benchmarks.papers.nnsghmc.music --store FOLDER --figure PICTURE

Section 5.3 and appendix of Gong, Li & Hernández-Lobato (ICLR 2019), who follow Chen, Carlson, Gan, Li & Carin (AISTATS
2016), with a gated recurrent unit and whole pieces, one at a time. As there: a sampler is trained on 100 units and
Piano-midi (40 epochs of 7 times 70 steps, cross-chain loss), and used with 200; batches of one piece; 20 epochs, 100 on
JSB chorales; the rate of a batch 0.001, so that ε = √(0.001 / N) for N times of all pieces together; friction 0.01 of
SGHMC; Adam with 0.001. The likelihood is weighted as theirs: U = -N / T log p(piece) + prior for a piece of T times,
which gives each piece the same weight.

What the paper leaves open, and here: standard normal priors; weights begin normal with variance 1 / inputs; the first
state is 0; three chains with their own orders of pieces; probabilities of a chain averaged over its draws at the ends
of the later half of epochs so far (those of Adam and Santa: of the present weights); a quarter of the epochs is
warm-up, in which the guard of NNSGHMC may halve its steps. ``--offset`` is β of Q, by which they accelerate the sampler
on other collections than that of its training, tuned on the validation pieces of Piano-midi (``--tune``); NNSGHMC-s is
without.

Each epoch is stored, so that the command goes on where it was ended; ``--minutes`` ends it.
"""

import math
import time
from pathlib import Path

import numpy as np
import pyro
import torch

from benchmarks.arguments import count, new_file, positive
from benchmarks.papers.nnsghmc.digits import sampler_of, small_weights
from benchmarks.papers.nnsghmc.music_samplers import FRICTION, RATE, SAMPLERS, likelihoods, made, pieces, posterior
from benchmarks.pictures import pyplot
from benchmarks.stored import check_settings, checksum, read_state, write_state
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show
from pyro_manifold.infer import MetaTask, train_meta_sampler

EPOCHS = {"Piano_midi": 20, "Nottingham": 20, "MuseData": 20, "JSB_Chorales": 100}
UNITS = 200
HEADINGS = [
    *("collection", "sampler", "negative log-likelihood", "lowest, after epoch", "of the last draws"),
    *("temperature", "epochs", "CPU seconds of all chains"),
]


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
    settings = {"units": units, "chains": chains, "pieces": checksum(*data), "test pieces": checksum(*test)}
    if name not in ("Adam", "SGHMC"):
        settings["epochs"] = epochs  # of which a part is warm-up, or exploration
    if name.startswith("NNSGHMC"):
        settings["sampler"] = sampler.fingerprint
    kept = {"likelihoods": [], "measured": [], "seconds": 0.0, "error": "", "settings": settings}
    chain = made(name, sampler, offset, units, data, chains, epochs)
    if store.exists():
        kept = read_state(store)
        check_settings(store, kept.get("settings", {}), settings)
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
        write_state(store, {**kept, "state": chain.state_dict()})
    return kept


def of_sampler(name, kept):
    """Return the curve of averaged probabilities, for an optimiser that of its present weights."""
    return curve(torch.stack(kept["likelihoods"]), name not in ("Adam", "Santa"))


def row(collection, name, kept, epochs):
    if not kept["likelihoods"]:
        return [collection, name, *["–"] * 4, f"0 of {epochs} {kept['error']}", f"{kept['seconds']:.0f}"]
    averaged, single = of_sampler(name, kept), curve(torch.stack(kept["likelihoods"]), late=False)
    last, done = averaged[-1], len(averaged)
    hot = kept["measured"][-1].get("kinetic_temperature")
    temperature = "–" if hot is None else f"{np.mean(hot):.2f}"
    words = f"{last.mean():.2f} ± {last.std():.2f}" if len(last) > 1 else f"{float(last):.2f}"
    end = f"{done} of {epochs}" + (", ended by its guard" if kept["error"] else "")
    lowest = f"{averaged.mean(1).min():.2f} after {int(averaged.mean(1).argmin()) + 1}"
    return [collection, name, words, lowest, f"{single[-1].mean():.2f}", temperature, end, f"{kept['seconds']:.0f}"]


def compare(arguments, collections):
    sampler = sampler_of(arguments.sampler)
    folder = Path(arguments.store)
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * arguments.minutes
    rows, parts = [], ("traindata", "validdata" if arguments.tune else "testdata")
    names = arguments.samplers or [name for name in SAMPLERS if name != "NNSGHMC-s"]
    for collection in collections:
        data, test = (pieces(arguments.data, collection, part) for part in parts)
        epochs = arguments.epochs or EPOCHS[collection]
        for name in names:
            offset = f"-{arguments.offset:g}" if name == "NNSGHMC" else ""
            tuned = "-validation" if arguments.tune else ""
            store = folder / f"{collection}-{name}{offset}{tuned}.pt"
            budget = (arguments.units, data, test, arguments.chains, epochs, ends)
            kept = run(store, name, sampler, arguments.offset, *budget)
            rows.append(row(collection, name, kept, epochs))
    show(HEADINGS, rows)


def train(arguments):
    """The paper's training, on half of the units; resumed from its checkpoint."""
    data = pieces(arguments.data, "Piano_midi", "traindata")
    torch.set_default_dtype(torch.float32)
    task = MetaTask(posterior(arguments.units // 2, data), init_strategy=small_weights, data_size=len(data.notes))
    command = "python -m benchmarks.papers.nnsghmc.music --data FOLDER --train FILE"
    sampler = train_meta_sampler(
        [task], step_size=math.sqrt(RATE / len(data.notes)), rounds=arguments.rounds, constant_friction=FRICTION,
        chains=arguments.training_chains, steps=70, segments=7, truncation=70, thinning=5, fraction=0.05, within=0.0,
        scores="marginal", learning_rate=0.01, checkpoint=f"{arguments.train}.training", checkpoint_every=1,
        command=f"{command} --rounds {arguments.rounds} --training-chains {arguments.training_chains}",
    )  # fmt: skip
    sampler.save(arguments.train)


def draw(store, path):
    """Negative log-likelihood of the test pieces by epoch, for all runs of the store; means over chains."""
    plt = pyplot()

    if not any(Path(store).glob("*.pt")):
        raise SystemExit(f"--store {store} has no runs: run some first, or name their store.")
    figure, axes = plt.subplots(1, len(EPOCHS), figsize=(13, 3.4), layout="constrained")
    for axis, collection in zip(axes, EPOCHS, strict=True):
        files = [file for file in Path(store).glob(f"{collection}-*.pt") if not file.stem.endswith("-validation")]
        for file in sorted(files):
            name = file.stem.removeprefix(f"{collection}-")
            sampler = name if name in SAMPLERS else "NNSGHMC"
            likelihood = of_sampler(sampler, read_state(file)).mean(1)
            colour = f"C{SAMPLERS.index(sampler)}"
            axis.plot(
                range(1, len(likelihood) + 1), likelihood, colour, label=name.replace("-", ", offset ", name != sampler)
            )
        lowest = min((line.get_ydata().min() for line in axis.lines), default=1.0)
        axis.set(title=collection.replace("_", " "), xlabel="epoch", ylim=(0.97 * lowest, 1.65 * lowest))
        if axis.lines:
            axis.legend(fontsize=7)
    axes[0].set_ylabel("negative log-likelihood")
    figure.savefig(path, dpi=90)


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of the four files *.mat"),
        train=option(None, "train a sampler and write it here"), rounds=option(40, "of training", type=count),
        training_chains=option(8, "4 or more", type=count),
        sampler=option(None, "a name, or a file that --train wrote"),
        store=option(None, "folder in which each epoch is stored, to go on from there"),
        collection=option(None, "one in place of all", choices=EPOCHS),
        samplers=option(None, "some of all", nargs="+", choices=SAMPLERS), chains=option(3, type=count),
        units=option(UNITS, "half as many in training", type=count),
        offset=option(0.0, "what is added to Q of NNSGHMC"),
        epochs=option(None, "in place of 20, or 100 of JSB chorales", type=count),
        minutes=option(1e6, "after which the command ends", type=positive),
        tune=switch("validation pieces in place of the test's"),
        figure=option(None, "draw the curves of the store", type=new_file), short=switch("a few random notes"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    if arguments.training_chains < 4:
        parser.error(f"--training-chains {arguments.training_chains}: expected 4 or more, for scores of draws.")
    if arguments.store is None and arguments.train is None:
        parser.error("--store is needed: a folder in which each epoch is stored.")
    if arguments.figure:
        return draw(arguments.store, arguments.figure)
    if arguments.data is None and not arguments.short:
        parser.error("--data is needed: the folder of the four collections (or --short).")
    if arguments.train:
        return train(arguments)
    if arguments.sampler is None:
        parser.error("--sampler is needed: a file that --train wrote.")
    return compare(arguments, [arguments.collection] if arguments.collection else EPOCHS)


if __name__ == "__main__":
    main()
