"""Settings that several tests of `SVI` share."""

import pytest


@pytest.fixture
def native_at_once(monkeypatch):
    """Native code from the second step on."""
    monkeypatch.setattr("pyro_manifold.infer.mcmc.transitions.compilation._OPERATORS_WORTH_MAKING", 0)
    monkeypatch.setattr("pyro_manifold.infer.mcmc.transitions.compilation._FIRST_ITERATION", 2)
