"""Steps of torch where there is no compiler for native code."""

import pytest

from tests.infer.mcmc.compilers import WITHOUT_NATIVE_CODE


@pytest.fixture(autouse=True)
def _steps_of_torch_without_a_compiler(monkeypatch):
    """Without a compiler some kernels warn, and are only slower: tests of anything else run all the same."""
    if WITHOUT_NATIVE_CODE:
        monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
