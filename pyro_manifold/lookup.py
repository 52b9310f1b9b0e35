"""Names that a module has without importing them: those that `contrib` adds to it, and those of Pyro at its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def looked_up(
    module: str, contributed: Mapping[str, Sequence[str]], *, of_pyro: bool = True
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a module; names are looked up when they are first used.

    Args:
        module: its name, such as ``"pyro_manifold.infer"``.
        contributed: names by the module of `pyro_manifold.contrib` that has them.
        of_pyro: whether the module also has the public names of Pyro's module at the same path.
    """
    homes = {name: f"pyro_manifold.contrib.{home}" for home, names in contributed.items() for name in names}
    path = module.removeprefix("pyro_manifold.")

    def names_of_pyro() -> list[str]:
        return [name for name in import_module(f"pyro.{path}").__all__ if name[0] != "_"] if of_pyro else []

    def look_up(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        if name in names_of_pyro():
            return getattr(import_module(f"pyro.{path}"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def all_names() -> list[str]:
        return sorted({*vars(import_module(module)), *homes, *names_of_pyro()})

    return look_up, all_names
