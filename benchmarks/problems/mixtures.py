"""Two mixtures of matrices: that of the OHMC paper, of the product of two factors, and one of X itself.

The matrix mixture of the paper (Yanush & Kropotov, arXiv 1901.08045, tables 1 and 2) is a distribution of (Q, R), Q
orthonormal, R upper triangular with positive diagonal, in which the product has 16 modes:

    π(Q, R) = 1/16 Σᵢ N(QR | Mᵢ, σ² I),   σ = 0.3,   entries of Mᵢ 1 or 2.

For n = p = 2 the Mᵢ are all such matrices. For n = 3, p = 2 the paper does not say which sixteen of the 64; here
they are the same in the first two rows, over a third row of ones. In both cases the entries of M = QR are then
independent: each is near 1 or near 2 with equal probability, those of the third row near 1.

The measure is Haar on Q and ∏ rᵢᵢ^(n-i) dR on R, with which π is the distribution of the factors of a matrix drawn from
the mixture, as the paper draws its truth. It writes its density without the factor; that is another distribution, of
which no exact draws are known. `benchmarks.papers.ohmc.mixture` has the density with which the tables of the paper are
compared: all 64 modes on V(3,2), and both signs of r₂₂ on V(2,2), which the paper leaves open as well.
"""

from functools import cache

import numpy as np

from benchmarks.problems.problem import Problem
from problems.importance import haar, weighted_mean

SIGMA = 0.3
FREE_ROWS = 2  # in which entries are near 1 or 2; further rows are near 1


def near_one_or_two(x, xp):
    """Log density of one number, up to a constant."""
    near_one, near_two = (-((x - centre) ** 2) / (2 * SIGMA**2) for centre in (1, 2))
    return xp.logaddexp(near_one, near_two)


def slope(x):
    """The derivative of `near_one_or_two`, in NumPy."""
    share_of_two = 1 / (1 + np.exp((1.5 - x) / SIGMA**2))
    return (1 + share_of_two - x) / SIGMA**2


# ---- the mixture of the paper -------------------------------------------------------------------------------


def product(Q, v, xp):
    """QR of ``(..., n, 2)`` and v = (log r₁₁, r₁₂, log r₂₂)."""
    first, second = Q[..., 0], Q[..., 1]
    columns = xp.exp(v[..., 0, None]) * first, v[..., 1, None] * first + xp.exp(v[..., 2, None]) * second
    return xp.stack(columns, -1)


def factors(M):
    """The Q and v whose `product` is M, ``(..., n, 2)``: Gram and Schmidt."""
    first, second = M[..., 0], M[..., 1]
    r11 = np.linalg.norm(first, axis=-1)
    first = first / r11[..., None]
    r12 = (first * second).sum(-1)
    second = second - r12[..., None] * first
    r22 = np.linalg.norm(second, axis=-1)
    return np.stack([first, second / r22[..., None]], -1), np.stack([np.log(r11), r12, np.log(r22)], -1)


def exact_draws(rng, count, n):
    """``(count, n, 2)`` matrices from the mixture."""
    centres = np.ones((count, n, 2))
    centres[:, :FREE_ROWS] = rng.integers(1, 3, (count, FREE_ROWS, 2))
    return centres + SIGMA * rng.standard_normal(centres.shape)


def product_mixture(n, draws=2_000_000):
    """On V(n,2), n = 2 or 3."""

    def log_density(X, v, xp):
        """With the factor ∏ rᵢᵢ^(n-i), and another rᵢᵢ for log rᵢᵢ in its place."""
        M = product(X, v, xp)
        others = ((M[FREE_ROWS:] - 1) ** 2).sum() / (2 * SIGMA**2)
        return near_one_or_two(M[:FREE_ROWS], xp).sum() - others + n * v[0] + (n - 1) * v[2]

    def gradient(X, v):
        M, r11, r22 = product(X, v, np), np.exp(v[0]), np.exp(v[2])
        G = np.concatenate([slope(M[:FREE_ROWS]), (1 - M[FREE_ROWS:]) / SIGMA**2])
        by_X = np.stack([r11 * G[:, 0] + v[1] * G[:, 1], r22 * G[:, 1]], -1)
        return by_X, np.array([r11 * X[:, 0] @ G[:, 0] + n, X[:, 0] @ G[:, 1], r22 * X[:, 1] @ G[:, 1] + n - 1])

    functionals = {f"Q{name}": f for name, f in entries(n, 2).items()}
    of_product = {f"QR{name}": f for name, f in entries(n, 2).items()}
    functionals |= {name: (lambda X, v, f=f: f(product(X, v, np), v)) for name, f in of_product.items()}

    @cache
    def truths():
        """Moments of Q from exact draws; of QR the mean of the Mᵢ."""
        rng, sums = np.random.default_rng(0), np.zeros((2, n, 2))
        for _ in range(count := draws // 100_000):
            Q, _ = factors(exact_draws(rng, 100_000, n))
            sums += Q.sum(0), (Q**2).sum(0)
        mean, square = sums / (count * 100_000)
        error = np.sqrt((square - mean**2) / (count * 100_000))
        centre = np.where(np.arange(n)[:, None] < FREE_ROWS, 1.5, 1.0) * np.ones((n, 2))
        found = {f"Q{name}": (float(f(mean, None)), float(f(error, None))) for name, f in entries(n, 2).items()}
        return found | {name: (float(f(centre, None)), 0.0) for name, f in of_product.items()}

    return Problem(f"mixture of the OHMC paper, V({n},2)", (n, 2), 3, log_density, functionals, truths, gradient)


# ---- a mixture of X itself ----------------------------------------------------------------------------------


def entries(n, p):
    return {f"[{i},{j}]": (lambda X, v, i=i, j=j: X[..., i, j]) for i in range(n) for j in range(p)}


def importance_truths(functionals, shape, log_density, draws=3_000_000):
    """Importance sampling from Haar measure, for problems without other coordinates; ``log_density`` takes a batch."""
    rng, batches = np.random.default_rng(0), []
    for _ in range(draws // 100_000):
        X = haar(rng, 100_000, *shape)
        batches.append((log_density(X), np.stack([f(X, None) for f in functionals.values()])))
    log_weights = np.concatenate([weights for weights, _ in batches])
    values = np.concatenate([values for _, values in batches], axis=1)
    return {name: weighted_mean(x, log_weights) for name, x in zip(functionals, values, strict=True)}


def entries_near_one_or_two(n, p):
    """Every entry of X itself near 1 or 2, of which an orthonormal matrix has none above 1."""

    def log_density(X, v, xp):
        return near_one_or_two(X, xp).sum()

    functionals = {f"X{name}": f for name, f in entries(n, p).items()}
    truths = cache(lambda: importance_truths(functionals, (n, p), lambda X: near_one_or_two(X, np).sum((-2, -1))))
    name = f"entries near 1 or 2, V({n},{p})"
    return Problem(name, (n, p), 0, log_density, functionals, truths, lambda X, v: (slope(X), None))
