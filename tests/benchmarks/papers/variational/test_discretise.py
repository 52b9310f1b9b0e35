"""Cuts by minimum description length, against cases that are decided by hand."""

import numpy as np
import pytest

from benchmarks.papers.variational.discretise import Discretiser, cuts


def test_one_threshold_is_found_between_the_values():
    values = np.arange(40.0)
    assert cuts(values, (values >= 25).astype(int)) == [24.5]


def test_two_thresholds_are_found_whatever_the_order():
    values = np.random.permutation(np.arange(90.0))
    assert cuts(values, ((values >= 30) & (values < 60)).astype(int)) == [29.5, 59.5]


def test_labels_without_relation_are_not_cut():
    # Alternating labels: no cut leaves less entropy worth its description.
    assert cuts(np.arange(100.0), np.arange(100) % 2) == []


def test_a_short_message_decides():
    # n log-bits: with 4 points the gain is 1 bit and the cut costs (log2 3 + log2 7 − 2) / 4 = 0.60; with 2, 0.40 + ...
    assert cuts(np.arange(4.0), np.array([0, 0, 1, 1])) == [1.5]
    # One of four: gain 0.811 and cost (log2 3 + log2 7 − 2 · 0.811) / 4 = 0.693.
    assert cuts(np.arange(4.0), np.array([0, 1, 1, 1])) == [0.5]
    # One of ten: gain 0.469 and cost (log2 9 + log2 7 − 2 · 0.469) / 10 = 0.504.
    assert cuts(np.arange(10.0), np.array([0] + [1] * 9)) == []


def test_constant_attributes_have_no_indicators():
    attributes = np.stack([np.zeros(40), np.arange(40.0)], -1)
    labels = (attributes[:, 1] >= 25).astype(int)
    assert Discretiser.fit(attributes, labels)(attributes).shape == (40, 1)


@pytest.mark.parametrize("baseline", ["most frequent", "lowest"])
def test_indicators_leave_the_baseline_out(baseline):
    values = np.arange(90.0)[:, None]
    labels = ((values >= 20) & (values < 70)).astype(int)[:, 0]
    indicators = Discretiser.fit(values, labels, baseline)(np.array([[5.0], [50.0], [80.0], [-1.0]]))
    expected = {
        "most frequent": [[1, 0], [0, 0], [0, 1], [1, 0]],
        "lowest": [[0, 0], [1, 0], [0, 1], [0, 0]],
    }
    np.testing.assert_array_equal(indicators, expected[baseline])


def test_unknown_baseline():
    with pytest.raises(ValueError, match="'most frequent' or 'lowest'"):
        Discretiser.fit(np.zeros((2, 1)), np.array([0, 1]), "middle")
