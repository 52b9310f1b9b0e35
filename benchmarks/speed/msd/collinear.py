"""Effective draws a second where the posterior is long and thin along axes that are not the coordinates'.

    python -m benchmarks.speed.msd.collinear                                     both posteriors
    python -m benchmarks.speed.msd.collinear --posteriors 'collinear linear'     one of them
    python -m benchmarks.speed.msd.collinear --only MSD --limit 60               peers whose name contains MSD

Each peer runs in a process of its own, and its seconds are of the whole run: compiling, warm-up and draws.
"""

from functools import partial

import numpy as np

from benchmarks.estimates import ratios, summary, worst_deviation
from benchmarks.measure import Setting, measure_apart
from benchmarks.problems.coefficient_moments import truth_of
from benchmarks.problems.coefficients import POSTERIORS, collinear_posteriors
from benchmarks.study import option, read
from benchmarks.tables import formatted, table

OURS = "pyro_manifold"
CLOCKS = ("seconds", "cpu_seconds")

# Chosen by `benchmarks.speed.msd.pilot`.
EXACT = {"kernel": "MSD", "step_size": 0.6, "num_steps": 3, "persistence": 0.0, "metropolis": True}
EXACT |= {"adapt_step_size": False}
UNADJUSTED = {**EXACT, "step_size": 0.3, "num_steps": 5, "metropolis": False}


def msd_peers():
    for chains, draws in ((1, 500), (64, 150), (512, 30)):
        yield Setting(f"{OURS} MSD adjusted", OURS, chains, 20, draws, EXACT)
    yield Setting(f"{OURS} MSD unadjusted", OURS, 512, 20, 30, UNADJUSTED)


def other_peers():
    for chains, warmup, draws in ((4, 300, 1000), (64, 300, 200), (512, 200, 50)):
        yield Setting(f"{OURS} OHMC, full mass", OURS, chains, warmup, draws, {"kernel": "OHMC", "full_mass": True})
    yield Setting("Pyro NUTS, full mass", "Pyro NUTS", 1, 300, 500, {"full_mass": True})
    for dense in (False, True):
        name, options = f"NumPyro NUTS{', dense mass' if dense else ''}", {"dense_mass": dense}
        yield Setting(f"{name}, sequential", "NumPyro", 4, 500, 1000, options | {"chain_method": "sequential"})
        yield Setting(f"{name}, vectorised", "NumPyro", 64, 300, 200, options)


def functionals(w, truth):
    """Coordinates, and squares of projections on the longest and shortest principal axis, of ``(..., dimension)``."""
    variances, axes = truth.principal_axes()
    centred = w - truth.mean
    found = {f"w{i}": w[..., i] for i in range(w.shape[-1])}
    return found, {name: (centred @ axes[:, k]) ** 2 / variances[k] for name, k in (("longest", 0), ("shortest", -1))}


def truths_of(truth):
    """``{functional: (mean, standard error)}``; the squares are in units of their variances."""
    variances, axes = truth.principal_axes()
    known = {f"w{i}": pair for i, pair in enumerate(zip(truth.mean, truth.mean_error, strict=True))}
    for name, k in (("longest", 0), ("shortest", -1)):
        # Errors of entries of the covariance taken as independent; they are small beside the peers'.
        weights = np.outer(axes[:, k], axes[:, k])
        known[name] = (1.0, float(np.sqrt((weights**2 * truth.covariance_error**2).sum()) / variances[k]))
    return known


def run_peer(posterior, truth, peer, limit):
    """The figures of a row, or why there are none."""
    values, found = measure_apart(
        "benchmarks.problems.coefficients:POSTERIORS", posterior.name, peer, threads=1, limit=limit
    )
    row = {"peer": peer.name, "sizes": peer.sizes} | found
    return row if values is None else row | figures(np.stack(list(values.values()), -1), truth)


def figures(w, truth):
    """Figures of draws ``(chains, draws, dimension)``: sizes, R-hat, deviations and biases."""
    coordinates, squares = functionals(w, truth)
    of_coordinates, of_squares = summary(coordinates), summary(squares)
    means, known = of_coordinates["means"] | of_squares["means"], truths_of(truth)
    away = [(means[f"w{i}"][0] - truth.mean[i]) / truth.deviation[i] for i in range(w.shape[-1])]
    return {
        "ess_min": of_coordinates["ess_min"], "ess_median": of_coordinates["ess_median"],
        "ess_squares": of_squares["ess_min"], "rhat": max(of_coordinates["rhat"], of_squares["rhat"]),
        "z": worst_deviation(means, {name: known[name] for name in coordinates}),
        "z_squares": worst_deviation(means, {name: known[name] for name in squares}),
        "bias": float(np.abs(away).max()), "variances": [means[name][0] for name in squares],
    }  # fmt: skip


COLUMNS = (
    "peer", "chains × (warm-up + draws)", "seconds", "CPU s", "min ESS/s", "median ESS/s", "squares' ESS/s", "ratio",
    "ratio, CPU s", "R-hat", "worst z: means", "squares", "means' error / sd", "variance longest, shortest",
)  # fmt: skip


def rate(row, clock):
    """Smallest effective draws a second of either clock, of coordinates and squares."""
    return min(row["ess_min"], row["ess_squares"]) / row[clock]


def table_of(rows):
    """Ratios are of the smallest ESS a second, to the best of the other packages."""
    shares = zip(*(ratios(rows, partial(rate, clock=clock), OURS) for clock in CLOCKS), strict=True)
    return table(COLUMNS, [cells(row, share) for row, share in zip(rows, shares, strict=True)])


def cells(row, shares):
    if "failed" in row:
        return [row["peer"], row["sizes"], row["failed"]]
    times, rates = [row[clock] for clock in CLOCKS], [row[f"ess_{kind}"] for kind in ("min", "median", "squares")]
    figures = *times, *(size / row["seconds"] for size in rates), *shares
    quality = [row[key] for key in ("rhat", "z", "z_squares", "bias")]
    text = formatted(".1f .1f .1f .1f .1f .2f .2f .3f .1f .1f .3f", *figures, *quality)
    return [row["peer"], row["sizes"], *text, ", ".join(f"{ratio:.3f}" for ratio in row["variances"])]


def section(posterior, peers, limit):
    """A heading, the measured condition number, and the table."""
    truth = truth_of(posterior)
    rows = [run_peer(posterior, truth, peer, limit) for peer in peers]
    _, axes = truth.principal_axes()
    about = (
        f"{posterior.dimension} coefficients, {len(posterior.data)} cases; the covariance of the posterior has "
        f"condition number {truth.condition:.0f}; the largest weight of a coordinate on the longest and shortest "
        f"axis is {np.abs(axes[:, 0]).max():.2f} and {np.abs(axes[:, -1]).max():.2f}."
    )
    return f"\n### {posterior.name}\n\n{about}\n\n{table_of(rows)}"


def main(argv=None):
    arguments = read(
        __doc__, argv, only=option("", "part of the names of peers"),
        posteriors=[posterior.name for posterior in collinear_posteriors()],
        limit=option(200, "seconds for each peer"),
        draws=option(None, "of each chain, in place of each peer's number", type=int),
    )  # fmt: skip
    peers = [peer for peer in [*msd_peers(), *other_peers()] if arguments.only in peer.name]
    if arguments.draws:
        peers = [peer._replace(draws=arguments.draws) for peer in peers]
    for name in arguments.posteriors:
        print(section(POSTERIORS[name], peers, arguments.limit), flush=True)


if __name__ == "__main__":
    main()
