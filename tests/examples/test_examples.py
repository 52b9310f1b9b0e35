"""Examples run small, from start to the files that they write."""

from examples import collinear_regression


def test_collinear_regression(tmp_path, capsys):
    intervals, found = collinear_regression.main(["--output", str(tmp_path), "--steps", "2000"])
    assert "s.d. of the slope of s1" in capsys.readouterr().out
    assert (tmp_path / "collinear_regression.png").stat().st_size > 10_000
    exact, mean_field, rank_one = (deviation[4] for _, deviation in intervals.values())
    assert mean_field < 0.3 * exact
    assert rank_one > 1.5 * mean_field  # 0.92 of the exact one after 6,000 steps
    assert found.directions["slopes"].shape == (1, 10)
