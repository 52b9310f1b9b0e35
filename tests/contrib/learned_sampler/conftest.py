"""Steps of torch where there is no compiler for native code."""

import pytest

from tests.infer.mcmc.compilers import native_code


@pytest.fixture(autouse=True)
def _steps_of_torch_without_a_compiler(monkeypatch):
    """Without a compiler `NNSGHMC` warns, and is only slower: tests that are not about native code run all the same."""
    if native_code.args[0]:
        monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
