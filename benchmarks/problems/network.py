"""The network eigenmodel of Hoff 2009: links of a graph by orthonormal columns, their eigenvalues and an intercept."""

from functools import partial

import numpy as np

from benchmarks.problems.problem import Problem
from benchmarks.problems.truths import long_run
from examples.datasets import data_folder

NETWORK = "network 270×3"
MISSING = f"{NETWORK}: left out, it needs protein_network/hoff.dat in the folder that PYRO_MANIFOLD_DATA names"


def eigenmodel(name, adjacency, pairs=(), truths=dict):
    """Links of a symmetric ``adjacency``; ``pairs`` of its upper triangle have their logits among the functionals."""
    rows, columns = np.triu_indices(len(adjacency), 1)
    observed = adjacency[rows, columns]

    def log_density(X, v, xp):
        """Eigenvalues and intercept in v; priors N(0, 16²) and N(0, 10²)."""
        eigenvalues, intercept = v[:3], v[3]
        logits = intercept + ((X * eigenvalues) @ X.T)[rows, columns]
        likelihood = (xp.asarray(observed) * logits - xp.logaddexp(xp.zeros_like(logits), logits)).sum()
        return likelihood - 0.5 * (eigenvalues**2).sum() / 16.0**2 - 0.5 * intercept**2 / 10.0**2

    def logit(k):
        i, j = rows[k], columns[k]
        return lambda X, v: v[..., 3] + (X[..., i, :] * v[..., :3] * X[..., j, :]).sum(-1)

    functionals = {f"λ{k}": (lambda X, v, k=k: np.sort(v[..., :3], -1)[..., k]) for k in range(3)}
    functionals["intercept"] = lambda X, v: v[..., 3]
    functionals |= {f"logit {k}": logit(k) for k in pairs}
    return Problem(name, (len(adjacency), 3), 4, log_density, functionals, truths)


def links():
    """The protein interactions of Hoff, a symmetric matrix of zeros and ones; None where the data are not there."""
    path = data_folder() / "protein_network" / "hoff.dat"
    return np.loadtxt(path) if path.exists() else None


def network():
    """The eigenmodel of these."""
    adjacency = links()
    if adjacency is None:
        return None
    pairs = (0, 5000, 12000, 20000, 30000)
    return eigenmodel(NETWORK, adjacency, pairs, partial(long_run, NETWORK))
