"""Pages of figures: each part has its place, and what fails leaves its page as it was."""

import importlib
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.machine import PACKAGES, confine, machine, version_of
from benchmarks.timing import covered, stopwatch, timed

DOCS = Path(__file__).parents[2] / "docs"
ANSWERS = {"expansions": ("## heading\n\nfigures\n", True), "gradients": ("half", False)}


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A page that has the places of two parts, of which the second fails."""
    monkeypatch.setattr(run, "confine", lambda threads: None)
    monkeypatch.setattr(run, "printed", lambda arguments, threads: ANSWERS[arguments[0].rpartition(".")[2]])
    page = tmp_path / run.KERNELS
    page.parent.mkdir()
    places = [f"{first}\nold {name}\n\n{last}" for name in ANSWERS for first, last in [run.marks(name)]]
    page.write_text("\nbetween\n\n".join(["before\n", *places, "after\n"]))
    return page


def test_a_part_replaces_its_own_figures(page, tmp_path):
    for _ in range(2):
        assert run.main(["--only", "expansions", "--write", str(tmp_path)]) == 0
    text = page.read_text()
    assert "old expansions" not in text
    assert text.count("python -m benchmarks.speed.expansions\n") == text.count("\n### heading\n\nfigures\n") == 1
    assert machine(1) in text
    order = ["before", "\nfigures\n", "old gradients", "after"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert text.count("\nbetween\n") == 3


def test_a_part_that_fails_leaves_its_page(page, tmp_path, capsys):
    before = page.read_text()
    assert run.main(["--only", "gradients", "--write", str(tmp_path)]) == 1
    assert page.read_text() == before
    assert "`benchmarks.speed.gradients` failed" in capsys.readouterr().out


def test_a_page_without_places_is_refused():
    with pytest.raises(ValueError, match="lacks the lines <!-- make bench PART=gradients -->"):
        run.inserted("text", "gradients", "figures")


def test_a_command_that_fails_is_reported():
    _, ended = run.printed(["benchmarks.no_such_section"], 1)
    assert not ended


@pytest.mark.parametrize("name", run.PARTS)
def test_every_part_is_a_command_and_has_a_place(name, capsys):
    page, command = run.PARTS[name]
    assert callable(importlib.import_module(f"benchmarks.{command.split()[0]}").main)
    assert "\nfigures\n" in run.inserted((DOCS / page).read_text(), name, "figures")
    assert run.main(["--list"]) == 0
    assert f"{name}: {page}, python -m benchmarks.{command}" in capsys.readouterr().out


def test_a_union_counts_what_overlaps_once():
    assert covered([]) == 0
    assert covered([(5.0, 6.0), (0.0, 2.0), (1.0, 1.5), (1.0, 3.0)]) == 4.0


def test_clocks_count_calls_and_processes():
    class Owner:
        def work(self, count):
            return sum(range(count))

    owner = Owner()
    seconds = timed(owner, "work")
    with stopwatch() as times:
        assert owner.work(100_000) == 4999950000
        owner.work(10)
    assert len(seconds) == 2
    assert 0 < sum(seconds) <= times["seconds"]
    assert times["cpu_seconds"] > 0


def test_packages_that_are_not_installed_have_no_version(monkeypatch):
    monkeypatch.setattr("benchmarks.machine.PACKAGES", ("torch", "no-such-package"))
    line = machine(2)
    assert f"each process on 2 of them; torch {version_of('torch')}" in line
    assert "no-such-package" not in line
    assert {"torch", "pyro-ppl"} <= {package for package in PACKAGES if version_of(package)}


def test_confinement_leaves_so_many_cores(monkeypatch):
    left = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 0, 1}, raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: left.append(cores), raising=False)
    confine(1)
    confine(2)
    assert left == [[3], [1, 3]]
