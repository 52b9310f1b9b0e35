"""Result of simulation-based calibration: ranks of true values among draws, and the test of their uniformity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from pyro_manifold.contrib.calibration.plot import draw_ranks
from pyro_manifold.contrib.calibration.uniformity import (
    BINS,
    Array,
    Uniformity,
    number_of_draws,
    ranks_of_points,
    spaced,
)

_SIMULATIONS = 2000
_CLEAR = 3.0  # standard errors from which the table describes a deviation
_MOST_ROWS = 20
_SMALLEST = 1e-12  # from which rounding errors of p-values matter


class Calibration:
    r"""Ranks of true values among posterior draws, and the test of their uniformity.

    Let $N_k$ of the N ranks of a quantity be in the first k of K equal bins. The statistic of the quantity is the
    smallest two-sided binomial tail probability,

    $$
    \gamma = 2 \min_{0 < k < K} \min\{F_k(N_k),\; 1 - F_k(N_k - 1)\}, \quad
    F_k \text{ the distribution function of } \mathrm{Binomial}(N, k / K).
    $$

    Its distribution is exact for one quantity. ``p_value`` is that of the smallest γ over all quantities, whose null
    distribution is simulated. `pyro_manifold.infer.calibrate` makes this object.

    Args:
        values: ``{quantity: (data sets, 1 + draws)}``, the true value first, of the data sets with finite fits.
        numbers: number of each of these data sets.
        data_sets: number of all data sets.
        level: probability of an alarm if model and sampler are right.
        failures: ``{data set: reason}``, of data sets without ranks, and of fits with divergences or stuck chains.

    Attributes:
        num_datasets: number of simulated data sets, with those whose fit failed.
        draws: number of draws among which ranks are taken.
        autocorrelation: a lower bound of that of these draws, the largest over quantities.
        level: the argument.
        ranks: `pandas.DataFrame` of ranks from 0 to ``draws``, a row for each data set and a column for each quantity.
        p_values: `pandas.Series` of the p-value of each quantity alone.
        p_value: p-value of all quantities together.
        failures: `pandas.DataFrame` with ``ranked``, whether the data set has ranks, and ``reason``, a row for each
            data set whose fit failed, diverged or had chains that hardly moved.

    Source: Säilynoja, Bürkner & Vehtari, Statistics and Computing 2022.

    Examples:
        >>> points = np.random.default_rng(0).standard_normal((50, 20))
        >>> result = Calibration({"m": points}, range(50), 50, 0.01, {})
        >>> result.alarm, result.draws, result.ranks.shape
        (False, 19, (50, 1))
    """

    def __init__(
        self,
        values: Mapping[str, Array],
        numbers: Sequence[int],
        data_sets: int,
        level: float,
        failures: Mapping[int, str],
    ) -> None:
        from pandas import DataFrame, Series

        stacked = np.stack(list(values.values()), 2)
        # Constants, such as zeros of a triangular matrix, have no ranks.
        varying = (stacked.max(1) != stacked.min(1)).any(0)
        names = [name for name, varies in zip(values, varying, strict=True) if varies]
        truth, draws = stacked[:, :1, varying], stacked[:, 1:, varying]
        self.num_datasets, self.level = data_sets, level
        self.draws, self.autocorrelation, self._thinned = number_of_draws(draws)
        draws = draws[:, spaced(draws.shape[1], self.draws)]
        random = np.random.default_rng(0)  # of ties and of the null distribution, the same for the same fits
        ranks = ranks_of_points(np.concatenate([truth, draws], 1), random)
        self.ranks = DataFrame(ranks[:, 0], index=list(numbers), columns=names)
        self._uniformity = Uniformity(len(ranks), min(BINS, self.draws + 1))
        statistics = [self._uniformity.statistic(ranks[:, 0, k], self.draws) for k in range(len(names))]
        self.p_values = Series([self._uniformity.p_value(x) for x in statistics], index=names)
        self._at_random = self._uniformity.smallest_at_random(ranks, self.draws, _SIMULATIONS, random)
        reached = int((self._at_random <= min(statistics) * (1 + 1e-9)).sum())
        # Bonferroni's upper bound, which is the better estimate far in the tail, where simulations are too few.
        self.p_value = min((1 + reached) / (1 + _SIMULATIONS), len(names) * float(self.p_values.min()))
        ranked = {number: number in set(numbers) for number in failures}
        self.failures = DataFrame({"ranked": ranked, "reason": dict(failures)})
        self.failures["ranked"] = self.failures["ranked"].astype(bool)

    @cached_property
    def _threshold(self) -> float:
        """Tail probability at which a quantity leaves the band."""
        alarms = int(self.level * (1 + _SIMULATIONS)) - 1  # with so many smaller simulated statistics
        simulated = float(np.sort(self._at_random)[alarms]) * (1 - 1e-9) if alarms >= 0 else 0.0
        return max(simulated, self._uniformity.threshold(self.level / self.ranks.shape[1]))

    @property
    def alarm(self) -> bool:
        """True if ``p_value`` is at most ``level``."""
        return self.p_value <= self.level

    def __repr__(self) -> str:
        verdict = "NOT uniform" if self.alarm else "no evidence against uniform"
        count = f"{self.num_datasets} data sets, {self._quantities()}, {self.draws} draws"
        return f"<Calibration: {verdict} ranks, {_shown(self.p_value)}; {count}{self._failed()}>"

    def _quantities(self) -> str:
        count = self.ranks.shape[1]
        return "1 quantity" if count == 1 else f"{count} quantities"

    def _failed(self) -> str:
        failed, others = int((~self.failures.ranked).sum()), int(self.failures.ranked.sum())
        parts = [f"{failed} without ranks"] * bool(failed) + [f"{others} with poor sampling"] * bool(others)
        return "".join(f", {part}" for part in parts)

    def table(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each quantity.

        Columns are the p-value of the quantity alone; the mean of ranks / draws, which is 0.5 if the posterior is
        right, and the standard deviation of ranks relative to that of uniform ranks, both with standard errors; and a
        description of deviations by more than 3 of them. A shift alone increases the spread too, so "too narrow" is
        left out if the shift is clearer.
        """
        from pandas import DataFrame

        shares = (self.ranks + 0.5) / (self.draws + 1)
        count, uniform = len(shares), ((1 - 1 / (self.draws + 1) ** 2) / 12) ** 0.5
        mean, spread = shares.mean(), ((shares - 0.5) ** 2).mean() ** 0.5 / uniform
        errors = {"mean_error": uniform / count**0.5, "spread_error": (0.2 / count) ** 0.5}
        found = DataFrame({"p": self.p_values, "mean": mean, "spread": spread}).assign(**errors)
        order = ["p", "mean", "mean_error", "spread", "spread_error"]
        shifts = (found["mean"] - 0.5) / found.mean_error
        widths = (found.spread - 1) / found.spread_error
        return found[order].assign(
            draws=[_described(shift, width) for shift, width in zip(shifts, widths, strict=True)]
        )

    def summary(self) -> None:
        """Print the verdict, a table of the quantities with the smallest p-values, and the failures."""
        verdict = (
            f"Ranks are not uniform: {_shown(self.p_value)} for {self._quantities()} together"
            if self.alarm
            else f"No evidence against uniform ranks: {_shown(self.p_value)} for {self._quantities()}"
        )
        print(f"{verdict}, {len(self.ranks)} data sets, ranks among {self.draws} draws.")
        print(f"If model and sampler are right, p is at most {self.level:g} in {self.level:.0%} of studies.")
        table = self.table().sort_values("p", kind="stable")
        hidden = len(table) - _MOST_ROWS
        print(table.head(_MOST_ROWS).to_string(float_format="{:.3g}".format))
        if hidden > 0:
            print(f"and {hidden} more with larger p")
        for line in self._lines():
            print(line)

    def _lines(self) -> list[str]:
        lines = []
        for ranked, what in ((False, "fits have no ranks"), (True, "fits have ranks, but sampled poorly")):
            reasons = Counter(self.failures.reason[self.failures.ranked == ranked])
            if reasons:
                shown = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
                lines.append(f"{reasons.total()} of {self.num_datasets} {what} ({shown}).")
        if not self._thinned:
            lines.append(
                f"Successive draws have an autocorrelation of at least {self.autocorrelation:.2f} even after thinning "
                f"to {self.draws}, so that ranks of a right model are not exactly uniform: increase num_samples."
            )
        return lines

    def plot(self, quantities: Sequence[str] | None = None, ax: Any = None) -> Any:
        """Plot the empirical distribution function of ranks minus the diagonal, a line for each quantity.

        All lines of all quantities are within the band with probability 1 - ``level`` if model and sampler are right.
        Lines that leave it have colours and labels. A line above the diagonal at the left end and below it at the right
        end has too many extreme ranks: draws are too narrow.

        Args:
            quantities: names of the quantities to draw and to label; all if None, with labels of those with the
                smallest p-values.
            ax: axes to draw on; None makes new ones.

        Returns:
            The matplotlib axes.

        Raises:
            ImportError: without matplotlib.
            ValueError: for names of other quantities.
        """
        names = list(self.ranks.columns) if quantities is None else quantities
        unknown = [name for name in names if name not in self.ranks.columns]
        if isinstance(names, str) or unknown:
            raise ValueError(f"Calibration.plot: quantities is {quantities!r}, expected a list of some of its columns.")
        count, bins = len(self.ranks), self._uniformity.bins
        shares = {
            name: np.bincount(self.ranks[name] * bins // (self.draws + 1), minlength=bins).cumsum()[:-1] / count
            for name in names
        }
        band = [counts / count for counts in self._uniformity.band(self._threshold)]
        labelled = names if quantities is not None else list(self.p_values.sort_values(kind="stable").index)
        return draw_ranks(shares, (band[0], band[1]), labelled, ax)


def _shown(p: float) -> str:
    return f"p = {p:.2g}" if p >= _SMALLEST else f"p < {_SMALLEST:.0e}"


def _described(shift: float, width: float) -> str:
    found = ["too low" if shift > 0 else "too high"] * (abs(shift) > _CLEAR)
    found += ["too wide"] * (width < -_CLEAR)
    # A shift alone increases the deviation from 0.5, in fewer standard errors than its own.
    found += ["too narrow"] * (width > max(_CLEAR, abs(shift)))
    return ", ".join(found)
