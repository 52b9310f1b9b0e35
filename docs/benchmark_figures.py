"""Draw the pictures of the pages of benchmarks from the tables of these pages.

python docs/benchmark_figures.py [--folder docs/images]
"""

import argparse
import sys
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # tests are not installed

from tests.docs.derived_sentences import (
    COMPILED,
    KERNELS,
    OPTIMISERS,
    RATES,
    WHOLE,
    against,
    choices,
    four_chains,
    many_chains,
    of_package,
)
from tests.docs.tables import anchor, headings, number, rows

NETWORKS = "docs/benchmarks/networks.md"
STYLES = (("o", "#0072B2"), ("s", "#D55E00"), ("^", "#009E73"))


def draw(labels, series, xlabel, reference=None, scale="log"):
    """A row of points for each label; ``series`` has, by name, a number or several for each label, or None."""
    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.24 * len(labels)))
    for (name, values), (marker, colour) in zip(series.items(), STYLES, strict=False):
        points = [(x, row) for row, found in enumerate(values) for x in (found if isinstance(found, list) else [found])]
        x, y = zip(*[(x, y) for x, y in points if x is not None], strict=True)
        axes.plot(x, y, marker, color=colour, label=name, alpha=0.8)
    if reference is not None:
        axes.axvline(reference, color="0.6", linewidth=1, zorder=0)
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel=xlabel, xscale=scale, ylim=(len(labels) - 0.5, -0.5))
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(series))
    return figure


def rates():
    anchors = [*four_chains(), *many_chains()]
    titles = {anchor(heading): heading for heading in headings(RATES)}
    whole, compiled = zip(*(against("NumPyro", each) for each in anchors), strict=True)
    series = {"whole run": whole, "without compiling": compiled}
    return draw([titles[each] for each in anchors], series, "rate of OHMC / best of NumPyro", reference=1)


def published():
    def ratios(tables, package):
        return [number(row["ours / theirs"]) for row in of_package(tables, package)]

    models = [row["model"] for row in of_package(WHOLE, "NumPyro")]
    figure, both = plt.subplots(1, 2, figsize=(9, 4.2), sharex=True, sharey=True)
    for axes, (title, tables) in zip(both, {"whole runs": WHOLE, "without compiling": COMPILED}.items(), strict=True):
        for package, (marker, colour) in zip(("NumPyro", "nutpie"), STYLES, strict=False):
            axes.plot(ratios(tables, package), range(len(models)), marker, color=colour, label=package, alpha=0.8)
        axes.axvline(1, color="0.6", linewidth=1, zorder=0)
        axes.set(title=title, xscale="log", xlabel="our rate / theirs", ylim=(len(models) - 0.5, -0.5))
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_yticks(range(len(models)), models)
    figure.legend(*both[0].get_legend_handles_labels(), frameon=False, loc="upper left", ncols=2)
    return figure


def kernels():
    found = rows(KERNELS, "an-iteration-of-every-kernel")
    labels = [f"{row['kernel']}, {row['steps']} step{'s' * (row['steps'] != '1')}" for row in found]
    columns = {"without native code": "without µs", "native": "native µs"}
    series = {name: [number(row[column]) for row in found] for name, column in columns.items()}
    return draw(labels, series, "processor time of an iteration, µs")


def optimisers():
    times = {}
    for row in rows(OPTIMISERS):
        package, method = row["method"].rsplit(", ", 1)
        times.setdefault(f"{row['problem']}, {method}", {})[package] = number(row["ms to tolerance"])
    packages = next(iter(times.values()))
    series = {package: [found[package] for found in times.values()] for package in packages}
    figure = draw(list(times), series, "milliseconds to the tolerance", scale="linear")
    figure.axes[0].set_xlim(left=0)
    return figure


def lengths():
    shares = {}
    for row in choices():
        shares.setdefault(row["posterior"], {})[row["chains"]] = list(map(float, row["of the best"].split()))
    middle = {name: median(x for of_chains in found.values() for x in of_chains) for name, found in shares.items()}
    shares = {name: shares[name] for name in sorted(shares, key=middle.get)}
    names = {"1": "one chain", "4": "four chains", "16": "16 chains"}
    series = {name: [found.get(chains, []) for found in shares.values()] for chains, name in names.items()}
    return draw(list(shares), series, "rate at the chosen length / at the best", reference=1, scale="linear")


def networks():
    found = [row for row in rows(NETWORKS, "784-20-10-by-total-variation-from-the-reference") if "way" in row]
    labels = [", ".join(filter(None, (row["way"], row["step size"]))) for row in found]
    labels[0] = f"{labels[0]}: between its halves"
    values = {"": [number(row["total variation"]) for row in found]}
    return draw(labels, values, "total variation from the reference")


PICTURES = (rates, published, kernels, optimisers, lengths, networks)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args(argv).folder
    for picture in PICTURES:
        figure = picture()
        figure.tight_layout()
        figure.savefig(folder / f"benchmark_{picture.__name__}.png", dpi=110)
        plt.close(figure)


if __name__ == "__main__":
    main()
