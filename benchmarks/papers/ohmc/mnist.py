"""Digits by a Bayesian network with orthogonal or low-rank layers: a single draw, and an ensemble of twenty.

    python -m benchmarks.papers.ohmc.mnist --data FOLDER --paper [--network orthogonal] [--seeds 5] [--store FOLDER]
    python -m benchmarks.papers.ohmc.mnist --data FOLDER [--network orthogonal] [--seeds 3] [--device cuda]

``orthogonal`` is 784-300-300-10 with orthogonal hidden layers; ``orthogonal output`` has an orthogonal last layer too;
``low-rank`` 784-784,100-784,10-10, whose hidden layers are U diag(σ) Vᵀ with 100 and 10 singular values; ``bottleneck``
the same ranks as products of two plain matrices; ``plain`` 784-300-300-10. All with ReLU, normal priors on what is not
orthogonal, batches of 256, and OSGHMC.

``--paper`` is Table 4 of Yanush & Kropotov (arXiv 1901.08045): 50 epochs of descent (temperature 0), then 25,000 steps
with ε = 1.5e-4, the first 5,000 of which are burn-in and every 1,000th of the others a member, at temperature 1. Each
run is stored below ``--store`` and resumed by the same command. The paper leaves open the steps of the descent (here
1.2e-3, half a cosine to a twentieth), friction (0.1), priors (1/√fan-in, ``--output-scale`` times that in the output
layer) and its temperature. Hidden layers are orthonormal matrices times ``--gain``, √2 here and 1 in the paper. As ReLU
is positively homogeneous, another gain is another prior scale of the output layer and of the biases, unless the output
layer is orthogonal too. The descent is rounded up to 12,000 steps, 51 epochs. The paper has accuracies of 97.26 % after
the descent, 97.34 ± 0.08 (single) and 97.87 ± 0.08 % (ensemble).

Without it: 10 epochs of descent, then 20 cycles of an epoch with falling steps, a draw kept at the end of each.
The "ensemble" has the mean of the members' probabilities.
"""

import math
import time
from pathlib import Path

import pyro
import torch
from torch import nn

from benchmarks.arguments import check_held_out, count, natural, positive, without_effect
from benchmarks.image_classifier import posterior
from benchmarks.images import generated, mnist
from benchmarks.papers.ohmc.ensemble import Descended, Plan, accuracies, stored_members
from benchmarks.study import option, parser_of, set_up, switch
from benchmarks.tables import show
from pyro_manifold.infer import MCMC, OSGHMC
from pyro_manifold.nn import LowRankLinear, to_bayesian_

BATCH, DRAWS = 256, 20
GAIN = math.sqrt(2)  # of orthogonal layers; keeps the variance through ReLU


def hidden_layers(width):
    return [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]


def orthogonal(width, scale, gain):
    return to_bayesian_(nn.Sequential(*hidden_layers(width)), gain=gain, prior_scale=_of_the_output(scale))


def plain(width, scale, gain):
    return to_bayesian_(nn.Sequential(*hidden_layers(width)), (), prior_scale=_of_the_output(scale))


def low_rank(width, scale, gain):
    first, second = LowRankLinear(784, 784, width // 3), LowRankLinear(784, 784, 10)
    layers = [first, nn.ReLU(), second, nn.ReLU(), nn.Linear(784, 10)]
    return to_bayesian_(nn.Sequential(*layers), (), prior_scale=_of_the_output(scale))


def bottleneck(width, scale, gain):
    def product(rank):
        return nn.Sequential(nn.Linear(784, rank, bias=False), nn.Linear(rank, 784))

    layers = [product(width // 3), nn.ReLU(), product(10), nn.ReLU(), nn.Linear(784, 10)]
    return to_bayesian_(nn.Sequential(*layers), (), prior_scale=_of_the_output(scale))


def _of_the_output(scale):
    """Standard deviation of weights: 1/√fan-in, and in the output layer so many times that."""

    def prior_scale(name, parameter):
        if parameter.dim() < 2:
            return 1.0
        return (scale if len(parameter) == 10 else 1.0) / math.sqrt(parameter.shape[1])

    return prior_scale


def orthogonal_output(width, scale, gain):
    return to_bayesian_(nn.Sequential(*hidden_layers(width)), nn.Linear, gain=gain)


NETWORKS = {
    "orthogonal": orthogonal, "orthogonal output": orthogonal_output, "low-rank": low_rank, "bottleneck": bottleneck,
    "plain": plain,
}  # fmt: skip


def run(
    name, train, test, seed, *, width=300, descent=10, epochs_a_draw=1.0, step_size=1.2e-3, friction=0.1,
    temperature=1.0, output_scale=1.0, gain=GAIN,
):  # fmt: skip
    """``(after descent, last, mean of singles, ensemble, seconds)``; epochs of descent, then of each draw."""
    pyro.set_rng_seed(seed)
    network = NETWORKS[name](width, output_scale, gain).to(train[0].device)
    steps = max(1, round(epochs_a_draw * len(train[0]) / BATCH))
    first = round(descent * len(train[0]) / BATCH / steps) * steps

    def size(step):
        """Half a cosine over the descent, then one over each draw; never less than a twentieth.

        The descent begins with an epoch in which it grows: the gradients of a start are the largest, and one long step
        along them leaves no unit of a layer alive.
        """
        share = step / first if step < first else ((step - first) % steps) / steps
        growth = min(1.0, (step + 1) * BATCH / len(train[0]))
        return step_size * growth * max(0.05, 0.5 * (1 + math.cos(math.pi * share)))

    kernel = OSGHMC(
        posterior(network, *train, BATCH), step_size=size, friction=friction, num_steps=steps,
        temperature=lambda step: 0.0 if step < first else temperature,
        init_strategy=pyro.infer.autoguide.init_to_sample, integrator="euler",
    )  # fmt: skip
    last = {}

    def keep(iteration):
        if not iteration.kept:
            last.update({name: value.clone() for name, value in iteration.values.items()})

    started = time.perf_counter()
    mcmc = MCMC(kernel, DRAWS, first // steps, consumers=[keep], disable_progbar=True)
    mcmc.run()
    singles, ensemble = accuracies(network, mcmc.get_samples(), *test)
    seconds = time.perf_counter() - started
    return accuracies(network, last, *test)[1], singles[-1], sum(singles) / DRAWS, ensemble, seconds


def run_of_the_paper(name, train, test, seed, folder, *, width=300, output_scale=1.0, gain=GAIN, shorter=1):
    """``(after descent, mean of singles, ensemble, seconds)`` with the budget of Table 4, by ``shorter`` less."""
    pyro.set_rng_seed(seed)
    network = NETWORKS[name](width, output_scale, gain).to(train[0].device)
    descent = round(50 * len(train[0]) / BATCH / shorter)

    def rate(step):
        growth = min(1.0, (step + 1) * BATCH / len(train[0]))
        return 1.2e-3 * growth * max(0.05, 0.5 * (1 + math.cos(math.pi * min(1.0, step / descent))))

    plan = Plan(descent, rate, 5000 // shorter, DRAWS, 1000 // shorter, 1.5e-4)
    started = time.process_time()
    init = pyro.infer.autoguide.init_to_sample
    label = f"{name}-output-scale-{output_scale:g}-gain-{gain:.4g}-{seed}".replace(" ", "-")
    store = Path(folder) / label
    descended = Descended(Path(folder) / f"{label}.descended", plan, network, test)
    draws = stored_members(posterior(network, *train, BATCH), plan, store, init, consumers=[descended])
    members, ensemble = accuracies(network, draws, *test)
    return descended.accuracy, sum(members) / DRAWS, ensemble, time.process_time() - started


def _split(held_out):
    """Slices of the images to learn from, and of the last ones, held out."""
    return slice(None, -held_out), slice(-held_out, None)


def main(argv=None):
    parser = parser_of(
        __doc__, data=option(None, "folder of MNIST's four files"), network=option("orthogonal", choices=NETWORKS),
        seeds=option(3, type=count),
        first_seed=option(0, "of the runs of --paper, which may be divided", type=natural), device="cpu",
        step_size=option(None, "default: 1.2e-3, 5e-4 with factors of low rank", type=positive),
        friction=option(0.1, type=positive),
        descent=option(None, "epochs of descent; default: 10, 20 with factors of low rank", type=positive),
        epochs_a_draw=option(1.0, type=positive), temperature=option(1.0, "of the draws"),
        output_scale=option(1.0, "of the output layer's prior, by 1/√fan-in", type=positive),
        gain=option(GAIN, "of orthogonal layers; default: √2", type=positive),
        held_out=option(0, "so many training images as the test, to choose by", type=natural),
        paper=switch("the budget of Table 4, stored and resumed"),
        store=option("results/ohmc_mnist", "where the runs of --paper are stored"),
        small=switch("a small network and few generated images"), short=option(False, dest="small"),
    )  # fmt: skip
    arguments = parser.parse_args(argv)
    set_up(torch.get_default_dtype())
    if arguments.gain != GAIN and "orthogonal" not in arguments.network:
        parser.error(f"--gain is for networks with orthogonal layers, found --network {arguments.network}.")
    if arguments.output_scale != 1 and arguments.network == "orthogonal output":
        parser.error("--output-scale is for a free output layer, found --network 'orthogonal output'.")
    own = ("step_size", "friction", "descent", "epochs_a_draw", "temperature")
    if arguments.paper:
        without_effect(parser, arguments, own, "with --paper, whose budget is that of Table 4")
    else:
        without_effect(parser, arguments, ("first_seed", "store"), "without --paper")
    if arguments.small:
        without_effect(parser, arguments, ("step_size", "descent", "device"), "with --small")
    options = {name: getattr(arguments, name) for name in (*own, "output_scale", "gain")}
    narrow = arguments.network in ("low-rank", "bottleneck")
    defaults = {"descent": 20 if narrow else 10, "step_size": 5e-4 if narrow else 1.2e-3}
    options |= {name: value for name, value in defaults.items() if options[name] is None}
    if arguments.small:
        train, test = generated(600, 1), generated(200, 2)
        options |= {"width": 30, "step_size": 5e-3, "descent": 3}
    elif arguments.data is None:
        parser.error("--data is needed: the folder of MNIST's four files (or --small).")
    else:
        train, test = (mnist(arguments.data, part, arguments.device) for part in ("train", "test"))
    if arguments.held_out:
        check_held_out(parser, arguments.held_out, len(train[0]))
        train, test = ([t[chosen] for t in train] for chosen in _split(arguments.held_out))
    if arguments.paper:
        width, shorter = (30, 100) if arguments.small else (300, 1)
        options = {"output_scale": arguments.output_scale, "gain": arguments.gain, "width": width, "shorter": shorter}
        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        found = (run_of_the_paper(arguments.network, train, test, seed, arguments.store, **options) for seed in seeds)
        rows = ([seed, *(f"{figure:.2f}" for figure in figures)] for seed, figures in zip(seeds, found, strict=True))
        show(["seed", "after descent", "mean of members", f"ensemble of {DRAWS}", "CPU seconds"], rows)
        return
    rows = (
        [seed, *(f"{figure:.2f}" for figure in run(arguments.network, train, test, seed, **options))]
        for seed in range(arguments.seeds)
    )
    print(f"{arguments.network}, test accuracy in %, {options}\n")
    show(["seed", "after descent", "last draw", "mean of draws", f"ensemble of {DRAWS}", "seconds"], rows)


if __name__ == "__main__":
    main()
