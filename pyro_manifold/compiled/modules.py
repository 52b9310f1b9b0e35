"""Graphs as modules, whose code in Python is written when they are first called, and not after each pass."""

from __future__ import annotations

from torch.fx import GraphModule

try:
    from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule
except ImportError:  # another version of torch: the code is written each time, a third of the time of long graphs
    LazyGraphModule = GraphModule  # type: ignore[misc, assignment]
