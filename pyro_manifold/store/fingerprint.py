"""Whether two programs and their data are the same, told by a short word for each part that is the same in any process.

Of a function that is its code, what it has enclosed, and what it names in its module, functions of the same project
included; of a tensor its type, shape and numbers; of an object its attributes. Comments, line numbers, docstrings and
type hints do not count. Of libraries only their names do.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.store.nested import array_of

_LIBRARIES = tuple({Path(path).resolve() for path in sysconfig.get_paths().values()})
_OWN = __name__.partition(".")[0]
_NOT_SETTINGS = ("model", "potential_fn", "transforms", "_run", "_record", "_given_params")
"""Attributes of a kernel that have a fingerprint of their own, or change from run to run."""

_HOLDERS_OF_DATA = ("types", "argparse", "functools", "collections", "torch", "pyro", _OWN, "sklearn", "numpy")
"""Libraries whose objects are told by their attributes; those of others, such as loggers, by their type."""


def fingerprint(value: object) -> str:
    """A word that is another if the value is; where it is a function or object of an installed package, that counts."""
    digest = _Digest(_package(value))
    digest.take(value)
    return digest.word


def _package(value: object) -> str:
    """Where a function or the type of an object comes from."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]


def described(value: object) -> str:
    """A fingerprint with what a reader knows the value by."""
    if isinstance(value, Tensor | np.ndarray):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind} {tuple(value.shape)}, {fingerprint(value)}"
    if isinstance(value, bool | int | float | str | None) and len(repr(value)) < 40:
        return repr(value)
    return f"{type(value).__name__}, {fingerprint(value)}"


class _Digest:
    """Takes in values one after the other; code of one package counts though it is installed."""

    def __init__(self, package: str = "__main__") -> None:
        self._package = package
        self._hash = hashlib.blake2b(digest_size=8)
        self._seen: dict[int, int] = {}
        self._kept: list[object] = []  # an object that is gone may leave its address to another

    @property
    def word(self) -> str:
        return self._hash.hexdigest()

    def _is_library(self, module: str | None) -> bool:
        if module is None:  # of a program that was executed from its text
            return False
        root = module.partition(".")[0]
        return _is_installed(module) and (root != self._package or root in (*_HOLDERS_OF_DATA, "builtins"))

    def _say(self, *words: object) -> None:
        for word in words:
            content = str(word).encode()
            self._hash.update(len(content).to_bytes(8, "little") + content)

    def take(self, value: object) -> None:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self._say("seen", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        self._take_object(value)

    def _take_object(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._take_array("tensor", value.dtype, array_of(value.to_dense() if value.is_sparse else value))
        elif isinstance(value, np.ndarray):
            self._take_array("array", value.dtype, value)
        elif isinstance(value, Mapping):
            self._say("mapping", len(value))
            for key in sorted(value, key=repr):
                self.take(key)
                self.take(value[key])
        elif isinstance(value, set | frozenset):
            self._say("set", *sorted(map(fingerprint, value)))
        elif isinstance(value, list | tuple):
            self._say(type(value).__name__, len(value))
            for part in value:
                self.take(part)
        elif isinstance(value, functools.partial):
            self._say("partial")
            self.take((value.func, value.args, value.keywords))
        elif isinstance(value, types.MethodType):
            self._say("method")
            self.take((value.__self__, value.__func__))
        elif isinstance(value, types.FunctionType):
            self._take_function(value)
        elif isinstance(value, type):
            self._take_class(value)
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType):
            self._say(value.__name__)
        elif callable(getattr(value, "__array__", None)):  # a data frame
            self._say(type(value).__qualname__)
            self.take(np.asarray(value))
            self.take([str(column) for column in getattr(value, "columns", ())])
        else:
            self._take_attributes(value)

    def _take_array(self, kind: str, dtype: object, array: Any) -> None:
        self._say(kind, dtype, array.shape)
        if array.dtype.kind == "O":
            self.take(array.tolist())
        elif array.size:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def _take_class(self, value: type) -> None:
        self._say("class", value.__module__, value.__qualname__)
        if not self._is_library(value.__module__):
            self.take([base for base in value.__bases__ if base is not object])
            for name, part in sorted(vars(value).items()):
                if isinstance(part, classmethod | staticmethod):
                    part = part.__func__
                part = part.fget if isinstance(part, property) else part
                if not name.startswith("__") or name in ("__init__", "__call__"):
                    self._say(name)
                    self.take(part)

    def _take_attributes(self, value: Any) -> None:
        kind = type(value)
        self._say("object", kind.__module__, kind.__qualname__)
        if isinstance(value, torch.Generator):
            return  # its numbers are those of the run
        library = self._is_library(kind.__module__)
        if library and not kind.__module__.startswith(_HOLDERS_OF_DATA):
            return
        if not library:
            self.take(kind)
        self.take({str(name): part for name, part in getattr(value, "__dict__", {}).items()})

    def _take_function(self, function: types.FunctionType) -> None:
        self._say("function", function.__qualname__)
        if self._is_library(function.__module__):
            self._say(function.__module__)
            return
        self._take_code(function.__code__)
        self.take(function.__defaults__)
        self.take(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self.take(_content(cell))
        for name in sorted(set(_names(function.__code__))):
            if name in function.__globals__:
                self._say(name)
                self.take(function.__globals__[name])

    def _take_code(self, code: types.CodeType) -> None:
        """Instructions with what they are about; places in tables would depend on whether there is a docstring."""
        self._say(*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], code.co_flags)
        for instruction in dis.get_instructions(code):
            self._say(instruction.opname)
            if isinstance(instruction.argval, types.CodeType):
                self._take_code(instruction.argval)
            elif instruction.opcode in dis.hasconst:
                self.take(instruction.argval)
            else:
                self._say(instruction.argrepr or instruction.arg)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # of a function that is defined later
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module is installed, and not a user's own."""
    if module == "__main__":  # though a program that is installed may have started it
        return False
    if module.partition(".")[0] in (_OWN, "builtins"):
        return True
    found: Any = sys.modules.get(module)
    origin = getattr(found, "__file__", None)
    if origin is None:
        return module in sys.builtin_module_names
    return any(parent in _LIBRARIES for parent in Path(origin).resolve().parents)


def parts_of(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], **others: object) -> dict[str, str]:
    """What a run depends on beside the numbers among its kernel's settings, each part described by itself.

    Args:
        kernel: with a ``model`` or a ``potential_fn``.
        args: the model's arguments, by their names where its signature tells them.
        kwargs: its arguments by name.
        **others: further parts; None where there is none.
    """
    model = kernel.model or kernel.potential_fn
    names = _argument_names(getattr(model, "forward", model))
    arguments = {names[index] if index < len(names) else f"{index}": value for index, value in enumerate(args)}
    settings = {
        name: value
        for name, value in vars(kernel).items()
        if name not in _NOT_SETTINGS and (callable(value) or isinstance(value, Mapping))
    }
    parts = {"the model's code": fingerprint(model), "the kernel's functions": fingerprint(settings)}
    parts |= {f"the argument '{name}'": described(value) for name, value in {**arguments, **kwargs}.items()}
    return {**parts, **{name: described(value) for name, value in others.items() if value is not None}}


def _argument_names(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable that does not tell
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]
