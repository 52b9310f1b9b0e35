"""Shared by all tests and examples of docstrings: a seed for each, derived from its name, and shares of the suite."""

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


def pytest_addoption(parser):
    parser.addoption("--share", metavar="K/N", help="run the K-th of N shares of the tests")
    parser.addoption("--minutes", type=float, help="skip tests that would begin later than this after the start")


def pytest_configure(config):
    config.stash[_BEGAN] = time.monotonic()


def pytest_collection_modifyitems(config, items):
    share = config.getoption("share")
    if share is None:
        return
    found = re.fullmatch(r"(\d+)/(\d+)", share)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--share {share}, expected K/N with K from 1 to N, such as 2/4.")
    chosen, shares = int(found[1]) - 1, int(found[2])
    # By names, so that a test does not change its share when others come or go.
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % shares != chosen]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item):
    minutes = item.config.getoption("minutes")
    if minutes is not None and time.monotonic() - item.config.stash[_BEGAN] > 60 * minutes:
        pytest.skip(f"would begin after the {minutes:g} minutes of this share; `make test-all` has it")
