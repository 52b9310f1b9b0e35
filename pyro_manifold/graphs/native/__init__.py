"""Graphs of tensor operations as C, compiled by the system's compiler: whole loops of many chains in one call."""
