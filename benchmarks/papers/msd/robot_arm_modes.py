"""In which mode of the robot arm's posterior a run sits.

Turning the signs of a hidden unit or exchanging two leaves network and prior as they are, so each mode has 2⁸·8!
copies. All have the same log density, and that is what names the mode.
"""

import numpy as np
import torch

from benchmarks.papers.msd.robot_arm_model import climbed, log_density

TOLERANCE = 0.1
"""Log densities of two modes that count as one."""


def mode_levels(vectors, arm):
    """Log density of the mode above each of some flat weights ``(runs, 42)``, ``(runs,)``."""
    modes = torch.stack([climbed(vector, arm, max_nfev=2000, ftol=1e-10, xtol=1e-10) for vector in vectors])
    return log_density(modes, arm).numpy()


def labels(levels):
    """For each log density the highest one of its mode; gaps of more than `TOLERANCE` divide modes."""
    levels = np.asarray(levels)
    order = np.argsort(levels)[::-1]
    first = np.append(True, -np.diff(levels[order]) > TOLERANCE)
    named = np.empty_like(levels)
    named[order] = levels[order][first][np.cumsum(first) - 1]
    return named
