"""The version of the package, for its face and for stored runs."""

__version__ = "0.1.0"
