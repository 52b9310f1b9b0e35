"""Checks of the files of wheel and sdist see what is missing and what does not belong there."""

import runpy
import tomllib
from pathlib import Path

import yaml

CONTENTS = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "contents.py"))
TRACKED = {"pyro_manifold/a.py", "pyro_manifold/py.typed", "pyro_manifold/compiled/native/lanes.h", "tests/test_a.py"}
PACKAGE = {name for name in TRACKED if name.startswith("pyro_manifold/")}


def test_wheels():
    faults = CONTENTS["faults_of_wheel"]
    assert faults(PACKAGE | {"pyro_manifold-0.2.0.dist-info/METADATA"}, TRACKED) == []
    assert faults(PACKAGE - {"pyro_manifold/compiled/native/lanes.h"}, TRACKED) == [
        "the wheel lacks pyro_manifold/compiled/native/lanes.h"
    ]
    assert len(faults(PACKAGE | {"tests/test_a.py", "problems/models.py"}, TRACKED)) == 2


def test_sdists():
    faults, needed = CONTENTS["faults_of_sdist"], set(CONTENTS["NEEDED"])
    assert faults(PACKAGE | needed, TRACKED) == []
    assert faults(PACKAGE | needed - {"LICENSE"} | {"tests/test_a.py"}, TRACKED) == [
        "the sdist lacks LICENSE",
        "the sdist has tests/test_a.py",
    ]


def test_versions_agree():
    root = Path(__file__).parents[1]
    version = runpy.run_path(str(root / "pyro_manifold" / "version.py"))["__version__"]
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    for page in ("README.md", "docs/index.md"):
        assert f"version = {{{version}}}" in (root / page).read_text()
    assert f"\n## {version} — " in (root / "CHANGELOG.md").read_text()


def test_the_recipe_for_conda_has_the_version_and_the_requirements_of_the_project():
    """Names on conda-forge are those of PyPI, but for torch."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((root / "packaging" / "recipe.yaml").read_text())
    version = runpy.run_path(str(root / "pyro_manifold" / "version.py"))["__version__"]
    assert recipe["context"]["version"] == version
    _, *required = recipe["requirements"]["run"]
    assert [line.replace(" ", "").replace("pytorch>", "torch>") for line in required] == project["dependencies"]
