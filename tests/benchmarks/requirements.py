"""Marks of tests that need packages or programs that `make test` does not install."""

import importlib.util
from collections.abc import Iterable
from typing import Any

import pytest

from pyro_manifold.graphs.native.compiler import NoCompilerError, compiler


def needs(*packages: str) -> pytest.MarkDecorator:
    """Return the mark of a test that imports packages of bench in pyproject.toml, skipped where one is missing.

    Nothing is imported here. Such a test is long, and imports the package itself, so that `make test` runs without
    these packages and never loads them.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"needs bench of pyproject.toml: {', '.join(missing)} is not installed"
    )


def without_compiler() -> bool:
    try:
        compiler()
    except NoCompilerError:
        return True
    return False


needs_compiler = pytest.mark.skipif(without_compiler(), reason="needs a C compiler (cc, gcc or clang)")


def all_long_but(short: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test of which `make test` runs a few, the cheapest that can fail."""
    kept = [*short]
    return [value if value in kept else pytest.param(value, marks=pytest.mark.long) for value in values]
