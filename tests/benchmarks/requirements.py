"""Marks of tests that need packages that `make test` does not install."""

import importlib.util

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return the mark of a test that imports packages of bench in pyproject.toml, skipped where one is missing.

    Nothing is imported here. Such a test is long, and imports the package itself, so that `make test` runs without
    these packages and never loads them.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"needs bench of pyproject.toml: {', '.join(missing)} is not installed"
    )
