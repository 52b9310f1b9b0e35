"""Compares the files of the wheel and of the sdist in dist/ with those of the repository: `make dist` runs it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE = "pyro_manifold"
NEEDED = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
"""Files of the sdist besides the package."""


def faults_of_wheel(names: set[str], tracked: set[str]) -> list[str]:
    """Return messages about files that a wheel lacks, and about files that do not belong there."""
    package = {name for name in tracked if name.startswith(f"{PACKAGE}/")}
    others = {name for name in names if not name.split("/")[0].startswith(f"{PACKAGE}-")}  # not .dist-info
    return [f"the wheel lacks {name}" for name in sorted(package - others)] + [
        f"the wheel has {name}, which is no tracked file of the package" for name in sorted(others - package)
    ]


def faults_of_sdist(names: set[str], tracked: set[str]) -> list[str]:
    """Return messages about files that an sdist lacks, and about folders that do not belong there."""
    needed = {name for name in tracked if name.startswith(f"{PACKAGE}/")} | set(NEEDED)
    strange = {name for name in names if name.startswith(("tests/", "benchmarks/", "problems/", "shared/"))}
    return [f"the sdist lacks {name}" for name in sorted(needed - names)] + [
        f"the sdist has {name}" for name in sorted(strange)
    ]


def main(folder: Path) -> int:
    """Print the faults; return 1 if there are any."""
    tracked = set(subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines())
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        faults = faults_of_wheel(set(opened.namelist()), tracked)
    with tarfile.open(sdist) as archive:
        faults += faults_of_sdist({name.partition("/")[2] for name in archive.getnames()}, tracked)
    print("\n".join(faults) or f"{wheel.name} and {sdist.name} have the files of the package and no others.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
