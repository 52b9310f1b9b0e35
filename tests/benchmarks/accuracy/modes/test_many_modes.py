"""The comparison of replica exchange with SMC, in short."""

import pytest
import torch

from benchmarks.accuracy.modes import many_modes


@pytest.mark.long
def test_a_short_table(capsys):
    many_modes.main(["--problems", "two", "--seeds", "1", "--particles", "64"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| two")]
    assert [row.split("|")[1].strip() for row in rows] == ["two, SMC", "two, replica exchange"]


def test_modes_are_distinguished():
    two, paper = many_modes.two(), many_modes.paper()
    assert two.modes({"x": torch.tensor([[4.1, 3.9], [-4.0, -4.1]])}).tolist() == [1, 0]
    # M = [[1, 2], [1, 1]]: entries near 2 are the bits of the number, in rows.
    Q, R = torch.linalg.qr(torch.tensor([[1.0, 2.0], [1.0, 1.0]]))
    signs = R.diagonal().sign()
    Q, R = Q * signs, signs[:, None] * R
    v = torch.stack([R[0, 0].log(), R[0, 1], R[1, 1].log()])
    assert paper.modes({"Q": Q[None], "v": v[None]}).tolist() == [2]


def test_shares_are_compared_with_the_truth():
    case = many_modes.two()
    distance, outside = many_modes.of_draws(case, {"x": torch.ones(4, 2)})
    assert distance == pytest.approx(0.3)
    assert outside == 0
