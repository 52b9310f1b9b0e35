"""Compilers, which pip does not install: without them there is no native or compiled code to be tested."""

import os
import shutil

import pytest

from pyro_manifold.compiled.native import NoCompilerError, path_of_compiler


def _is_missing_for_c():
    try:
        path_of_compiler()
    except NoCompilerError:
        return True
    return False


def _is_missing_for_cpp():
    return not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


WITHOUT_NATIVE_CODE = _is_missing_for_c()
native_code = pytest.mark.skipif(WITHOUT_NATIVE_CODE, reason="native code needs a C compiler, and there is none here")
compiled_code = pytest.mark.skipif(
    _is_missing_for_cpp(), reason="torch.compile needs a C++ compiler, and there is none here"
)


def make_native_code_at_once(monkeypatch, operators=0):
    """Make native code for models with more than this number of operators in an iteration, however short the run."""
    monkeypatch.setattr("pyro_manifold.compiled.policy._OPERATORS_WORTH_MAKING", operators)
