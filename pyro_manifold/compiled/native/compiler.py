"""The system's C compiler, and a cache of compiled libraries."""

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import math
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_FLAGS = (
    # -O2 takes twice as long to compile, and steps are no faster: the source is vectorised already.
    *("-std=gnu11", "-O1", "-ftree-vectorize", "-march=native", "-fPIC", "-shared", "-w"),
    # errno and traps are not used. Not -ffast-math: NaN and infinities must be kept.
    *("-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"),
)
_LONGEST = 120  # seconds
_ABANDONED = 3600  # seconds, long after which a build is no longer in progress
_UNFINISHED = "build-"
_MEGABYTES_KEPT = 256  # some thousands of libraries
_VECTOR_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "log"),
    *("log10", "log1p", "log2", "sin", "sinh", "tan", "tanh"),
)
_OF_TWO = ("atan2", "pow")


class NoCompilerError(Exception):
    """Error if there is no C compiler, or it failed; the message is for a warning."""


@cache
def path_of_compiler() -> str:
    """Return the path of the C compiler: ``$CC``, else cc, gcc or clang.

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
    """Return declarations of the vector math functions of the C library, where it has them."""
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
    """Return all that determines, other than the source, the output of the compiler and whether it runs here."""
    version = subprocess.run([path_of_compiler(), "--version"], capture_output=True, text=True, timeout=_LONGEST).stdout
    return "\n".join([path_of_compiler(), version, platform.machine(), _processor(), *_FLAGS])


def _processor() -> str:
    """Return model and instruction sets of the processor, for which code is specialised."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def native_code_is_allowed() -> bool:
    """Return False if the environment variable ``PYRO_MANIFOLD_NATIVE=0`` disables native code, else True."""
    return os.environ.get("PYRO_MANIFOLD_NATIVE", "1") != "0"


def is_checked() -> bool:
    """Return whether ``$PYRO_MANIFOLD_CHECKED`` requests code that checks the bounds of each array access."""
    return os.environ.get("PYRO_MANIFOLD_CHECKED", "") not in ("", "0")


def compiled(source: str, width: int, checked: bool = False) -> ctypes.CDLL:
    """Compile a source to a library, or load it from the cache.

    Args:
        source: C that needs ``W``.
        width: number of lanes.
        checked: whether accesses outside of arrays are detected.

    Raises:
        NoCompilerError: if there is no compiler, or it fails.
    """
    text = f"{'#define CHECKED' if checked else ''}\n#define W {width}\n{vector_functions()}{source}"
    key = hashlib.sha256(f"{_signature()}\n{text}".encode()).hexdigest()[:40]
    folder = cache_folder()
    if folder is not None:
        limit = cache_limit()
        try:
            kept = _kept(folder, key)
            library = _loaded(kept or _build(text, folder, key))
            if kept is None:
                _remove_oldest(folder, limit)
            return library
        except OSError:
            pass  # the disk is full or mounted noexec, or another process has removed the file
    with tempfile.TemporaryDirectory() as alone:
        try:
            return _loaded(_build(text, Path(alone), key))
        except OSError as error:
            raise NoCompilerError(f"the compiled library cannot be stored or loaded ({error})") from error


def _loaded(path: Path) -> ctypes.CDLL:
    """Load a library that is unloaded with the last of its functions, each of which keeps it alive."""
    library = ctypes.CDLL(str(path))
    if hasattr(_ctypes, "dlclose"):  # not on Windows
        weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library


def _build(text: str, place: Path, key: str) -> Path:
    """Compile next to the final path, then rename: another process never sees an incomplete file."""
    with tempfile.TemporaryDirectory(dir=place, prefix=_UNFINISHED) as folder:
        code, result = Path(folder) / "loop.c", Path(folder) / "loop.so"
        code.write_text(text)
        vector = ["-lmvec"] if "declare simd" in text else []
        command = [path_of_compiler(), *_FLAGS, "-o", str(result), str(code), *vector, "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoCompilerError(f"the C compiler could not be run ({type(error).__name__})") from error
        if done.returncode or not result.exists():
            errors = [line for line in done.stderr.splitlines() if "error" in line] or ["without an error message"]
            raise NoCompilerError(f"the C compiler failed: {errors[0][:200]}")
        result.chmod(0o700)  # independent of the umask: files that a group may write to are not loaded
        return result.rename(place / f"{key}-{_digest(result)}.so")


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()[:40]


# ---- the cache ---------------------------------------------------------------------------------------------------


def cache_folder() -> Path | None:
    """Return the folder of the cache: ``$PYRO_MANIFOLD_CACHE``, else ``$XDG_CACHE_HOME`` or ``~/.cache``.

    It must be owned by the user and writable by the user alone, since its content is executed. None if there is no such
    folder; then nothing is cached.
    """
    given = os.environ.get("PYRO_MANIFOLD_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(given) if given else (Path(base) if base else Path.home() / ".cache") / "pyro_manifold"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if _is_private(folder, stat.S_ISDIR) and os.access(folder, os.W_OK) else None


def cache_limit() -> int:
    """Return the size limit of the cache in bytes: ``$PYRO_MANIFOLD_CACHE_SIZE`` megabytes, else 256.

    Raises:
        NoCompilerError: if that is not a number, or negative.
    """
    given = os.environ.get("PYRO_MANIFOLD_CACHE_SIZE") or str(_MEGABYTES_KEPT)
    try:
        megabytes = float(given)
    except ValueError:
        megabytes = math.nan
    if not 0 <= megabytes < math.inf:
        raise NoCompilerError(f"PYRO_MANIFOLD_CACHE_SIZE={given!r} in the environment, expected megabytes, 0 or more")
    return int(megabytes * 2**20)


def _remove_oldest(folder: Path, limit: int) -> None:
    """Remove least recently used libraries until the rest is within a limit, and abandoned builds.

    A process that has loaded one keeps it; a process that has found but not yet loaded it compiles it again.
    """
    found = sorted((used, size, path) for path, used, size in _entries(folder, "*.so"))
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= limit:
            break
        path.unlink(missing_ok=True)
        total -= size
    for path, begun, _ in _entries(folder, f"{_UNFINISHED}*"):
        if begun < time.time() - _ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _entries(folder: Path, pattern: str) -> Iterator[tuple[Path, float, int]]:
    """Yield path, time of the last change and size of each file, as long as it exists."""
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            status = path.lstat()
            yield path, status.st_mtime, status.st_size


def _kept(folder: Path, key: str) -> Path | None:
    """Return a cached library if its content is unchanged: an incomplete file would crash the process."""
    for library in folder.glob(f"{key}-*.so"):
        if _is_private(library, stat.S_ISREG):
            if library.stem == f"{key}-{_digest(library)}":
                os.utime(library)  # the time of last use for `_remove_oldest`
                return library
            library.unlink(missing_ok=True)
    return None


def _is_private(path: Path, is_kind: object) -> bool:
    """Return whether this is a file or folder of this user, not a link, and writable by this user alone."""
    try:
        status = path.lstat()
    except OSError:
        return False
    owner = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    return bool(is_kind(status.st_mode)) and owner and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)  # type: ignore[operator]
