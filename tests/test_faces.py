"""Each folder has a face, its ``__init__``: other folders and tests import from there, and not from its modules."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.sources import statements

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_manifold"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
PUBLIC_MODULES = {"pyro_manifold.distributions.constraints"}
"""Modules that users import as modules."""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported_modules(path: Path) -> Iterator[str]:
    """Modules of the package, not folders, that a file imports or imports from."""
    for node in statements(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("pyro_manifold"):
            continue
        if (ROOT / (node.module.replace(".", "/") + ".py")).exists():
            yield node.module
        else:
            yield from (name for alias in node.names if is_module(name := f"{node.module}.{alias.name}"))


def is_module(name: str) -> bool:
    """Return whether a name is that of a file, and not of a function that its folder shows in place of it."""
    folder, _, last = name.rpartition(".")
    is_file = (ROOT / (name.replace(".", "/") + ".py")).exists()
    return is_file and isinstance(getattr(importlib.import_module(folder), last, ModuleType("")), ModuleType)


def behind_faces(path: Path) -> list[str]:
    """Modules that a file of the package imports from folders other than its own and those above it."""
    own = dotted(path.parent)
    folders = [(module, module.rpartition(".")[0]) for module in imported_modules(path)]
    return [module for module, folder in folders if not f"{own}.".startswith(f"{folder}.")]


@pytest.mark.parametrize("folder", FOLDERS, ids=dotted)
def test_folders_import_from_faces(folder):
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    found = {path.name: [m for m in behind_faces(path) if m not in PUBLIC_MODULES] for path in files}
    assert not {name: modules for name, modules in found.items() if modules}


@pytest.mark.parametrize("folder", FOLDERS, ids=dotted)
def test_what_a_face_shows_is_explained(folder):
    """Functions and classes have a docstring; names of types and numbers have theirs where they are defined."""
    face = importlib.import_module(dotted(folder))
    shown = {name: value for name, value in vars(face).items() if not name.startswith("_")}
    assert not [name for name, x in shown.items() if (inspect.isfunction(x) or inspect.isclass(x)) and not x.__doc__]


def test_tests_know_faces_alone():
    """Tests of the inside of a module, such as those that replace a part of it by a wrong one, are few."""
    lines = {path: path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")}
    inside = {path for path in lines if set(imported_modules(path)) - PUBLIC_MODULES}
    share = sum(lines[path] for path in inside) / sum(lines.values())
    assert share < 0.1, sorted(str(path.relative_to(ROOT)) for path in inside)
