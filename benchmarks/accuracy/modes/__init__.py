"""Modes: whether all are found, weighted and told apart."""
