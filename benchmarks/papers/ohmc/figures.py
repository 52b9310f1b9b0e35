"""Figures 1 and 2 of the OHMC paper: draws over the exact density of factors of a matrix mixture.

    python -m benchmarks.papers.ohmc.figures [--folder docs/images] [--small]

As in the paper on V(2,2): chains begin at M₁, every tenth draw after 10,000 iterations is a dot, and lines are the
density of factors of exact draws. Figure 1 has the 16 modes with σ = 0.3 by OHMC (20,000 iterations, ε = 0.1), Figure 2
the single normal with σ = 1 by OHMC and by OSGHMC with N(0, 0.1²) noise on gradients (50,000 steps, ε = 0.1). Which
pairs of coordinates the paper shows is not stated; here they are two of R and one of each factor. The share of draws
that are nearest to each of the 16 modes is printed, 0.0625 for exact ones.
"""

from pathlib import Path

import numpy as np
import pyro

from benchmarks.papers.ohmc import noisy_matrix, paper_tables
from benchmarks.papers.ohmc.mixture import Matrices
from benchmarks.pictures import pyplot
from benchmarks.study import option, parser_of, set_up, switch
from pyro_manifold.infer import MCMC, OHMC

plt = pyplot()

STEP_SIZE, EVERY, BINS = 0.1, 10, 80
PAIRS = (("R[0,1]", "R[1,1]"), ("Q[0,0]", "R[0,0]"))
LABELS = {"R[0,0]": "$r_{11}$", "R[0,1]": "$r_{12}$", "R[1,1]": "$r_{22}$", "Q[0,0]": "$q_{11}$"}
COLOURS = {"OHMC": "#D55E00", "OSGHMC": "#E69F00"}


def panel(axes, matrices, pair, draws, name, exact_draws):
    """Contours of the exact density, and draws."""
    exact = np.random.default_rng(0)
    Q, v = matrices.factors(matrices.exact(exact, exact_draws))
    truth = matrices.coordinates({"Q": Q, "v": v})
    found = matrices.coordinates(draws)
    x, y = (found[coordinate][0, ::EVERY] for coordinate in pair)
    axes.scatter(x, y, s=3, color=COLOURS[name], alpha=0.5, lw=0, label=name)
    limits = [np.quantile(truth[coordinate], (0.001, 0.999)) for coordinate in pair]
    density, *edges = np.histogram2d(*(truth[coordinate] for coordinate in pair), bins=BINS, range=limits)
    centres = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    axes.contour(
        *centres, density.T, levels=np.geomspace(0.03, 0.8, 6) * density.max(), colors="#0072B2", linewidths=0.7
    )
    axes.set(xlabel=LABELS[pair[0]], ylabel=LABELS[pair[1]], title=name)


def shares_of_modes(matrices, draws):
    """Share of the draws whose QR is nearest to each mode, ``(modes,)``, in counting order of the entries 1 and 2."""
    entries = matrices.product(draws["Q"], draws["v"], np) > 1.5
    places = entries.reshape(-1, 2 * matrices.n) @ (1 << np.arange(2 * matrices.n)[::-1])
    return np.bincount(places, minlength=4**matrices.n) / len(places)


def single_mode(matrices, burn_in, draws):
    """OHMC's draws of the single normal."""
    pyro.set_rng_seed(0)
    kernel = OHMC(
        matrices.model, init_strategy=matrices.start, reflection_probability=0.0, step_size=STEP_SIZE, num_steps=10,
        adapt_step_size=False, adapt_mass_matrix=False,
    )  # fmt: skip
    mcmc = MCMC(kernel, draws, burn_in, disable_progbar=True)
    mcmc.run()
    return {site: value.numpy() for site, value in mcmc.get_samples(group_by_chain=True).items()}


def save(rows, path, exact_draws):
    """A row of panels for each of ``(matrices, name, draws)``."""
    fig, axes = plt.subplots(len(rows), len(PAIRS), figsize=(8, 3.6 * len(rows)), squeeze=False)
    for line, (matrices, name, draws) in zip(axes, rows, strict=True):
        for each, pair in zip(line, PAIRS, strict=True):
            panel(each, matrices, pair, draws, name, exact_draws)
    fig.tight_layout()
    fig.savefig(path, dpi=110)


def main(argv=None):
    parser = parser_of(__doc__, folder=option(Path("docs/images"), type=Path), small=switch("few draws"))
    arguments = parser.parse_args(argv)
    if not arguments.folder.is_dir():
        parser.error(f"--folder {arguments.folder}: expected a folder that exists.")
    set_up()
    burn_in, draws, steps, exact = (10, 50, 50, 2000) if arguments.small else (10_000, 10_000, 40_000, 2_000_000)
    sixteen, one = Matrices(2, paper_tables.SIGMA), Matrices(2, noisy_matrix.SIGMA, single=True)
    found, _ = paper_tables.run(2, "OHMC", STEP_SIZE, chains=1, burn_in=burn_in, draws=draws)
    save([(sixteen, "OHMC", found)], arguments.folder / "ohmc_figure_1.png", exact)
    print("Shares of the modes of Figure 1:", *(f"{share:.3f}" for share in shares_of_modes(sixteen, found)))
    noisy, _ = noisy_matrix.run(one, "OSGHMC", STEP_SIZE, chains=1, burn_in=burn_in, draws=steps)
    rows = [(one, "OHMC", single_mode(one, burn_in, steps)), (one, "OSGHMC", noisy)]
    save(rows, arguments.folder / "ohmc_figure_2.png", exact)


if __name__ == "__main__":
    main()
