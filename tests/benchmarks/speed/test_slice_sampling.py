"""The comparison of slice samplers, in short."""

import numpy as np
import pytest

from benchmarks.speed import slice_sampling


@pytest.mark.long
def test_a_short_table(capsys):
    slice_sampling.main(["--only", "five modes, 3", "--chains", "4", "--warmup", "30", "--draws", "60"])
    rows = [line.split("|")[2].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| five")]
    assert rows[:3] == ["GeodesicSlice", "OHMC", "OHMC, replica exchange"]


def test_shares_at_the_centres_and_their_mean():
    """Far apart, each centre belongs to its own component."""
    mixture = slice_sampling.PROBLEMS["five modes, 10 dimensions"]
    np.testing.assert_allclose(mixture.shares(mixture.centres), np.eye(5), atol=1e-9)
    np.testing.assert_allclose(mixture.weights.sum(), 1)
