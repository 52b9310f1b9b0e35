"""Shared by all tests: float64, one seed for each test derived from its name, one thread for each process."""

import zlib

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible(request):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    # The seed follows from the name alone: nobody chose it, so nobody tuned it.
    pyro.set_rng_seed(zlib.crc32(request.node.nodeid.encode()))
    pyro.clear_param_store()
    yield
    torch.set_default_dtype(torch.float32)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here; CI has none")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
