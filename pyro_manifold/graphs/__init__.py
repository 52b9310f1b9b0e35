"""Graphs of functions of tensors: tracing, constant folding, compilation, and comparison with the function."""
