"""Runs on disk: what their files are, how they are written and how they are read. Nothing of kernels, no pickle."""
