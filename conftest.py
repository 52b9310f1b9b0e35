"""Shared by all tests and examples of docstrings: a seed for each, derived from its name, and shares of the suite."""

import argparse
import math
import re
import time
import zlib

import pyro
import pytest

_BEGAN = pytest.StashKey[float]()


@pytest.fixture(autouse=True)
def _seeded(request):
    # The seed follows from the name alone: nobody chose it, so nobody tuned it.
    pyro.set_rng_seed(zlib.crc32(request.node.nodeid.encode()))
    pyro.clear_param_store()


def _share(text):
    """Read K/N, which option parsing checks before there are workers."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r}, expected K/N with K from 1 to N, such as 2/4")
    return int(found[1]) - 1, int(found[2])


def _minutes(text):
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number above 0, such as 12")
    return minutes


def pytest_addoption(parser):
    parser.addoption("--share", type=_share, metavar="K/N", help="run the K-th of N shares of the tests")
    parser.addoption("--minutes", type=_minutes, help="skip tests that would begin later than this after the first")


def pytest_collection_modifyitems(config, items):
    if config.getoption("share") is None:
        return
    chosen, shares = config.getoption("share")
    # By names, so that a test does not change its share when others come or go.
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % shares != chosen]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item):
    minutes, now = item.config.getoption("minutes"), time.monotonic()
    # From the first test, since collecting takes its time too, and a test at least is run.
    if minutes is not None and now - item.config.stash.setdefault(_BEGAN, now) > 60 * minutes:
        pytest.skip(f"would begin after the {minutes:g} minutes of this share; `make test-all` has it")
