"""Yanush & Kropotov (arXiv 1901.08045): OHMC and OSGHMC."""
