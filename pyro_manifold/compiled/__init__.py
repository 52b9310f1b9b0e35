"""Functions of tensors as verified graphs, vectorised over rows, and as compiled loops of many chains.

It imports neither Pyro nor the rest of the package. `vectorise` makes a function of one row one of many rows, and
`compile_loop` and `compile_sum` compile functions of one chain as C. Each is compared with the function, and what
cannot be compiled has an error or a warning with the reason.
"""

from pyro_manifold.compiled.agreement import FactorisationError, FlatFunction, agrees, effect_of_rounding
from pyro_manifold.compiled.broadcast_sinking import BROADCAST_SINKING
from pyro_manifold.compiled.broadcasting import broadcast_shapes
from pyro_manifold.compiled.large_matrices import by_matrix
from pyro_manifold.compiled.lowering import vmapped
from pyro_manifold.compiled.native import NativeLoop, compile_loop, compile_sum
from pyro_manifold.compiled.operations import first_other_operation
from pyro_manifold.compiled.passes import (
    DEAD_CODE,
    FORWARD_MODE,
    PRODUCTS,
    SIMPLIFICATION,
    VECTORISATION,
    WITHOUT_STRIDES,
    Pass,
    folded_graph,
    run,
    simplified,
)
from pyro_manifold.compiled.policy import CompilationPolicy
from pyro_manifold.compiled.refusals import NotTraced
from pyro_manifold.compiled.rewriting import ATEN, call, rewrite, writes
from pyro_manifold.compiled.rounding import with_other_rounding
from pyro_manifold.compiled.tracing import copied_graph, recorder_works, trace
from pyro_manifold.compiled.vectorisation import Vectorised, vectorise
from pyro_manifold.compiled.verified import Labels, NotAFunctionError, Verified, compiled, reason
