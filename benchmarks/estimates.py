"""Estimates by draws, and their efficiency."""

import math
import warnings

import numpy as np

warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)


def summary(values):
    """Effective sizes, R-hat, and means with their standard errors, of ``{name: (chains, draws)}``."""
    import arviz

    sizes = effective_sizes(values)
    return {
        "ess_min": min(sizes),
        "ess_median": float(np.median(sizes)),
        "rhat": max(float(arviz.rhat(value)) for value in values.values()),
        "means": {name: mean_and_error(value) for name, value in values.items()},
    }


def effective_sizes(values, method="bulk"):
    """Effective sizes of each of ``{name: (chains, draws)}``, in order; of a single chain too."""
    from pyro_manifold.diagnostics import installed_arviz

    return [float(installed_arviz.effective_sizes(value, method)) for value in values.values()]


def mean_and_error(draws):
    """The mean of ``(chains, draws)`` and its standard error."""
    (size,) = effective_sizes({"": draws}, "mean")
    return [float(draws.mean()), float(draws.std() / math.sqrt(size))]


def worst_deviation(means, truths):
    """Largest distance of an estimate from the truth, in standard errors of both."""
    distances = [
        abs(means[name][0] - truth) / math.hypot(means[name][1], error) for name, (truth, error) in truths.items()
    ]
    return max(distances, default=float("nan"))


def ratios(rows, rate, ours):
    """Rates of rows to the best of the other packages; nan for a row that failed, and where no other has ended.

    Args:
        rows: dictionaries with ``peer``, and ``failed`` where there are no figures.
        rate: of a row that has not failed.
        ours: how names of our own rows begin.
    """
    rates = [float("nan") if "failed" in row else rate(row) for row in rows]
    others = [value for row, value in zip(rows, rates, strict=True) if not row["peer"].startswith(ours)]
    best = max((value for value in others if not math.isnan(value)), default=float("nan"))
    return [value / best for value in rates]
