"""Types and checks of command-line arguments, with one sentence for what is out of range."""

import argparse
import math
from pathlib import Path


def count(text):
    """Read a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}, expected an integer ≥ 1")
    return value


def natural(text):
    """Read an integer ≥ 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value}, expected an integer ≥ 0")
    return value


def positive(text):
    """Read a finite positive number."""
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{value}, expected a finite number > 0")
    return value


def new_file(text):
    """Read the path of a file to write, whose folder exists."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}, expected a file in a folder that exists")
    return path


def without_effect(parser, arguments, names, reason):
    """End with an error if one of the arguments named is not its default."""
    for name in names:
        if getattr(arguments, name) != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} has no effect {reason}: leave it out.")


def check_held_out(parser, held_out, cases):
    """End with an error if all training images would be held out."""
    if held_out >= cases:
        parser.error(f"--held-out {held_out}: expected fewer than the {cases} training images.")
