"""Matplotlib for programs without a display."""


def pyplot():
    """Return the module `matplotlib.pyplot`, which then draws into files."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
