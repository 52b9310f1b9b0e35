"""Markdown: the shape of tables, and rows that have no figures."""

import pytest

from benchmarks.tables import formatted, show, table, with_deviation


def test_every_line_has_the_cells_of_the_header():
    text = table(["peer", "rate", "ratio"], [["ours", 2.5, "1.00"], ["theirs", "over 5 s"]])
    assert text.splitlines() == [
        "| peer | rate | ratio |",
        "|---|---|---|",
        "| ours | 2.5 | 1.00 |",
        "| theirs | over 5 s |  |",
    ]


def test_rows_are_printed_before_the_next_is_asked_for(capsys):
    seen = []

    def rows():
        for k in range(2):
            yield [k]
            seen.append(capsys.readouterr().out)

    show(["k"], rows())
    assert seen == ["| k |\n|---|\n| 0 |\n", "| 1 |\n"]


def test_a_row_with_more_cells_than_columns_is_refused():
    with pytest.raises(ValueError, match="3 cells, expected at most 2"):
        table(["a", "b"], [[1, 2, 3]])


def test_numbers_are_formatted_one_by_one_and_with_their_deviation():
    assert formatted(".1f +.2f .0%", 2.04, 1, 0.5) == ["2.0", "+1.00", "50%"]
    assert with_deviation([1.0, 3.0], 2) == "2.00 ± 1.41"
    assert with_deviation([4.0]) == "4"
