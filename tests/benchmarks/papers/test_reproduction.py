"""The page of the papers: each row has a verdict and a command, which is parsed whole and runs small."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from benchmarks.papers.msd import robot_arm_model

PAGE = Path(__file__).parents[3] / "docs" / "reproduction.md"
VERDICTS = ("reached", "missed", "confirmed", "not confirmed", "contradicted", "no comparison", "not yet run")
SMALL = {
    "msd.paper_table": "--small",
    "msd.robot_arm_cost": "",
    "nnsghmc.gaussian": "",
    "nnsghmc.mnist": "",
    "nnsghmc.music": "",
    "ohmc.exponentials": "--small",
    "ohmc.figures": "--small",
    "ohmc.low_rank_network": "--small",
    "ohmc.mnist": "--small --paper --seeds 1",
    "ohmc.noisy_matrix": "--small",
    "ohmc.paper_tables": "--small",
    "ohmc.ratings": "--small",
    "ohmc.vgg": "",
    "variational.compare": "",
}
"""Arguments with which the program of a row runs small; none if a test of its own runs it."""
HEADINGS = ["experiment", "paper", "ours", "seeds", "problem and budget", "CPU time", "verdict", "command"]


def rows():
    """Cells of the rows of all tables whose headings are those of a paper."""
    inside = False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| \n").split(" | ")] if line.startswith("| ") else []
        if cells == HEADINGS:
            inside = True
        elif inside and cells:
            yield cells
        elif not line.startswith("|"):
            inside = False


ROWS = list(rows())


def command(cells):
    """Name of the module below `benchmarks.papers`, and its arguments."""
    found = re.fullmatch(r"`python -m benchmarks\.papers\.(\S+)(.*)`", cells[-1])
    assert found, f"{cells[0]}: expected one command of benchmarks.papers, found {cells[-1]}"
    return found[1], shlex.split(found[2])


def main_of(name):
    return importlib.import_module(f"benchmarks.papers.{name}").main


class ParsedError(Exception):
    """Raised in place of a run."""


def test_there_is_a_table_for_each_paper():
    folders = {command(cells)[0].split(".")[0] for cells in ROWS}
    assert folders == {"ohmc", "variational", "msd", "nnsghmc"}


@pytest.mark.parametrize("cells", ROWS, ids=lambda cells: cells[0])
def test_a_row_is_whole_and_its_command_is_parsed(cells, monkeypatch):
    assert len(cells) == len(HEADINGS)
    assert cells[6].startswith(VERDICTS), f"{cells[0]}: the verdict is one of {VERDICTS}"
    if cells[6].startswith("not yet run"):
        assert cells[2] == "–" or "not" in cells[4], f"{cells[0]}: figures of another budget say so"
    parse = argparse.ArgumentParser.parse_args

    def stop(*arguments):
        parse(*arguments)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    name, arguments = command(cells)
    with pytest.raises(ParsedError):
        main_of(name)(arguments)


@pytest.mark.filterwarnings("ignore")  # of runs that are too short for what they say
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "ohmc.noisy_matrix" else pytest.mark.long)
        for name, arguments in SMALL.items()
        if arguments
    ],
)
def test_programs_run_small(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    monkeypatch.setattr(robot_arm_model, "original", lambda: robot_arm_model.simulate(0))
    main_of(name)(shlex.split(SMALL[name]))
    assert capsys.readouterr().out or list(tmp_path.rglob("*.png"))
    torch.set_default_dtype(torch.float64)


def test_every_program_of_the_page_is_run():
    assert {command(cells)[0] for cells in ROWS} <= set(SMALL)
