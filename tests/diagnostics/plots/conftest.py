"""Figures of a test are closed after it."""

import matplotlib
import pytest

matplotlib.use("Agg")

import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")
