"""Importance sampling from uniform orthonormal matrices, in NumPy alone."""

import numpy as np


def haar(rng, count, n, p):
    """Draw uniform orthonormal matrices ``(count, n, p)``, by QR with positive diagonal."""
    q, r = np.linalg.qr(rng.standard_normal((count, n, p)))
    return q * np.sign(np.einsum("...ii->...i", r))[:, None, :]


def weighted_mean(values, log_weights):
    """Return the estimate of self-normalised importance sampling and its standard error (delta method)."""
    values, log_weights = np.asarray(values), np.asarray(log_weights)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ values
    return float(mean), float(np.sqrt(weights**2 @ (values - mean) ** 2))
