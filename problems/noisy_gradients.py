"""Gradient noise of known variance, by a plate that subsamples, and its exact effect on a stationary distribution."""

from functools import cache

import numpy as np
import pyro
import torch
from scipy.linalg import solve_discrete_lyapunov

POPULATION = 4096


@cache
def _population(shape, dtype):
    """Return vectors with mean 0 and variance 1 in each entry, up to rounding."""
    noise = torch.randn(POPULATION, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    noise = noise - noise.mean(0)
    return (noise / noise.square().mean(0).sqrt()).to(dtype)


def gradient_noise(name, value, scale):
    """Add noise of standard deviation ``scale`` to each entry of the gradient with respect to a site, new at each step.

    A plate of N vectors zᵢ draws one of them: its estimate of Σᵢ zᵢ·value, which is 0, has the gradient N zᵢ.
    """
    with pyro.plate(f"{name} noise", POPULATION, subsample_size=1) as one:
        noise = _population(value.shape, value.dtype)[one]
        pyro.factor(f"{name} noise factor", scale / POPULATION * (noise * value).reshape(1, -1).sum(1))


def exact_variance(integrator, ε, noise, friction):
    """Return the variance of x in the stationary distribution, for U = x²/2 with the gradient x + noise·z.

    Args:
        integrator: ``"splitting"``, ``"euler"`` or ``"SGLD"``.
        ε: time of a drift, which for SGLD is the root of its step size.
        noise: standard deviation of the gradient's noise, z standard normal and new at each step.
        friction: α.
    """
    if integrator == "SGLD":
        a = 1 - ε**2 / 2
        return (ε**2 + (ε**2 / 2 * noise) ** 2) / (1 - a**2)
    if integrator == "euler":
        move = np.array([[1, ε], [-ε, 1 - friction - ε**2]])
        return solve_discrete_lyapunov(move, np.diag([0, 2 * friction + (ε * noise) ** 2]))[0, 0]
    # The state is (position, momentum, noise of the gradient): both kicks at a position have the same noise.
    keep = np.exp(-friction)
    kick = np.array([[1, 0, 0], [-ε / 2, 1, -ε / 2 * noise], [0, 0, 1]])
    drift = np.array([[1, ε / 2, 0], [0, 1, 0], [0, 0, 1]])
    forget = np.diag([1, 1, 0])
    move = kick @ forget @ drift @ np.diag([1, keep, 1]) @ drift @ kick
    from_friction = kick @ forget @ drift @ [0, np.sqrt(1 - keep**2), 0]
    from_gradient = kick @ [0, 0, 1]
    forcing = np.outer(from_friction, from_friction) + np.outer(from_gradient, from_gradient)
    return solve_discrete_lyapunov(move, forcing)[0, 0]
