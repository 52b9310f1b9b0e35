"""Table 3 of the OHMC paper: effective sizes of SGHMC in the polar chart and of OSGHMC, with noise on the gradients.

    python -m benchmarks.papers.ohmc.noisy_matrix [--chains 10] [--steps 3] [--widths 3 --step-sizes 0.2] [--small]

The density is that of `benchmarks.papers.ohmc.mixture` with one mode and σ = 1, on V(2,2) and V(3,2). As in the paper
gradients have N(0, 0.1²) noise, fresh at each step, and chains begin at M₁ and have 50,000 iterations, the first 10,000
of which are burn-in; effective sizes are those of the last 30,000, least and median over the entries of Q and R. A row
has the mean and standard deviation over separate chains, which share the sequence of noise vectors of the gradient.

The paper leaves open the step size, friction, the number of steps of an iteration and M₁. Here momenta lose 0.1 of
themselves in a step, each kernel has the same three step sizes, and an iteration is one step with the momenta of the
one before; with ``--steps`` it is algorithm 2 as printed, so many steps with new momenta. Bias is the largest over the
means of the entries of QR and of their squares, of all chains, in standard deviations: a long step is not better only
because its draws are less correlated. Seconds are process time of 50,000 iterations of all chains together.
"""

import time
import warnings

import pyro
from torch.distributions import biject_to

from benchmarks.arguments import count, positive
from benchmarks.papers.ohmc.mixture import Matrices, sizes_of_each_chain, worst_deviation
from benchmarks.study import option, read, switch
from benchmarks.tables import show, with_deviation
from problems.noisy_gradients import gradient_noise
from pyro_manifold import constraints
from pyro_manifold.infer import MCMC, OSGHMC, SGHMC
from pyro_manifold.infer.mcmc.transitions import NotFiniteError

SIGMA, NOISE, FRICTION = 1.0, 0.1, 0.1
BURN_IN, DRAWS, COUNTED = 10_000, 40_000, 30_000
WIDTHS, STEP_SIZES = (2, 3), (0.05, 0.1, 0.2)
CHART = {"transforms": {"Q": biject_to(constraints.stiefel).inv}}
KERNELS = {"SGHMC, polar chart": (SGHMC, CHART), "OSGHMC": (OSGHMC, {})}
PAPER = {"SGHMC, polar chart": "3.0 / 6.1", "OSGHMC": "71.7 / 81.2"}
COLUMNS = ("matrices", "kernel", "ε", "least ESS", "median ESS", "paper", "largest bias", "seconds")


def noisy(matrices, noise):
    """The model with noise on the gradients."""

    def model():
        for name, value in zip(("Q", "v"), matrices.model(), strict=True):
            gradient_noise(name, value, noise)

    return model


def run(matrices, name, step_size, *, chains, burn_in, draws, noise=NOISE, integrator="euler", steps=None):
    """Draws, ``{site: (chains, draws, ...)}``, or None where a chain became NaN or infinite; seconds."""
    pyro.set_rng_seed(0)
    form, options = KERNELS[name]
    if steps is not None:
        options = options | {"num_steps": steps, "resample_momentum": True}
    kernel = form(
        noisy(matrices, noise), step_size=step_size, friction=FRICTION, integrator=integrator,
        minibatches="independent", init_strategy=matrices.start, **options,
    )  # fmt: skip
    mcmc = MCMC(kernel, draws, burn_in, num_chains=chains, disable_progbar=True)
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*became NaN or infinite")
            mcmc.run()
    except NotFiniteError:
        return None, None
    samples = {site: value.numpy() for site, value in mcmc.get_samples(group_by_chain=True).items()}
    whole = samples["Q"].shape[1] == draws
    return samples if whole else None, time.process_time() - started


def row(n, name, step_size, counted, **options):
    matrices = Matrices(n, SIGMA, single=True)
    draws, seconds = run(matrices, name, step_size, **options)
    if draws is None:
        return [f"V({n},2)", name, step_size, "became NaN or infinite"]
    least, median = sizes_of_each_chain({k: x[:, -counted:] for k, x in matrices.coordinates(draws).items()})
    _, bias = worst_deviation(matrices, draws)
    sizes = with_deviation(least), with_deviation(median), PAPER[name]
    return [f"V({n},2)", name, step_size, *sizes, f"{bias:.3f}", f"{seconds:.0f}"]


def main(argv=None):
    arguments = read(
        __doc__, argv, chains=option(10, "separate runs", type=count),
        widths=option(list(WIDTHS), "n of V(n,2)", choices=WIDTHS), step_sizes=option(list(STEP_SIZES), type=positive),
        integrator=option("euler", choices=("euler", "splitting")),
        steps=option(None, "of an iteration that begins with new momenta", type=count),
        small=switch("V(2,2), one step size and few draws"),
    )  # fmt: skip
    widths, step_sizes, counted = arguments.widths, arguments.step_sizes, COUNTED
    sizes = {"chains": arguments.chains, "burn_in": BURN_IN, "draws": DRAWS}
    if arguments.small:
        widths, step_sizes, counted, sizes = (2,), step_sizes[:1], 40, {"chains": 2, "burn_in": 10, "draws": 60}
    warnings.filterwarnings("ignore", message="The momenta of chains are at a temperature")
    options = sizes | {"integrator": arguments.integrator, "steps": arguments.steps}
    show(COLUMNS, (row(n, name, step, counted, **options) for n in widths for step in step_sizes for name in KERNELS))


if __name__ == "__main__":
    main()
