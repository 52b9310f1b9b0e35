"""Studies: options follow from their defaults, runs are made once, and rows are shown as runs end."""

import json

import pytest
import torch

from benchmarks.study import Study, largest, named, option, parser_of, spread, spread_of, switch


@pytest.fixture
def made():
    return []


def study(made, **settings):
    """Sums of numbers of problem, method and seed; the method "fails" has none."""

    def run(problem, method, seed, arguments):
        made.append((problem, method, seed))
        if method is None:
            return {"failed": "no sum"}
        return {"sum": problem + method + seed + arguments.more}

    columns = {"median": ("sum", ".1f"), "range": spread("sum", ".0f"), "largest": largest("sum", ".0f")}
    options = {"more": 0, **settings.pop("options", {})}
    methods = {"a": 1, "fails": None}
    return Study(
        "Sums.", ("problem", "method"), columns, {"one": 10, "two": 20}, run, methods, options=options, **settings
    )


def printed(capsys):
    return [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]


def test_options_follow_from_their_defaults():
    options = {"sizes": (1, 2), "names": ["a"], "rate": 0.5, "short": switch("few"), "limit": option(type=int)}
    parser = parser_of("First line.\n\nMore.", **options)
    assert parser.description == "First line."
    found = vars(
        parser.parse_args(["--sizes", "3", "4", "--names", "b", "c", "--rate", "2", "--short", "--limit", "5"])
    )
    assert found == {"sizes": [3, 4], "names": ["b", "c"], "rate": 2.0, "short": True, "limit": 5}
    assert vars(parser.parse_args([])) == {"sizes": (1, 2), "names": ["a"], "rate": 0.5, "short": False, "limit": None}


def test_a_row_has_the_figures_of_all_seeds_or_why_there_are_none(made, capsys):
    study(made).main(["--seeds", "0", "4", "1", "--only", "two"])
    assert printed(capsys) == [["two", "a", "22.0", "22 (21 to 25)", "25"], ["two", "fails", "no sum"]]
    assert made == [(20, method, seed) for method in (1, None) for seed in (0, 4, 1)]


def test_seeds_have_rows_of_their_own(made, capsys):
    each = study(made, by_seed=True, seeds=(2, 3))
    rows = list(each.rows(each.read(["--only", "one"])))
    assert [row[:3] for row in rows] == [["one", method, seed] for method in ("a", "fails") for seed in (2, 3)]


def test_runs_are_made_once_and_shown_again(made, tmp_path, capsys):
    path = tmp_path / "runs.json"
    for _ in range(2):
        study(made).main(["--only", "one", "--results", str(path)])
    assert len(made) == len(json.loads(path.read_text())) == 2
    study(made).main(["--results", str(path), "--show"])
    assert [row[0] for row in printed(capsys)[-2:]] == ["one", "one"]
    study(made).main(["--only", "one", "--results", str(path), "--more", "5"])
    assert len(made) == 4, "another setting is another run"
    with pytest.raises(SystemExit, match="--show needs --results"):
        study(made).main(["--show"])


def test_parts_of_names_and_medians():
    assert named({"one": 1, "two": 2, "three": 3}, "tw|three") == {"two": 2, "three": 3}
    assert spread_of([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 to 3.0)"
    assert spread_of([3.0], ".1f") == "3.0"
    assert spread_of([], ".1f") == "–"
    assert torch.get_default_dtype() == torch.float64
