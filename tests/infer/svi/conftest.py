"""Settings that several tests of `SVI` share."""

import pytest

from tests.infer.mcmc.compilers import make_native_code_at_once, native_code


@pytest.fixture
def native_at_once(monkeypatch):
    """Native code from the second step on."""
    make_native_code_at_once(monkeypatch)
    monkeypatch.setattr("pyro_manifold.compiled.policy._FIRST_ITERATION", 2)


@pytest.fixture(autouse=True)
def _traced_steps_without_a_compiler(monkeypatch):
    """Without a compiler `SVI` warns, and is only slower: tests that are not about native code run all the same."""
    if native_code.args[0]:
        monkeypatch.setenv("PYRO_MANIFOLD_NATIVE", "0")
