"""Description of the machine on which a page of figures was measured."""

import importlib.metadata
import os
import platform
from pathlib import Path

PACKAGES = ("torch", "pyro-ppl", "numpyro", "jax", "nutpie", "pymc", "numba", "mici", "geoopt")


def machine(threads):
    """Processor, cores, threads of each process and versions of the packages that are installed, in a line."""
    packages = ", ".join(f"{package} {version}" for package in PACKAGES if (version := version_of(package)))
    return f"{processor()}, {os.cpu_count()} cores, each process on {threads} of them; {packages}"


def version_of(package):
    """Return the version of a package, or None if it is not installed, such as one of the extra bench."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor():
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return models[0] if models else platform.processor() or platform.machine()


def confine(threads):
    """Keep this process and those that it starts to so many cores: no setting stops all threads of libraries."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
