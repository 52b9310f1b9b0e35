"""The toy density of the OHMC paper: (Q, R) such that QR is a mixture of matrix normals, or a single one.

    π(Q, R) = 1/m Σᵢ N(QR | Mᵢ, σ² I),   Q ∈ V(n,2), R upper triangular,

with respect to Haar measure and ∏ |rᵢᵢ|^(n-i) dR, with which it is the distribution of the factors of a matrix that is
drawn from the mixture, as the paper draws its truth (Yanush & Kropotov, arXiv 1901.08045, section 3.1).

The paper leaves open the base measure, the signs of R's diagonal, the order of the modes and, on V(3,2), which 16 of
the 64 matrices with entries 1 or 2 are modes. Here:

- all 2^(2n) matrices are modes, so that entries of QR are independent and each is near 1 or 2;
- r₁₁ > 0, as log r₁₁. On V(2,2) r₂₂ has either sign: each of the 16 modes then has factors with the determinant of Q
  that a chain begins with, and none has to leave the component of O(2) in which it is. That is how all modes of Figure
  1 can be covered by a method that keeps the determinant. On V(3,2), which is connected, r₂₂ > 0, as log r₂₂;
- M₁ is the first in counting order that has rank 2: 1 1, 1 2, then rows of ones. (Of the matrix of ones, the very
  first, Q is not determined.)
"""

from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide.initialization import init_to_value

from benchmarks.problems.mixtures import factors as positive_factors
from pyro_manifold.distributions import StiefelUniform

CENTRES = (1.0, 2.0)


def first_mode(n):
    """M₁, ``(n, 2)``."""
    mode = np.ones((n, 2))
    mode[1, 1] = 2.0
    return mode


@dataclass(frozen=True)
class Matrices:
    """The mixture of all modes, or with ``single`` the normal about M₁.

    Attributes:
        n: rows.
        sigma: σ.
        single: whether M₁ is the only mode.
    """

    n: int
    sigma: float
    single: bool = False

    @property
    def either_sign(self):
        """True if r₂₂ has either sign."""
        return self.n == 2

    def product(self, Q, v, xp):
        """QR of ``(..., n, 2)`` and v = (log r₁₁, r₁₂, r₂₂ or its logarithm)."""
        r11, r12, r22 = self.triangle(v, xp)
        first = Q[..., 0]
        return xp.stack([r11[..., None] * first, r12[..., None] * first + r22[..., None] * Q[..., 1]], -1)

    def triangle(self, v, xp):
        """r₁₁, r₁₂ and r₂₂."""
        return xp.exp(v[..., 0]), v[..., 1], v[..., 2] if self.either_sign else xp.exp(v[..., 2])

    def factors(self, M, determinant=1.0):
        """Q and v whose product is M, ``(..., n, 2)``; on V(2,2) with the determinant that is asked for."""
        Q, v = positive_factors(M)
        if self.either_sign:
            sign = determinant * np.sign(np.linalg.det(Q))
            Q[..., 1] *= sign[..., None]
            v[..., 2] = sign * np.exp(v[..., 2])
        return Q, v

    def log_density(self, Q, v):
        """Return log π with the factors of the measure: r₁₁ⁿ, and |r₂₂|^(n-2), times r₂₂ where v has its logarithm."""
        M = self.product(Q, v, torch)
        if self.single:
            mode = torch.as_tensor(first_mode(self.n), dtype=M.dtype, device=M.device)
            entries = -(M - mode).square() / (2 * self.sigma**2)
        else:
            near = [-(M - centre).square() / (2 * self.sigma**2) for centre in CENTRES]
            entries = torch.logaddexp(*near)
        measure = self.n * v[..., 0] + (0.0 if self.either_sign else (self.n - 1) * v[..., 2])
        return entries.sum((-2, -1)) + measure

    def model(self):
        """Sample Q and v in Pyro."""
        Q = pyro.sample("Q", StiefelUniform(self.n, 2))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([3]).to_event(1).mask(False))
        pyro.factor("density", self.log_density(Q, v))
        return Q, v

    @property
    def start(self):
        """Initialisation at M₁, in the component of determinant 1."""
        Q, v = self.factors(first_mode(self.n))
        return init_to_value(values={"Q": torch.as_tensor(Q), "v": torch.as_tensor(v)})

    def exact(self, rng, count):
        """Matrices from the mixture, ``(count, n, 2)``."""
        shape = (count, self.n, 2)
        centres = first_mode(self.n) if self.single else rng.integers(1, 3, shape).astype(float)
        return centres + self.sigma * rng.standard_normal(shape)

    def coordinates(self, draws):
        """Entries of Q and of R, whose effective sizes count, ``{name: (chains, draws)}``."""
        Q, v = draws["Q"], draws["v"]
        found = {f"Q[{i},{j}]": Q[..., i, j] for i in range(self.n) for j in range(2)}
        return found | dict(zip(("R[0,0]", "R[0,1]", "R[1,1]"), self.triangle(v, np), strict=True))

    def moments(self, draws):
        """Entries of QR and their squares, ``{name: (chains, draws)}``."""
        M = self.product(draws["Q"], draws["v"], np)
        return {f"{i},{j},{power}": M[..., i, j] ** power for i in range(self.n) for j in range(2) for power in (1, 2)}

    def truths(self):
        """Exact mean and standard deviation of each of the `moments`."""
        found = {}
        for i in range(self.n):
            for j in range(2):
                centres = first_mode(self.n)[i : i + 1, j] if self.single else np.array(CENTRES)
                s = self.sigma
                square = (centres**2 + s**2).mean()
                fourth = (centres**4 + 6 * centres**2 * s**2 + 3 * s**4).mean()
                found[f"{i},{j},1"] = centres.mean(), np.sqrt(square - centres.mean() ** 2)
                found[f"{i},{j},2"] = square, np.sqrt(fourth - square**2)
        return found


def worst_deviation(matrices, draws):
    """Largest distance of a mean of all chains from the exact one, in standard errors, and in standard deviations."""
    from benchmarks.estimates import mean_and_error

    in_errors, in_deviations = [], []
    moments = matrices.moments(draws)
    for name, (truth, deviation) in matrices.truths().items():
        mean, error = mean_and_error(moments[name])
        in_errors.append(abs(mean - truth) / error)
        in_deviations.append(abs(mean - truth) / deviation)
    return max(in_errors), max(in_deviations)


def sizes_of_each_chain(coordinates):
    """Least and median effective size of each chain over the coordinates, ``(chains,)`` each."""
    from benchmarks.estimates import effective_sizes

    chains = len(next(iter(coordinates.values())))
    each = np.array([effective_sizes({k: x[c : c + 1] for k, x in coordinates.items()}) for c in range(chains)])
    return each.min(1), np.median(each, 1)
