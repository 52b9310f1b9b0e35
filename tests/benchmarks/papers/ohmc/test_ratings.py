"""Ratings: files are read as they are written, held-out ratings stay out, and every row finds the matrix."""

import pytest
import torch

from benchmarks.papers.ohmc import ratings


def test_reads_the_format_of_movielens(tmp_path):
    path = tmp_path / "u.data"
    path.write_text("196\t242\t3\t881250949\n1\t302\t5\t891717742\n")
    users, items, values = ratings.read(path)
    assert (users.tolist(), items.tolist(), values.tolist()) == ([195, 0], [241, 301], [0.0, 2.0])
    with pytest.raises(FileNotFoundError, match=r"MovieLens-100k as --data"):
        ratings.read(tmp_path / "none")


def test_every_rating_is_in_one_part():
    numbers = torch.arange(103)
    train, test = ratings.split((numbers, numbers, numbers.double()), 0)
    assert len(test[0]) == 10
    assert sorted([*train[0].tolist(), *test[0].tolist()]) == numbers.tolist()
    assert all(torch.equal(part[0], part[1]) for part in (train, test))


@pytest.mark.parametrize("form", [ratings.Bottleneck, ratings.SVD])
def test_priors_give_entries_variance_one(form):
    users, items = (grid.flatten() for grid in torch.meshgrid(torch.arange(50), torch.arange(40), indexing="ij"))
    matrix = form(50, 40, 5, torch.zeros(1), 1.0)
    found = torch.stack([matrix(users, items) for _ in range(300)])
    assert abs(float(found.square().mean()) - 1) < 0.15


def test_every_row_predicts_what_was_held_out():
    """Noise has standard deviation 0.5, entries 1."""
    found = ratings.run(ratings.generated(), 0, epochs=30, draws=5, rank=2, faster=2.0)
    assert all(error < 0.75 for error, *_ in found.values())
    assert all(cells[1].startswith("0.") for cells in ratings.rows([found]))


def test_the_table_has_a_column_for_each_seed(monkeypatch, capsys):
    monkeypatch.setattr(ratings, "run", lambda data, seed, **_: {"two factors": (1.0 + seed, None, 2.0)})
    ratings.main(["--short", "--seeds", "2"])
    assert capsys.readouterr().out.splitlines()[-1] == "| two factors | 1.0000 | 2.0000 | 1.5000 |  | 2 |"
