"""Gibbs sampling of the matrix Langevin distribution over columns, independent of Hamiltonian dynamics.

Given the others, a column follows a von Mises–Fisher distribution on the unit sphere orthogonal to them (Hoff, JCGS
2009).
"""

from __future__ import annotations

import numpy as np
import torch

from pyro_manifold.distributions import sample_by_rejection


def von_mises_fisher_cosines(rng, concentrations, dimension):
    """Draw cosines to the mean direction, one for each concentration, by rejection (Wood 1994)."""
    m = dimension - 1
    b = m / (2 * concentrations + np.sqrt(4 * concentrations**2 + m**2))
    x = (1 - b) / (1 + b)
    offset = concentrations * x + m * np.log1p(-(x**2))

    def propose(pending, repeats):
        k = pending.numpy()
        z = rng.beta(m / 2, m / 2, (repeats, len(k)))
        proposal = (1 - (1 + b[k]) * z) / (1 - (1 - b[k]) * z)
        log_ratio = concentrations[k] * proposal + m * np.log1p(-x[k] * proposal) - offset[k]
        return torch.as_tensor(proposal), torch.as_tensor(log_ratio)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        cosines, _ = sample_by_rejection(propose, torch.empty(len(b), dtype=torch.float64))
    return cosines.numpy()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def matrix_langevin(F, chains=200, burn_in=200, sweeps=800, seed=0):
    """Yield, for each sweep, draws ``(chains, n, p)`` of density proportional to exp(tr FᵀX), started at the mode."""
    rng = np.random.default_rng(seed)
    n, p = F.shape
    left, _, right = np.linalg.svd(F, full_matrices=False)
    X = np.broadcast_to(left @ right, (chains, n, p)).copy()
    for sweep in range(-burn_in, sweeps):
        for k in range(p):
            others = np.delete(X, k, axis=2)

            def orthogonal(vectors, others=others):
                return vectors - np.einsum("cnq,cq->cn", others, np.einsum("cnq,cn->cq", others, vectors))

            pull = orthogonal(np.broadcast_to(F[:, k], (chains, n)))
            mean = unit(pull)
            cosines = von_mises_fisher_cosines(rng, np.linalg.norm(pull, axis=1), n - p + 1)[:, None]
            noise = orthogonal(rng.standard_normal((chains, n)))
            noise = unit(noise - mean * (mean * noise).sum(1, keepdims=True))
            X[:, :, k] = cosines * mean + np.sqrt(1 - cosines**2) * noise
        if sweep >= 0:
            yield X
