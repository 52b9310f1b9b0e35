"""Ratings: files are read as they are written, held-out ratings stay out, and every row finds the matrix."""

import math

import pyro
import pytest
import torch

from benchmarks.papers.ohmc import ratings


def test_reads_the_format_of_movielens(tmp_path):
    path = tmp_path / "u.data"
    path.write_text("196\t242\t3\t881250949\n1\t302\t5\t891717742\n")
    users, items, values = ratings.read(path)
    assert (users.tolist(), items.tolist(), values.tolist()) == ([195, 0], [241, 301], [0.0, 2.0])
    with pytest.raises(SystemExit, match=r"MovieLens-100k as --data"):
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


def test_spectra_are_the_singular_values_of_the_matrix():
    users, items = (grid.flatten() for grid in torch.meshgrid(torch.arange(6), torch.arange(5), indexing="ij"))
    for form in (ratings.Bottleneck, ratings.SVD):
        matrix = form(6, 5, 3, torch.zeros(1), 1.0)
        trace = pyro.poutine.trace(matrix).get_trace(users, items)
        sites = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
        values = pyro.poutine.condition(matrix, sites)(users, items).reshape(6, 5)
        assert torch.allclose(matrix.spectrum(sites), torch.linalg.svdvals(values)[:3])


@pytest.mark.long
def test_every_row_predicts_what_was_held_out():
    """Noise has standard deviation 0.5, entries 1."""
    sampling = {"members": 5, "steps": 40, "burn_in": 80, "step_size": 1e-3}
    found = ratings.run(ratings.generated(), 0, epochs=30, rank=2, faster=2.0, **sampling)
    assert all(error < 0.75 for error, *_ in found.values())
    assert all(cells[1].startswith("0.") for cells in ratings.rows([found]))


def test_errors_are_divided_by_the_ratings_of_a_film():
    """Two films: one with 12 ratings and errors of 1, one with 3 and errors of 2."""
    films = torch.tensor([0] * 12 + [1] * 3)
    train, test = (films, films, torch.zeros(15)), (films[[0, 14]], films[[0, 14]], torch.zeros(2))
    few, some, many = ratings.by_count(torch.tensor([1.0, 2.0]), train, test)
    assert (few, some) == (2.0, 1.0)
    assert math.isnan(many)


def test_the_table_has_means_over_runs(monkeypatch, capsys):
    monkeypatch.setattr(ratings, "run", lambda data, seed, **_: {"two factors": (1.0 + seed, None, None, None, 2.0)})
    ratings.main(["--small"])
    assert "| two factors | 1.500 ± 0.707 | – |  | 2 |" in capsys.readouterr().out
