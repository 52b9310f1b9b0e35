"""The speed page: what its sections print, and what it says of one that fails."""

import importlib

from benchmarks import run
from benchmarks.machine import confine, machine
from benchmarks.timing import covered, stopwatch, timed


def test_the_page_is_what_sections_print(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(run, "confine", lambda threads: None)
    answers = {
        "benchmarks.speed.leapfrog": ("## Steps\n", True),
        "benchmarks.speed.scaling": ("## Costs\nfailed\n", False),
    }
    monkeypatch.setattr(run, "printed", lambda module, variables: answers[module])
    assert run.main(["--only", "leapfrog", "--write", str(tmp_path)]) == 0
    assert run.main(["--only", "leapfrog", "scaling", "--write", str(tmp_path)]) == 1
    (page,) = tmp_path.iterdir()
    text = page.read_text()
    assert page.name == "speed.md"
    assert machine(1) in text
    assert text.index("## Steps") < text.index("## Costs")
    assert machine(1) in capsys.readouterr().out


def test_a_section_that_fails_says_so(capsys):
    text, ended = run.printed("benchmarks.no_such_section", None)
    assert not ended
    assert "`-m benchmarks.no_such_section` failed, with exit status 1" in text


def test_every_section_is_a_command():
    for module in run.SECTIONS.values():
        assert callable(importlib.import_module(module).main)


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


def test_confinement_leaves_so_many_cores(monkeypatch):
    left = []
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 0, 1}, raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, cores: left.append(cores), raising=False)
    confine(1)
    confine(2)
    assert left == [[3], [1, 3]]
