"""Graphs of functions of tensors: tracing, constant folding, compilation, and comparison with the function."""

from pyro_manifold.graphs.agreement import FactorisationError, FlatFunction, agrees, effect_of_rounding
from pyro_manifold.graphs.broadcast_sinking import BROADCAST_SINKING
from pyro_manifold.graphs.lowering import vmapped, without_fallback_warnings
from pyro_manifold.graphs.operations import first_other_operation
from pyro_manifold.graphs.passes import (
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
from pyro_manifold.graphs.refusals import NotTraced
from pyro_manifold.graphs.rewriting import ATEN, call, rewrite, writes
from pyro_manifold.graphs.rounding import with_other_rounding
from pyro_manifold.graphs.tracing import recorder_works, trace
from pyro_manifold.graphs.verified import Labels, NotAFunctionError, Verified, compiled, reason, row_by_row
