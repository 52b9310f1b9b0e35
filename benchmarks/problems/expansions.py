"""Orthonormal factors of an unconstrained matrix: how packages that know no manifold sample one.

Each function takes Z ``(n, p)`` to an orthonormal X of the same span that is uniform for a Gaussian Z, so that a
density of X may be sampled through Z.
"""


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
    """The function above by which JAX is fastest."""
    return closed_form if p <= 2 else by_cholesky
