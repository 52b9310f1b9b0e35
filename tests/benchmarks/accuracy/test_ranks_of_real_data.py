"""Evidences of ranks of data, on few of them."""

import pytest
import torch

from benchmarks.accuracy import ranks_of_real_data


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of runs that are too short for what they say
def test_every_rank_has_a_row(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(ranks_of_real_data.DATA, "wine", (lambda: torch.randn(12, 4), 1.0, (1, 2)))
    picture = tmp_path / "ranks.png"
    ranks_of_real_data.main(["--data", "wine", "--particles", "32", "--runs", "2", "--picture", str(picture)])
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["1", "2"]
    assert "Minka's Laplace approximation: " in out
    assert picture.exists()
