"""Ctrl-C reaches a run even where the tests are started in the background."""

import signal

import pytest


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C as Python has it: a shell that runs tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
