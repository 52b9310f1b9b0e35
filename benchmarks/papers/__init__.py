"""Experiments of papers, made again."""
