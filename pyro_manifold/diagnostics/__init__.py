"""What draws say about themselves."""

from pyro_manifold.diagnostics.agreement import disagreements
from pyro_manifold.diagnostics.arviz import to_inferencedata

__all__ = ["disagreements", "to_inferencedata"]
