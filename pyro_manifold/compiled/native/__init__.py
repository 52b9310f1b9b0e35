"""Graphs of tensor operations compiled as C by the system's compiler: whole loops of many chains in one call."""

from pyro_manifold.compiled.native.bisect import wrong_operator_of
from pyro_manifold.compiled.native.carried import reusing
from pyro_manifold.compiled.native.compilation import compile_function, compile_loop, compile_sum
from pyro_manifold.compiled.native.compiler import (
    NoCompilerError,
    compiled,
    is_checked,
    native_code_is_allowed,
    path_of_compiler,
)
from pyro_manifold.compiled.native.decompositions import decompositions
from pyro_manifold.compiled.native.emit import Loop, source_of
from pyro_manifold.compiled.native.loop import NativeLoop, OutsideArrayError
from pyro_manifold.compiled.native.matrices import each_matrix, part_of
from pyro_manifold.compiled.native.operators import ELEMENTWISE, OPERATORS, Operator, mapped
from pyro_manifold.compiled.native.outlining import shared_statements
from pyro_manifold.compiled.native.rolling import rolled
from pyro_manifold.compiled.native.values import (
    NoSpeedupError,
    Place,
    UnsupportedOperatorError,
    Value,
    entry,
    flat,
    shifted,
    strided,
)
