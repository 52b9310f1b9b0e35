"""The problems that several floors sample."""
