"""The predictions of a small network by long chains of full-batch HMC, to rank shorter ones against.

    python -m benchmarks.accuracy.networks.reference --data FOLDER [--orthogonal]

The network and its data are in `small_network.py`. Eight chains of `OHMC` begin at draws of the prior, so that R-hat
sees whether they have forgotten where; masses are those of the prior, and for orthonormal matrices adapted. R-hat is
that of predictive probabilities: of weights it means nothing, for hidden units may change places and signs. What is
kept are the mean probabilities, R-hat and the settings, in ``reference_160_digits.npz``, or
``reference_160_digits_orthogonal.npz`` for the network with an orthogonal hidden layer; no images. Chains that disagree
(95 % quantile of R-hat of the tested images 1.1 or more) are no reference, and are refused.

How far the reference is from the truth shows in how far the two halves of its chains are from each other.
"""

import json
import time
from pathlib import Path

import numpy as np
import pyro
import torch

from benchmarks.accuracy.networks.scores import agreement, total_variation
from benchmarks.accuracy.networks.small_network import (
    OUTSIDE,
    WIDTH,
    bayesian_network,
    digits,
    orthogonal_network,
    patterns,
    probabilities,
)
from benchmarks.image_classifier import posterior
from benchmarks.predictions import Predictions
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show
from pyro_manifold.infer import MCMC, OHMC

FILE = Path(__file__).with_name("reference_160_digits.npz")
ORTHOGONAL_FILE = FILE.with_name("reference_160_digits_orthogonal.npz")
LARGEST_R_HAT = 1.1  # of 95 % of the predictions
TRAJECTORY_LENGTH = 1.5  # about a quarter of the period of a site that only knows its prior
COMMAND = "python -m benchmarks.accuracy.networks.reference --data FOLDER"


def full_batch(network, data):
    """HMC with all of the data; masses are those of the prior, but for orthonormal matrices, whose mass is adapted."""
    return OHMC(
        posterior(network, data.images, data.labels),
        step_size=0.05,
        trajectory_length=TRAJECTORY_LENGTH,
        adapt_mass_matrix=network[0].__class__.__name__ == "OrthogonalLinear",
        init_strategy=pyro.infer.autoguide.init_to_sample,
    )


def long_chains(data, network, chains, draws, warmup):
    """`Predictions` of all asked images, and what the run was like."""
    predictions, kernel = Predictions(network, data.asked, statistic=probabilities), full_batch(network, data)
    started = time.process_time()
    MCMC(kernel, draws, warmup, num_chains=chains, save_params=[], consumers=[predictions], disable_progbar=True).run()
    return predictions, {
        "chains": chains, "draws": draws, "warmup": warmup, "step_size": kernel.step_size,
        "num_steps": kernel.num_steps, "acceptance": float(kernel.run.mean_acceptance),
        "seconds_of_one_core": time.process_time() - started,
    }  # fmt: skip


def disagreement(predictions):
    """Median, 95 % quantile and largest R-hat of each set of images."""
    found = {}
    for name, r_hat in zip(("tested", *OUTSIDE), predictions.r_hat.flatten(1), strict=True):
        found[name] = [float(r_hat.median()), float(r_hat.quantile(0.95)), float(r_hat.max())]
    return found


def between_halves(predictions):
    """Agreement and total variation between the tested images' predictions by two halves of the chains."""
    halves = [part.mean(0)[0] for part in predictions.chain_means.chunk(2)]
    return {"agreement": float(agreement(*halves)), "total_variation": float(total_variation(*halves))}


def save(path, predictions, about):
    """Keep the mean probabilities.

    Raises:
        RuntimeError: if chains disagree.
    """
    _, most, _ = about["r_hat"]["tested"]
    if not most < LARGEST_R_HAT:
        raise RuntimeError(
            f"Chains disagree: 95 % of the predictions have an R-hat up to {most:.3g}, expected less than "
            f"{LARGEST_R_HAT}: nothing is kept; take more --draws."
        )
    mean = predictions.mean.to(torch.float32).numpy()
    np.savez_compressed(path, probabilities=mean, about=np.array(json.dumps(about)))


def load(path=FILE):
    """Mean probabilities ``(3, tested, 10)``, and what is known about the run."""
    with np.load(path) as kept:
        return torch.tensor(kept["probabilities"]), json.loads(str(kept["about"]))


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of MNIST's four files"), chains=8, draws=2000, warmup=300, seed=0,
        orthogonal=switch("the network with an orthogonal hidden layer"),
        out=option(None, "where to keep it, beside this file if left out", type=Path),
        short=switch("generated images; --out is needed, short chains suffice"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    if arguments.data is None and not arguments.short:
        parser.error("--data is needed: the folder of MNIST's four files (or --short).")
    if arguments.short and arguments.out is None:
        parser.error("--short needs --out, for it must not take the place of the reference.")
    data, out = (patterns() if arguments.short else digits(arguments.data)), arguments.out
    if out is None:
        out = ORTHOGONAL_FILE if arguments.orthogonal else FILE
    pyro.set_rng_seed(arguments.seed)
    width = 4 if arguments.short else WIDTH
    counts = (arguments.chains, arguments.draws, arguments.warmup)
    network = orthogonal_network(width) if arguments.orthogonal else bayesian_network(width)
    predictions, about = long_chains(data, network, *counts)
    command = COMMAND + " --orthogonal" * arguments.orthogonal
    about |= {"command": command, "width": width, "seed": arguments.seed, "fingerprint": data.fingerprint}
    about |= {"torch": torch.__version__, "r_hat": disagreement(predictions), "halves": between_halves(predictions)}
    print(", ".join(f"{name} {value}" for name, value in about.items() if not isinstance(value, dict)), "\n")
    rows = ([name, *(f"{value:.4f}" for value in values)] for name, values in about["r_hat"].items())
    show(["R-hat of predictions", "median", "95 %", "largest"], rows)
    print("\nbetween two halves of the chains:", ", ".join(f"{name} {x:.4f}" for name, x in about["halves"].items()))
    save(out, predictions, about)


if __name__ == "__main__":
    main()
