"""The page of the papers: each table of verdicts has its commands below it; each is parsed whole and runs small."""

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

from benchmarks.papers.msd import robot_arm_model

PAGE = Path(__file__).parents[3] / "docs" / "reproduction.md"
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
    "ohmc.noisy_matrix": "--small --steps 2",
    "ohmc.paper_tables": "--small",
    "ohmc.ratings": "--small",
    "ohmc.vgg": "",
    "variational.compare": "",
    "variational.figure": "",
}
"""Arguments with which the program of a command runs small; none if a test of its own runs it."""
HEADINGS = "| experiment | paper | ours | verdict |"


def commands(text):
    """Names of the modules below `benchmarks.papers` that a text runs, and their arguments."""
    for found in re.finditer(r"python -m benchmarks\.papers\.([\w.]+)([^`\n]*)", text.replace("\\\n", " ")):
        yield found[1], shlex.split(found[2], comments=True)


def folds():
    """Headings of the sections that have verdicts, and what is folded below their tables."""
    for section in re.split(r"^##+ ", PAGE.read_text(), flags=re.MULTILINE):
        heading, _, text = section.partition("\n")
        before, found, after = text.partition(HEADINGS)
        if found:
            assert "<details" not in before, f"{heading}: a table of verdicts is not folded"
            yield heading, "".join(re.findall(r"<details markdown=\"1\">.*?</details>", after, re.DOTALL))


COMMANDS = [(name, arguments) for _, text in folds() for name, arguments in commands(text)]


def main_of(name):
    return importlib.import_module(f"benchmarks.papers.{name}").main


class ParsedError(Exception):
    """Raised in place of a run."""


def test_there_is_a_table_for_each_paper():
    assert {name.split(".")[0] for name, _ in COMMANDS} == {"ohmc", "variational", "msd", "nnsghmc"}


@pytest.mark.parametrize(("heading", "text"), [pytest.param(*fold, id=fold[0]) for fold in folds()])
def test_a_table_of_verdicts_has_its_commands_below_it(heading, text):
    assert list(commands(text)), f"{heading}: expected a command of benchmarks.papers below the table"


def test_no_command_is_elsewhere_on_the_page():
    assert len(list(commands(PAGE.read_text()))) == len(COMMANDS)


@pytest.mark.parametrize(("name", "arguments"), [pytest.param(*each, id=shlex.join(each[1])) for each in COMMANDS])
def test_a_command_is_parsed(name, arguments, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop(*given):
        parse(*given)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
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
    assert {name for name, _ in COMMANDS} <= set(SMALL)
