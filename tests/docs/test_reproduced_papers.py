"""The page of the papers: one verdict for each row, counted at the top; lines of code that give the papers' forms."""

import inspect
import re
from collections import Counter

import pytest
import torch
from torch.distributions import biject_to

from pyro_manifold import constraints, infer, nn, optim
from pyro_manifold.infer import autoguide
from pyro_manifold.manifolds import Stiefel

from .tables import numbers, page, prose, rows
from .test_quoted_numbers import stands_in

PAGE = "docs/reproduction.md"
ROWS = [row for row in rows(PAGE) if list(row) == ["experiment", "paper", "ours", "verdict"]]
STATED = {row["verdict"]: int(row["rows"]) for row in rows(PAGE) if list(row) == ["verdict", "meaning", "rows"]}
FORMS = [row["the paper's form"] for row in rows(PAGE, "as-in-the-paper-and-as-we-do-it")]
LINES = [line for cell in FORMS for line in re.findall(r"`(\w+\([^`]*\))`", cell)]


def test_verdicts_are_one_word_and_counted():
    assert all(" " not in verdict for verdict in STATED)
    assert Counter(row["verdict"] for row in ROWS) == STATED


def test_a_figure_that_is_missing_is_a_dash():
    for row in ROWS:
        assert all(row.values()), row
        assert row["verdict"] != "missing" or "–" in (row["paper"], row["ours"]), row
        assert row["verdict"] == "missing" or row["ours"] != "–", row
        assert row["verdict"] in ("missing", "smaller") or row["paper"] != "–", row


def test_figures_of_the_summary_stand_in_rows():
    cells = " | ".join(cell for row in ROWS for cell in row.values())
    summary = re.findall(r"^\*\*What .*?(?=\n\n)", page(PAGE), re.DOTALL | re.MULTILINE)
    assert len(summary) == 3
    assert not [found for text in summary for found in numbers(prose(text)) if not stands_in(cells, found)]


def test_a_form_is_a_line_or_a_dash():
    assert all(cell.startswith(("`", "–")) for cell in FORMS)
    assert len(LINES) > 15


@pytest.mark.parametrize("line", LINES)
def test_lines_of_code_are_accepted(line):
    """Kernels, guides, layers and optimisers are constructed; nothing is trained."""
    signature = inspect.signature(infer.train_meta_sampler)
    space = {name: getattr(module, name) for module in (infer, autoguide, nn, optim) for name in module.__all__}
    space |= {"train_meta_sampler": signature.bind, "biject_to": biject_to, "constraints": constraints}
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    space |= {"Stiefel": Stiefel, "B": torch.eye(4, 2, requires_grad=True)}
    eval(line, {**space, "model": lambda: None, "tasks": [], "network": network, "n": 4})
