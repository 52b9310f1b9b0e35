"""The system's C compiler, and what it has compiled before."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

_FLAGS = (
    # -O2 takes twice as long to compile, for steps that are as fast: the source is written in vectors already.
    *("-std=gnu11", "-O1", "-ftree-vectorize", "-march=native", "-fPIC", "-shared", "-w"),
    # Nobody asks for errno or traps. Not -ffast-math: NaN and infinities must arrive.
    *("-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
)
_LONGEST = 120  # seconds
_VECTOR_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "log"),
    *("log10", "log1p", "log2", "sin", "sinh", "tan", "tanh"),
)
_OF_TWO = ("atan2", "pow")


class NoCompilerError(Exception):
    """There is no C compiler here, or it failed; in words for a warning."""


@cache
def compiler() -> str:
    """The path of the C compiler: ``$CC``, else cc, gcc or clang.

    Raises:
        NoCompilerError: if there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise NoCompilerError("there is no C compiler (cc, gcc or clang)")


@cache
def vector_functions() -> str:
    """Declarations by which the compiler calls a function for all lanes at once, where the C library can."""
    try:
        library = ctypes.CDLL("libmvec.so.1")
    except OSError:
        return "#include <math.h>\n"
    names = [name for name in _VECTOR_FUNCTIONS if hasattr(library, f"_ZGVbN2v_{name}")]
    pairs = [name for name in _OF_TWO if hasattr(library, f"_ZGVbN2vv_{name}")]
    lines = ["#include <math.h>"]
    for number, suffix in (("double", ""), ("float", "f")):
        for name in names:
            lines += ["#pragma omp declare simd notinbranch", f"extern {number} {name}{suffix}({number});"]
        for name in pairs:
            lines += ["#pragma omp declare simd notinbranch", f"extern {number} {name}{suffix}({number}, {number});"]
    return "\n".join(lines) + "\n"


@cache
def _signature() -> str:
    """What decides, beside the source, what comes out of the compiler and whether it runs here."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True, timeout=_LONGEST).stdout
    return "\n".join([compiler(), version, platform.machine(), _processor(), *_FLAGS])


def _processor() -> str:
    """Model and instructions of the processor, for code is compiled for it alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def compiled(source: str, width: int) -> ctypes.CDLL:
    """The library that a source becomes, from the cache if it is there.

    Args:
        source: C that needs ``W``.
        width: lanes.

    Raises:
        NoCompilerError: if there is no compiler, or it fails.
    """
    text = f"#define W {width}\n{vector_functions()}{source}"
    key = hashlib.sha256(f"{_signature()}\n{text}".encode()).hexdigest()[:40]
    folder = cache_folder()
    if folder is not None:
        try:
            return ctypes.CDLL(str(_kept(folder, key) or _build(text, folder, key)))
        except OSError:
            pass  # the disk is full, or nothing on it may be run
    with tempfile.TemporaryDirectory() as alone:
        try:
            return ctypes.CDLL(str(_build(text, Path(alone), key)))
        except OSError as error:
            raise NoCompilerError(f"what was compiled cannot be kept or loaded ({error})") from error


def _build(text: str, place: Path, key: str) -> Path:
    """Compile beside its place, then rename: another process never sees half a file."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        code, result = Path(folder) / "loop.c", Path(folder) / "loop.so"
        code.write_text(text)
        vector = ["-lmvec"] if "declare simd" in text else []
        command = [compiler(), *_FLAGS, "-o", str(result), str(code), *vector, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoCompilerError(f"the C compiler could not be run ({type(error).__name__})") from error
        if done.returncode or not result.exists():
            said = [line for line in done.stderr.splitlines() if "error" in line] or ["no word of why"]
            raise NoCompilerError(f"the C compiler failed: {said[0][:200]}")
        return result.rename(place / f"{key}-{_digest(result)}.so")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:40]


# ---- the cache ---------------------------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """Where compiled code is kept: ``$PYRO_MANIFOLD_CACHE``, else ``$XDG_CACHE_HOME`` or ``~/.cache``.

    A folder of the user's own that nobody else may write to, for what is in it is run. None if there can be none; then
    nothing is kept.
    """
    given = os.environ.get("PYRO_MANIFOLD_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "pyro_manifold"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _ours(folder, stat.S_ISDIR) and os.access(folder, os.W_OK) else None


def _kept(folder: Path, key: str) -> Path | None:
    """What was compiled before, if it is still what it was: half a file would end the process, not raise."""
    for library in folder.glob(f"{key}-*.so"):
        if _ours(library, stat.S_ISREG):
            if library.stem == f"{key}-{_digest(library)}":
                return library
            library.unlink(missing_ok=True)
    return None


def _ours(path: Path, is_kind: object) -> bool:
    """Whether this is a file or folder of this user, not a link, that nobody else can write to."""
    try:
        status = path.lstat()
    except OSError:
        return False
    owner = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return bool(is_kind(status.st_mode)) and owner and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)  # type: ignore[operator]
