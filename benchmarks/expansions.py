"""Orthonormal factors of an unconstrained matrix: how packages that know no manifold sample one.

    python -m benchmarks.expansions

Each function takes Z ``(n, p)`` to an orthonormal X of the same span that is uniform for a Gaussian Z, so that a
density of X may be sampled through Z. The command prints what value and gradient cost by each of them in JAX.
"""

from __future__ import annotations

from benchmarks.tables import show
from benchmarks.timing import best_time

PREFACE = """\
Value and gradient of a linear density of X through Z, `jax.jit(jax.vmap(jax.value_and_grad(...)))`, in
microseconds. Polar factors are one distribution of Z, Q of Z = QR by Cholesky's factor of ZᵀZ another; NumPyro's
NUTS needs as many gradients for an effective draw by either. Newton and Schulz's iteration has not converged where Z
is nearly singular, and is here for its time only.
"""
COLUMNS = ("n", "p", "chains", "closed form", "eigenvalues", "Newton–Schulz", "Cholesky")
CASES = ((3, 2), (10, 3), (50, 5), (200, 10))


def closed_form(Z, xp):
    """The polar factor Z (ZᵀZ)^(-1/2) of one or two columns, in any array module.

    By Cayley and Hamilton, A^(-1/2) = ((tr A + s) I - A) / (s √(tr A + 2s)) with s = √det A, of a 2×2 matrix A.
    """
    if Z.shape[-1] == 1:
        return Z / xp.sqrt((Z**2).sum())
    left, right = Z[:, 0], Z[:, 1]
    a, b, d = (left * left).sum(), (left * right).sum(), (right * right).sum()
    root = xp.sqrt(a * d - b * b)
    scale = 1 / (root * xp.sqrt(a + d + 2 * root))
    columns = [(left * (d + root) - right * b) * scale, (right * (a + root) - left * b) * scale]
    return xp.stack(columns, -1)


def by_eigenvalues(Z, xp):
    """The polar factor by the p×p eigenproblem."""
    eigenvalues, basis = xp.linalg.eigh(Z.T @ Z)
    return Z @ (basis / xp.sqrt(eigenvalues)) @ basis.T


def by_newton_schulz(Z, xp, iterations=20):
    """The polar factor by products alone; it has not converged where Z is nearly singular."""
    p = Z.shape[-1]
    gram = Z.T @ Z
    size = xp.trace(gram)
    root, inverse = gram / size, xp.eye(p)
    for _ in range(iterations):
        correction = (3 * xp.eye(p) - inverse @ root) / 2
        root, inverse = root @ correction, correction @ inverse
    return Z @ inverse / xp.sqrt(size)


def by_cholesky(Z, xp):
    """The Q of Z = QR, whose R is the Cholesky factor of ZᵀZ."""
    from jax.scipy.linalg import solve_triangular

    return solve_triangular(xp.linalg.cholesky(Z.T @ Z), Z.T, lower=True).T


def fastest(p):
    """Of the functions above, the one by which JAX is fastest."""
    return closed_form if p <= 2 else by_cholesky


def microseconds(expansion, n, p, chains):
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    F, Z = rng.standard_normal((n, p)), rng.standard_normal((chains, n, p))
    function = jax.jit(jax.vmap(jax.value_and_grad(lambda z: (F * expansion(z, jnp)).sum())))
    return 1e6 * best_time(lambda: jax.block_until_ready(function(Z)))


def rows(cases):
    for n, p in cases:
        for chains in (1, 64):
            closed = [closed_form] if p <= 2 else []
            others = (by_eigenvalues, by_newton_schulz, by_cholesky)
            times = [f"{microseconds(expansion, n, p, chains):.0f}" for expansion in (*closed, *others)]
            yield [n, p, chains, *([] if closed else [""]), *times]


def main(cases=CASES):
    print(f"## Orthonormal factors for NumPyro\n\n{PREFACE}", flush=True)
    show(COLUMNS, rows(cases))


if __name__ == "__main__":
    main()
