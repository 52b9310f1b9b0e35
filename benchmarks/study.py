"""A study: a table of problems by methods, with its command, its runs and its text.

`Study.main` reads the options of the command, makes a run for each seed, and prints a row as soon as its runs have
ended. With ``--results FILE`` runs are stored in a JSON file and not made again; ``--show`` prints those that it has.
Commands whose tables have another shape read their options by `read`.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.stored import kept, read_json
from benchmarks.tables import show


def parser_of(text, **options):
    """Parser of a command, described by the first paragraph of the docstring ``text`` of its module.

    Args:
        text: the docstring.
        options: ``name=default``, or ``name=option(...)``. The type is that of the default; False is a switch, a list
            stands for one value or more, a tuple for as many values as it has.
    """
    parser = argparse.ArgumentParser(description=text.split("\n\n")[0])
    for name, option in options.items():
        settings = option if isinstance(option, dict) else {"default": option}
        parser.add_argument(f"--{name.replace('_', '-')}", **(_kind(settings.get("default")) | settings))
    return parser


def option(default=None, help=None, **settings):
    """An option with a help text and other arguments of `add_argument`."""
    return {"default": default, "help": help, **settings}


def switch(help):
    """An option that is on if it is given."""
    return option(False, help)


def _kind(default):
    """Type and number of the values of an option with this default."""
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, (list, tuple)):
        return {"type": type((*default, "")[0]), "nargs": "+" if isinstance(default, list) else len(default)}
    return {} if default is None else {"type": type(default)}


def set_up(dtype=torch.float64):
    """Make a dtype the default, and use OMP_NUM_THREADS threads, one if it is not set."""
    torch.set_default_dtype(dtype)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def read(text, argv=None, dtype=torch.float64, **options):
    """Arguments of a command with these options of `parser_of`, after `set_up`."""
    arguments = parser_of(text, **options).parse_args(argv)
    set_up(dtype)
    return arguments


def named(things, only):
    """Those of ``{name: thing}`` whose name contains one of the parts that ``only`` has between bars."""
    return {name: thing for name, thing in things.items() if any(part in name for part in only.split("|"))}


# ---- cells: functions from the figures of the runs of a row, dictionaries, to its text -------------------------------


def _values(runs, figure):
    return [figure(run) if callable(figure) else run[figure] for run in runs]


def median(figure, form):
    """Cell with the median of a figure, which is a key or a function of the figures of a run."""
    return lambda runs: format(float(np.median(_values(runs, figure))), form)


def spread(figure, form):
    """Cell with the median, and of several runs the least and the largest value."""
    return lambda runs: spread_of(_values(runs, figure), form)


def spread_of(values, form):
    """Text of the median of values, with the least and the largest if there are several."""
    if not len(values):
        return "–"
    middle = format(float(np.median(values)), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} to {max(values):{form}})"


def largest(figure, form):
    """Cell with the largest value of a figure."""
    return lambda runs: format(max(_values(runs, figure)), form)


@dataclass(frozen=True)
class Study:
    """A table with a row for each problem and method.

    Attributes:
        text: docstring of the module.
        heads: titles of the first columns: problem, method if there are several, and seed for a row of each.
        columns: ``{title: cell}``: a function from the figures of the runs of all seeds to text, or a figure and its
            format for `median`.
        problems: ``{name: problem}``, or a function of the arguments to it.
        run: ``(problem, method, seed, arguments)`` to figures of a run, ``{"failed": why}`` where there are none.
        methods: ``{name: method}``, or a function of arguments and problem to it.
        seeds: the default of ``--seeds``.
        by_seed: whether each seed has a row.
        options: further options, as of `parser_of`.
        preface: text above the table.
        dtype: the default of tensors.
    """

    text: str
    heads: tuple[str, ...]
    columns: Mapping[str, Any]
    problems: Any
    run: Callable[..., dict[str, Any]]
    methods: Any = None
    seeds: tuple[int, ...] = (0,)
    by_seed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    preface: str = ""
    dtype: torch.dtype = torch.float64

    def read(self, argv):
        own = {
            "only": option("", "parts of the names of problems, with | between them"),
            "seeds": list(self.seeds),
            "results": option(None, "file of runs, read and extended", type=Path),
            "show": switch("print the table of the file and run nothing"),
        }
        return read(self.text, argv, self.dtype, **own, **self.options)

    def rows(self, arguments):
        """Yield the rows, each once its runs are made."""
        found = self.problems(arguments) if callable(self.problems) else self.problems
        for name, problem in named({str(name): problem for name, problem in found.items()}, arguments.only).items():
            methods = self.methods(arguments, problem) if callable(self.methods) else self.methods or {"": None}
            for title, method in methods.items():
                label = [name, *([title] if self.methods else [])]
                runs = {seed: self.stored(arguments, [*label, seed], problem, method) for seed in arguments.seeds}
                runs = {seed: run for seed, run in runs.items() if run is not None}
                for seeds in [[seed] for seed in runs] if self.by_seed else [list(runs)]:
                    if seeds:
                        yield [*label, *(seeds if self.by_seed else []), *self.cells([runs[seed] for seed in seeds])]

    def stored(self, arguments, label, problem, method):
        """Figures of one run, from the file of results if it has them; None if they are only to be shown."""
        key = " | ".join(map(str, [*label, *(getattr(arguments, name) for name in self.options)]))
        if arguments.show:
            return read_json(arguments.results).get(key)
        return kept(arguments.results, key, lambda: self.run(problem, method, label[-1], arguments))

    def cells(self, runs):
        """Text of a row: why a run has no figures, or a cell for each column."""
        failed = [run["failed"] for run in runs if "failed" in run][:1]
        cells = (median(*column) if isinstance(column, tuple) else column for column in self.columns.values())
        return failed or [cell(runs) for cell in cells]

    def main(self, argv=None):
        """Print the table of a command line."""
        arguments = self.read(argv)
        if arguments.show and arguments.results is None:
            raise SystemExit("--show needs --results: the file of the runs that it prints.")
        print(self.preface.format(**vars(arguments)), end="", flush=True)
        show((*self.heads, *self.columns), self.rows(arguments))
