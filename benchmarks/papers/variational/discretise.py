"""Continuous attributes to indicators: cuts by the minimum description length of Fayyad & Irani (IJCAI 1993).

An interval is cut where the labels' entropy falls most, and only if that gain pays for describing the cut; both halves
are then treated in the same way. An attribute with k levels becomes k − 1 indicators, as in Gelman et al. (2008).
"""

from dataclasses import dataclass

import numpy as np


def entropy(counts):
    """Entropy in bits of counts ``(..., classes)``."""
    shares = counts / np.maximum(counts.sum(-1, keepdims=True), 1)
    return -(shares * np.log2(np.where(shares > 0, shares, 1.0))).sum(-1)


def splits(classes):
    """Counts left and right of every cut of sorted one-hot classes, and the entropy that remains after it."""
    left = classes.cumsum(0)[:-1]
    right = classes.sum(0) - left
    return left, right, (left.sum(-1) * entropy(left) + right.sum(-1) * entropy(right)) / len(classes)


def pays(whole, left, right, remaining):
    """Fayyad & Irani's criterion: the gain exceeds the length of a message that tells the cut."""
    present = [(counts > 0).sum() for counts in (whole, left, right)]
    bits = [k * entropy(counts) for k, counts in zip(present, (whole, left, right), strict=True)]
    delta = np.log2(3.0 ** present[0] - 2) - (bits[0] - bits[1] - bits[2])
    n = whole.sum()
    return entropy(whole) - remaining > (np.log2(n - 1) + delta) / n


def cuts(values, labels):
    """Increasing cut points of one attribute, midway between neighbouring values; empty where none pays."""
    order = np.argsort(values, kind="stable")
    return _cuts(values[order], np.eye(labels.max() + 1)[labels[order]])


def _cuts(values, classes):
    changes = np.flatnonzero(np.diff(values) > 0)
    if not len(changes):
        return []
    left, right, remaining = splits(classes)
    k = changes[remaining[changes].argmin()]
    if not pays(classes.sum(0), left[k], right[k], remaining[k]):
        return []
    middle = (values[k] + values[k + 1]) / 2
    return [*_cuts(values[: k + 1], classes[: k + 1]), middle, *_cuts(values[k + 1 :], classes[k + 1 :])]


@dataclass(frozen=True)
class Discretiser:
    """Cuts of each attribute, and the level of each that has no indicator."""

    cuts: list[list[float]]
    baseline: list[int]

    @classmethod
    def fit(cls, attributes, labels, baseline="most frequent"):
        """Cuts chosen from these rows; the level without an indicator is the most frequent or the lowest."""
        if baseline not in ("most frequent", "lowest"):
            raise ValueError(f"baseline is 'most frequent' or 'lowest', not {baseline!r}.")
        points = [cuts(column, labels) for column in attributes.T]
        levels = [np.digitize(column, edges) for column, edges in zip(attributes.T, points, strict=True)]
        frequent = baseline == "most frequent"
        return cls(points, [int(np.bincount(level).argmax()) if frequent else 0 for level in levels])

    def __call__(self, attributes):
        """Indicators ``(rows, sum over attributes of levels − 1)``."""
        columns = [
            np.digitize(column, edges) == level
            for column, edges, without in zip(attributes.T, self.cuts, self.baseline, strict=True)
            for level in range(len(edges) + 1)
            if level != without
        ]
        return np.stack(columns, -1).astype(np.float64)
