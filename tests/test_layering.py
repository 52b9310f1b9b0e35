"""Imports point one way: the files and folders of each folder can be put in an order, late imports counted."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.sources import statements

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pyro_manifold"
CONTRIB = PACKAGE / "contrib"


def file_of(module: str) -> Path | None:
    """The file of a module of the package."""
    path = ROOT / module.replace(".", "/")
    candidates = path.with_suffix(".py"), path / "__init__.py"
    return next((file for file in candidates if file.is_relative_to(PACKAGE) and file.exists()), None)


def imports(source: str) -> Iterator[Path]:
    """Files of the package that source imports anywhere: at its top, in functions, for annotations."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            pairs = [(f"{node.module}.{alias.name}", node.module) for alias in node.names]
        else:
            pairs = [(alias.name, "") for alias in node.names] if isinstance(node, ast.Import) else []
        for nearer, wider in pairs:
            file = file_of(nearer) or file_of(wider)
            if file is not None:
                yield file


def is_lazy(file: Path, other: Path) -> bool:
    """Whether a face names what contrib/ adds to it: for type checkers; it is looked up when it is first used."""
    faces = {PACKAGE / "infer" / "__init__.py", PACKAGE / "diagnostics" / "__init__.py"}
    return file in faces and other.is_relative_to(CONTRIB)


@cache
def arrows() -> list[tuple[Path, Path]]:
    """Each file and one that it imports; read by the tests, as every worker collects this file."""
    return [
        (file, other)
        for file in PACKAGE.rglob("*.py")
        for other in imports(file.read_text())
        if other != file and not is_lazy(file, other)
    ]


FOLDERS = sorted({file.parent for file in PACKAGE.rglob("*.py")})


def rooms(folder: Path, pairs: list[tuple[Path, Path]]) -> dict[str, set[str]]:
    """Return, by name, the imports between files and folders of a folder; ``__init__`` counts as one of them."""
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        if one.is_relative_to(folder) and other.is_relative_to(folder):
            first, second = (path.relative_to(folder).parts[0] for path in (one, other))
            if first != second:
                found.setdefault(first, set()).add(second)
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_imports_go_no_way_round(folder):
    try:
        list(TopologicalSorter(rooms(folder, arrows())).static_order())
    except CycleError as error:
        pytest.fail(f"{folder.relative_to(ROOT)}: {' -> '.join(reversed(error.args[1]))}")


def test_late_imports_are_seen():
    source = "def later():\n    from pyro_manifold.manifolds.stiefel import Stiefel\n    return Stiefel"
    assert list(imports(source)) == [PACKAGE / "manifolds" / "stiefel.py"]


def test_a_circle_is_seen():
    circle = [(PACKAGE / "a.py", PACKAGE / "b/c.py"), (PACKAGE / "b/d.py", PACKAGE / "a.py")]
    with pytest.raises(CycleError):
        list(TopologicalSorter(rooms(PACKAGE, circle)).static_order())


def test_compiled_imports_neither_pyro_nor_the_rest():
    files = sorted((PACKAGE / "compiled").rglob("*.py"))
    nodes = [(file, node) for file in files for node in ast.walk(ast.parse(file.read_text()))]
    modules = [(file, node.module or "") for file, node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [(file, alias.name) for file, node in nodes if isinstance(node, ast.Import) for alias in node.names]
    own = "pyro_manifold.compiled"
    others = [
        (file.name, m)
        for file, m in modules
        if m.split(".")[0].startswith("pyro") and not f"{m}.".startswith(f"{own}.")
    ]
    assert not others


def test_compiled_runs_without_pyro():
    """It is imported from the package, whose own face imports Pyro: here under the name of a package of its own."""
    code = (
        "import importlib.util, sys, types\n"
        "package = types.ModuleType('pyro_manifold')\n"
        f"package.__path__ = [{str(PACKAGE)!r}]\n"
        "sys.modules['pyro_manifold'] = package\n"
        "import torch\n"
        "from pyro_manifold.compiled import vectorise\n"
        "many = vectorise(lambda x: (x.square().sum(),), [torch.randn(4, 3)])\n"
        "assert many.backend == 'traced' and many(torch.ones(4, 3))[0].tolist() == [3.0] * 4\n"
        "assert 'pyro' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_core_does_not_import_contrib():
    core = [(file, other) for file, other in arrows() if not file.is_relative_to(CONTRIB) and file.parent != PACKAGE]
    assert not [(file, other) for file, other in core if other.is_relative_to(CONTRIB)]
