"""Graphs of tensor operations compiled as C by the system's compiler: whole loops of many chains in one call."""
