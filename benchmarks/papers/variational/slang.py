"""SLANG, Gaussian variational inference with precision U Uᵀ + diag(d), for logistic regression.

Mishkin, Kunstner, Nielsen, Schmidt & Khan, "SLANG: Fast structured covariance approximations for Bayesian deep learning
with natural gradient" (NeurIPS 2018). The Hessian of the likelihood is replaced by the sum of squares of the gradients
of single observations, its average over steps by the L leading eigenvectors and, so that the diagonal stays exact, d.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from benchmarks.papers.variational.problems import FLOAT, PRIOR_VARIANCE


@dataclass(frozen=True)
class LowRankPrecision:
    """N(mean, (U Uᵀ + diag(d))⁻¹) with ``factor`` U ``(n, rank)`` and ``diagonal`` d ``(n,)``; costs linear in n."""

    mean: torch.Tensor
    factor: torch.Tensor
    diagonal: torch.Tensor

    def _core(self):
        scaled = self.factor / self.diagonal.unsqueeze(-1)
        return scaled, torch.eye(self.factor.shape[-1], dtype=FLOAT) + self.factor.mT @ scaled

    def solve(self, vector):
        """Covariance times a vector, by Woodbury's identity."""
        scaled, core = self._core()
        return vector / self.diagonal - scaled @ torch.linalg.solve(core, scaled.mT @ vector)

    def variances(self):
        """Marginal variances."""
        scaled, core = self._core()
        return 1 / self.diagonal - (scaled * torch.linalg.solve(core, scaled.mT).mT).sum(-1)

    def log_determinant(self):
        """Log determinant of the covariance."""
        return -self.diagonal.log().sum() - torch.logdet(self._core()[1])

    def sample(self, count):
        """Draws ``(count, n)``, through the symmetric root of (I + B Bᵀ)⁻¹ with B = diag(d)^(−1/2) U."""
        root = self.diagonal.sqrt()
        basis, singular, _ = torch.linalg.svd(self.factor / root.unsqueeze(-1), full_matrices=False)
        noise = torch.randn(count, len(root), dtype=FLOAT)
        shrinkage = 1 - 1 / torch.sqrt(1 + singular**2)
        return self.mean + (noise - (noise @ basis * shrinkage) @ basis.mT) / root


def leading_eigenvectors(columns, rank):
    """V ``(n, rank)`` such that V Vᵀ is the best approximation of C Cᵀ by that rank, from the smaller Gram matrix."""
    n, count = columns.shape
    if n <= count:
        values, vectors = torch.linalg.eigh(columns @ columns.mT)
        return vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()
    _, vectors = torch.linalg.eigh(columns.mT @ columns)
    return columns @ vectors[:, -rank:]


def negative_bound(posterior, draws, x, y):
    """Minus the evidence lower bound, its likelihood estimated by the draws and its Kullback-Leibler term exact."""
    logits = draws @ x.mT
    likelihood = (y * logits - softplus(logits)).sum(-1).mean()
    squares = (posterior.variances() + posterior.mean**2).sum() / PRIOR_VARIANCE
    n = len(posterior.mean)
    return (squares - n + n * math.log(PRIOR_VARIANCE) - posterior.log_determinant()) / 2 - likelihood


def step(posterior, x, y, *, total, rate, decay, samples, exact_hessian):
    """One update of precision and mean from a batch ``x, y`` out of ``total`` observations; and the draws it used."""
    draws = posterior.sample(samples)
    probabilities = torch.sigmoid(draws @ x.mT)
    residuals = probabilities - y
    curvature = (probabilities * (1 - probabilities) if exact_hessian else residuals**2).mean(0)
    weights = decay * total / len(y) * curvature
    columns = torch.cat([(1 - decay) ** 0.5 * posterior.factor, x.mT * weights.sqrt()], -1)
    factor = leading_eigenvectors(columns, posterior.factor.shape[-1])
    # What the truncation loses on the diagonal goes to d; rounding must not make it negative.
    lost = ((columns**2).sum(-1) - (factor**2).sum(-1)).clamp(min=0)
    diagonal = (1 - decay) * posterior.diagonal + lost + decay / PRIOR_VARIANCE
    gradient = total / len(y) * (residuals.mean(0) @ x) + posterior.mean / PRIOR_VARIANCE
    moved = LowRankPrecision(posterior.mean, factor, diagonal)
    return LowRankPrecision(posterior.mean - rate * moved.solve(gradient), factor, diagonal), draws


def slang(
    x, y, rank=1, *, steps=1000, batch=None, rate=0.05, decay=0.05, samples=10, half_life=500, exact_hessian=False
):
    """Fit SLANG to logistic regression with prior N(0, 10 I).

    Args:
        x: design ``(observations, n)``.
        y: labels 0 or 1.
        rank: columns of U, the L of the paper.
        steps: number of updates.
        batch: observations in each update, drawn anew; all of them if None.
        rate: step of the mean, α of the paper, at the start.
        decay: weight of the newest curvature, β of the paper, at the start.
        samples: draws from the approximation in each update.
        half_life: both step lengths fall as 1 / (1 + t / half_life).
        exact_hessian: use p (1 − p) x xᵀ in place of the squared gradients; not SLANG, but tells what they cost.

    Returns:
        The fitted ``LowRankPrecision``, the negative evidence lower bound at every tenth step, and seconds without the
        computation of that bound.
    """
    posterior = LowRankPrecision(
        torch.zeros(x.shape[-1], dtype=FLOAT),
        1e-3 * torch.randn(x.shape[-1], rank, dtype=FLOAT),
        torch.ones(x.shape[-1], dtype=FLOAT),
    )
    losses, seconds = [], 0.0
    for t in range(steps):
        started = time.process_time()
        chosen = slice(None) if batch is None else torch.randint(len(y), (batch,))
        slowing = 1 / (1 + t / half_life)
        posterior, draws = step(
            posterior, x[chosen], y[chosen], total=len(y), rate=rate * slowing, decay=decay * slowing, samples=samples,
            exact_hessian=exact_hessian,
        )  # fmt: skip
        seconds += time.process_time() - started
        if t % 10 == 9:
            losses.append(float(negative_bound(posterior, posterior.sample(len(draws)), x, y)))
    return posterior, losses, seconds
