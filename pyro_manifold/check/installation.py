"""Facts about an installation: versions, C compiler, native code, devices."""

from __future__ import annotations

import platform
import subprocess
from contextlib import suppress
from ctypes import c_double
from importlib.metadata import PackageNotFoundError, version

import torch

from pyro_manifold.graphs.native import NoCompilerError, compiled, native_code_is_allowed, path_of_compiler
from pyro_manifold.version import __version__

_PACKAGES = ("torch", "pyro-ppl", "numpy", "scipy", "arviz", "pandas", "optree")
_AVAILABLE = "available"
_LONGEST = 10  # seconds


def facts() -> dict[str, str]:
    """Return names and values, in the order in which they are printed."""
    found = {"pyro_manifold": __version__, "python": platform.python_version(), "platform": platform.platform()}
    found |= {name: version_of(name) for name in _PACKAGES}
    found |= {"C compiler": c_compiler(), "native code": native_code(), "CUDA": cuda()}
    return found | {"default dtype": str(torch.get_default_dtype()), "threads": str(torch.get_num_threads())}


def version_of(package: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def c_compiler() -> str:
    """Return the path and the first line of the version of the C compiler, or a message that there is none."""
    try:
        path = path_of_compiler()
    except NoCompilerError as error:
        return f"none: {error}"
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_LONGEST).stdout
        return f"{path}, {printed.splitlines()[0]}" if printed else path
    return path


def native_code() -> str:
    """Return whether a function can be compiled, loaded and called, or the reason why not."""
    if not native_code_is_allowed():
        return "turned off by PYRO_MANIFOLD_NATIVE=0 in the environment"
    try:
        twice = compiled("double twice(double x) { return 2 * x; }", 1).twice
    except NoCompilerError as error:
        return f"not available, sampling is slower: {error}"
    twice.argtypes, twice.restype = [c_double], c_double
    result = twice(1.5)
    return _AVAILABLE if result == 3.0 else f"not available: the compiled function returns {result} in place of 3.0"


def cuda() -> str:
    """Return the names of the CUDA devices."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names) or "no device"
