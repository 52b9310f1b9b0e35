"""Slice sampling along geodesics: no gradient, no step size."""
