"""Descents of many starts at once, on manifolds."""
