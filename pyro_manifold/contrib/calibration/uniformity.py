"""Tests of uniformity of ranks, of one quantity and of several quantities together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BINS = 20
NUMBERS_OF_DRAWS = (99, 79, 59, 39, 19, 9)
"""Numbers of draws among which ranks are taken; with the true value they are multiples of the number of bins."""

_TOLERANCE = 0.1  # of the standard error of the variance of ranks
_AT_ONCE = 2**23


@dataclass(frozen=True)
class Uniformity:
    """Test of uniformity by the counts of ranks in equal bins, for independent data sets.

    Cumulative counts of the first 1, 2, … bins are binomial. The statistic is the smallest two-sided binomial tail
    probability over them, attained where the empirical distribution function leaves the diagonal. Its null distribution
    is exact, since cumulative counts are a Markov chain. (Säilynoja, Bürkner & Vehtari, Statistics and Computing 2022,
    who also find it by simulation.)

    Args:
        data_sets: number of data sets.
        bins: number of bins.
    """

    data_sets: int
    bins: int = BINS
    _edges: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_edges", np.arange(1, self.bins) / self.bins)

    def statistic(self, ranks: Any, draws: int) -> float:
        """Return the statistic of ranks ``(data sets,)`` on 0, …, draws; draws + 1 is a multiple of the bins."""
        counts = np.bincount(np.asarray(ranks) * self.bins // (draws + 1), minlength=self.bins).cumsum()[:-1]
        return float(self.tails()[np.arange(self.bins - 1), counts].min())

    def tails(self) -> Array:
        """Return the two-sided tail probability of each cumulative count, ``(bins - 1, data sets + 1)``."""
        from scipy.stats import binom

        counts, edges = np.arange(self.data_sets + 1), self._edges[:, None]
        below = binom.cdf(counts, self.data_sets, edges)
        above = binom.sf(counts - 1, self.data_sets, edges)
        return 2 * np.minimum(below, above)

    def band(self, statistic: float) -> tuple[Array, Array]:
        """Return the least and the largest cumulative counts with a larger tail probability than ``statistic``."""
        from scipy.stats import binom

        counts = np.arange(self.data_sets + 1)[:, None]
        below = 2 * binom.cdf(counts, self.data_sets, self._edges) > statistic
        above = 2 * binom.sf(counts - 1, self.data_sets, self._edges) > statistic
        return below.argmax(0), self.data_sets - above[::-1].argmax(0)

    def p_value(self, statistic: float) -> float:
        """Return the probability of a statistic as small as this one."""
        from scipy.stats import binom

        low, high = self.band(statistic * (1 + 1e-9))
        if (low > high).any():
            return 1.0
        reached, probability = np.zeros(1, dtype=int), np.ones(1)
        for edge in range(self.bins - 1):
            counts = np.arange(low[edge], high[edge] + 1)
            # Each data set above the last edge is in the next bin with this probability.
            share = 1 / (self.bins - edge)
            added = counts[None, :] - reached[:, None]
            steps = binom.pmf(added, self.data_sets - reached[:, None], share)
            reached, probability = counts, probability @ steps
        return float(min(max(1 - probability.sum(), 0.0), 1.0))

    def threshold(self, level: float) -> float:
        """Return the largest statistic with at most this p-value."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_value(middle) <= level else (low, middle)
        return low

    def smallest_at_random(self, ranks: Array, draws: int, count: int, random: np.random.Generator) -> Array:
        """Simulate the null distribution of the smallest statistic over dependent quantities.

        If draws are independent and from the right posterior, the true value and the draws of a data set are
        exchangeable. In each simulation one of these points, chosen at random in each data set, takes the place of the
        true value, for all quantities together.

        Args:
            ranks: rank of each point among the points of its data set, ``(data sets, draws + 1, quantities)``.
            draws: number of draws.
            count: number of simulations.
            random: generator of the choices.

        Returns:
            The smallest statistics, ``(count,)``.
        """
        data_sets, points, quantities = ranks.shape
        bins = (ranks * self.bins // (draws + 1)).astype(np.int64)
        tails, edges = self.tails(), np.arange(self.bins - 1)[:, None]
        offsets = self.bins * np.arange(quantities)
        together = max(1, _AT_ONCE // (data_sets * quantities))
        found = []
        for first in range(0, count, together):
            number = min(together, count - first)
            chosen = random.integers(points, size=(number, data_sets))
            places = (
                bins[np.arange(data_sets), chosen] + offsets + self.bins * quantities * np.arange(number)[:, None, None]
            )
            counts = np.bincount(places.ravel(), minlength=number * quantities * self.bins)
            cumulative = counts.reshape(number * quantities, self.bins).cumsum(1)[:, :-1]
            found.append(tails[edges, cumulative.T].min(0).reshape(number, quantities).min(1))
        return np.concatenate(found)


def ranks_of_points(values: Array, random: np.random.Generator) -> Array:
    """Return the rank of each point among the points of its data set, from 0; ties are broken at random.

    Args:
        values: ``(data sets, points, quantities)``, the true value and the draws.
        random: generator that breaks ties.

    Examples:
        >>> values = np.array([2.0, 1.0, 3.0]).reshape(1, 3, 1)
        >>> ranks_of_points(values, np.random.default_rng(0)).ravel().tolist()
        [1, 0, 2]
    """
    order = np.lexsort((random.random(values.shape), values), axis=1)
    ranks = np.empty(values.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, np.arange(values.shape[1])[None, :, None], axis=1)
    return ranks


def number_of_draws(values: Array) -> tuple[int, float, bool]:
    r"""Return the number of draws, out of those that there are, that are nearly independent.

    An autocorrelation of ρ between successive draws increases the variance of ranks by a fraction of about
    $4\rho / ((1 - \rho) L)$. This is the largest of 99, 79, 59, 39, 19 and 9 equally spaced draws for which this
    fraction is at most a tenth of the standard error of the variance of uniform ranks. ρ is that of the ranks of draws,
    the largest over quantities, less two standard errors.

    Args:
        values: draws, ``(data sets, draws, quantities)``.

    Returns:
        The number of draws L, 9 if there is none, ρ at this number, and whether it is that small.
    """
    data_sets, most, _ = values.shape
    tolerance = _TOLERANCE * (0.8 / data_sets) ** 0.5
    rho = 0.0
    for draws in NUMBERS_OF_DRAWS:
        if draws > most:
            continue
        rho = autocorrelation(values[:, spaced(most, draws)])
        if 4 * rho / ((1 - rho) * draws) <= tolerance:
            return draws, rho, True
    return NUMBERS_OF_DRAWS[-1], rho, False


def spaced(most: int, draws: int) -> Array:
    """Return the places of equally spaced draws, out of 0, …, most - 1; the last one is among them."""
    return np.arange(1, draws + 1) * most // draws - 1


def autocorrelation(values: Array) -> float:
    """Return the largest lag-one autocorrelation over quantities, of ranks of draws, less two standard errors.

    Args:
        values: draws, ``(data sets, draws, quantities)``.

    Returns:
        A number from 0, and below 1.
    """
    data_sets, draws, _ = values.shape
    centred = values.argsort(1, kind="stable").argsort(1) - (draws - 1) / 2
    constant = values.max(1, keepdims=True) == values.min(1, keepdims=True)  # in a data set
    centred = np.where(constant, 0.0, centred)
    spread = np.square(centred).sum((0, 1))
    products = (centred[:, 1:] * centred[:, :-1]).sum((0, 1))
    # The mean of a data set is its own, which makes the estimate too small by about 1 / draws.
    found = products / np.where(spread > 0, spread, 1) * draws / (draws - 1) + np.where(spread > 0, 1 / draws, 0)
    return float(np.clip(found.max(initial=0.0) - 2 / (data_sets * draws) ** 0.5, 0.0, 0.999))
