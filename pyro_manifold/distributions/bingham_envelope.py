r"""Exact draws from $p(X) \propto e^{\operatorname{tr}(C^\top X + B X^\top A X)}$ by rejection sampling.

Without loss of generality B is diagonal, $\beta_1 \ge \dots \ge \beta_p$. With $S_k$ the trace of
A on the span of the first k columns, the quadratic part is $\beta_p S_p + \sum_{k=2}^p (\beta_{k-1} - \beta_k)
S_{k-1}$: first the span of all columns is proposed, then inside it the last column, then the one before it. Every
proposal is angular central Gaussian, whose density is known, by the bound of Kent, Ganeiber and Mardia (2018), for
$0 < b \le n$

$$ e^{-u} \le M(b)\, (1 + 2u/b)^{-n/2}, \qquad M(b) = e^{-(n-b)/2} (n/b)^{n/2}. $$
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_manifold.distributions.matrix_langevin import sample_langevin
from pyro_manifold.distributions.rejection import Proposals, sample_by_rejection
from pyro_manifold.manifolds import polar_factor

_ROUNDS_WITHOUT_ACCEPTANCE = 200
_STEPS_TO_MODE = 100
_WIDEST_LANGEVIN = 6
_LEAST_HEIGHT = 0.01


@torch.no_grad()
def sample_bingham(A: Tensor, B: Tensor, C: Tensor, count: int) -> tuple[Tensor, int]:
    """Return draws ``(count, batch, n, p)`` for A ``(batch, n, n)``, B ``(batch, p, p)`` and C, and how many failed."""
    dtype = C.dtype
    # The density is the same for -A and -B; the bounds are for columns that favour large eigenvalues.
    sign = torch.where(B.diagonal(dim1=-2, dim2=-1).sum(-1) < 0, -1.0, 1.0)[:, None, None].double()
    A, B, C = sign * A.double(), sign * B.double(), C.double()
    beta, basis = torch.linalg.eigh(B)
    beta, basis = beta.flip(-1), basis.flip(-1)
    target = _Target((A + A.mT) / 2, beta, C @ basis)
    mode = _mode(target)
    span, tangent = _SpanEnvelope(target, mode), _TangentEnvelope(target, mode)
    has_linear_part = bool((C != 0).any()) and C.shape[-1] <= _WIDEST_LANGEVIN
    rounds = 0

    def propose(pending: Tensor, repeats: int) -> Proposals:
        # Each envelope alone gives exact draws; the choice between them is made before any draw.
        nonlocal rounds
        rounds += 1
        envelope = tangent if has_linear_part and rounds % 2 else span
        return envelope.propose(pending % len(C), repeats)

    draws, missing = sample_by_rejection(propose, C.new_zeros(count * len(C), *C.shape[1:]), _ROUNDS_WITHOUT_ACCEPTANCE)
    return (draws.reshape(count, *C.shape) @ basis.mT).to(dtype), len(missing)


@dataclass(frozen=True)
class _Target:
    A: Tensor
    beta: Tensor
    C: Tensor

    def log_density(self, X: Tensor, chosen: Tensor) -> Tensor:
        quadratic = (X * (self.A[chosen] @ X)).sum(-2)
        return (self.C[chosen] * X).sum((-2, -1)) + (self.beta[chosen] * quadratic).sum(-1)


def _mode(target: _Target) -> Tensor:
    """Find a local mode: as a convex function the log density lies above its tangents, so each step ascends.

    The envelopes are valid at any point; near the mode they are tight.
    """
    ends = torch.linalg.eigvalsh(target.A)[:, [0, -1]]
    lowest, highest = ends[:, :1, None], ends[:, 1:, None]
    positive, negative = target.beta.clamp(min=0).unsqueeze(-2), (-target.beta).clamp(min=0).unsqueeze(-2)
    # A little noise, because the polar factor of C may be a saddle point.
    X = polar_factor(target.C + 0.1 * target.C.norm(dim=(-2, -1), keepdim=True) * torch.randn_like(target.C))
    for _ in range(_STEPS_TO_MODE):
        image = target.A @ X
        X = polar_factor(target.C + 2 * ((image - lowest * X) * positive + (highest * X - image) * negative))
    return X


class _TangentEnvelope:
    r"""Matrix Langevin envelope, for a dominant linear part.

    With $K = a_{\max} - A$ the log density is $\operatorname{tr} (C^\top X - B X^\top K X)$ up to a
    constant, concave for B ≥ 0, and lies below its tangent at any $X_0$; the mode is the best point of tangency.
    For negative entries of B, $A - a_{\min}$ is used instead.
    """

    def __init__(self, target: _Target, mode: Tensor) -> None:
        ends = torch.linalg.eigvalsh(target.A)[:, [0, -1]]
        identity = torch.eye(target.A.shape[-1], dtype=target.A.dtype, device=target.A.device)
        self.above = ends[:, 1, None, None] * identity - target.A
        self.below = target.A - ends[:, 0, None, None] * identity
        self.positive, self.negative = target.beta.clamp(min=0), (-target.beta).clamp(min=0)
        self.touch = mode
        slope = self.above @ mode * self.positive.unsqueeze(-2) + self.below @ mode * self.negative.unsqueeze(-2)
        self.parameter = target.C - 2 * slope

    def propose(self, pending: Tensor, repeats: int) -> Proposals:
        X, missing = sample_langevin(self.parameter[pending], repeats)
        change = X - self.touch[pending]
        above = (change * (self.above[pending] @ change)).sum(-2) * self.positive[pending]
        below = (change * (self.below[pending] @ change)).sum(-2) * self.negative[pending]
        return X, torch.where(missing, -torch.inf, -(above + below).sum(-1))


class _SpanEnvelope:
    r"""Angular central Gaussian proposals: the span of X, then its columns from the last to the first.

    With $C = U D V^\top$ the linear part is $\sum_i d_i y_i$, $y_i = u_i^\top X v_i$. It is bounded
    by a quadratic form in the span of X, because $2 y \le h + y^2/h$ for h > 0, and $y_i \le |X^\top u_i|$.
    h is y at the mode. The p largest eigenvalues of the quadratic form
    are all replaced by the p-th in the proposal, since more than one of them would make the bound loose.
    """

    def __init__(self, target: _Target, mode: Tensor) -> None:
        self.target = target
        n, p = target.C.shape[-2:]
        left, length, right = torch.linalg.svd(target.C, full_matrices=False)
        height = (left.mT @ mode @ right.mT).diagonal(dim1=-2, dim2=-1).clamp(min=_LEAST_HEIGHT)
        self.form = target.beta[:, -1, None, None] * target.A + (left * (length / height).unsqueeze(-2)) @ left.mT / 2
        self.offset = (length * height).sum(-1) / 2
        self.eigenvalues, self.basis = torch.linalg.eigh(self.form)
        self.top = self.eigenvalues[:, n - p :].sum(-1)
        cost = (self.eigenvalues[:, n - p, None] - self.eigenvalues).clamp(min=0)
        self.precision, self.log_bound = _angular_bound(cost)
        self.column_bound = torch.zeros_like(self.top)
        steps, eigenvalues = target.beta[:, :-1] - target.beta[:, 1:], torch.linalg.eigvalsh(target.A).flip(-1)
        for k in range(p, 1, -1):
            self.column_bound += _log_column_integral(eigenvalues[:, :k], steps[:, k - 2])

    def propose(self, pending: Tensor, repeats: int) -> Proposals:
        orthonormal, log_ratio = self._propose_span(pending, repeats)
        # The factors that depend on the span alone are tested first: most rejections are there, and columns take
        # longer.
        kept = torch.rand_like(log_ratio).log() <= log_ratio
        owner = pending.expand(repeats, -1)[kept]
        X, log_columns = self._order_columns(orthonormal[kept], owner)
        rest = self.target.log_density(X, owner) - self._span_density(X, owner) - log_columns - self.column_bound[owner]
        orthonormal[kept], log_ratio[kept] = polar_factor(X), rest
        return orthonormal, torch.where(kept, log_ratio, -torch.inf)

    def _propose_span(self, pending: Tensor, repeats: int) -> Proposals:
        """Propose spans, as orthonormal columns in any order, with their log acceptance probabilities."""
        n, p = self.target.C.shape[-2:]
        noise = torch.randn(repeats, len(pending), n, p, dtype=self.precision.dtype, device=self.precision.device)
        Z = noise * self.precision[pending].rsqrt().unsqueeze(-1)
        (root, failed), noise_root = torch.linalg.cholesky_ex(Z.mT @ Z), torch.linalg.cholesky_ex(noise.mT @ noise)[0]
        orthonormal = torch.linalg.solve_triangular(root, Z.mT, upper=False).mT
        # |XᵀΩX| for these X is |noiseᵀ noise| / |Zᵀ Z|
        log_determinant = 2 * (noise_root / root).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        deficit = (self.eigenvalues[pending].unsqueeze(-1) * orthonormal.square()).sum((-2, -1)) - self.top[pending]
        log_ratio = deficit + n / 2 * log_determinant - p * self.log_bound[pending]
        return self.basis[pending] @ orthonormal, torch.where(failed == 0, log_ratio, -torch.inf)

    def _span_density(self, X: Tensor, pending: Tensor) -> Tensor:
        return (X * (self.form[pending] @ X)).sum((-2, -1)) + self.offset[pending]

    def _order_columns(self, remaining: Tensor, owner: Tensor) -> Proposals:
        """Propose columns for the span of the orthonormal columns ``remaining``, with their log density given it."""
        A, beta = self.target.A[owner], self.target.beta[owner]
        log_density = torch.zeros_like(remaining[..., 0, 0])
        columns: list[Tensor] = []
        for k in range(remaining.shape[-1], 1, -1):
            eigenvalues, basis = torch.linalg.eigh(remaining.mT @ A @ remaining)
            cost = (beta[:, k - 2] - beta[:, k - 1]).unsqueeze(-1) * (eigenvalues - eigenvalues[..., :1])
            precision, _ = _angular_bound(cost)
            x = torch.randn_like(cost) * precision.rsqrt()
            x = x / x.norm(dim=-1, keepdim=True)
            log_density += precision.log().sum(-1) / 2 - k / 2 * (precision * x.square()).sum(-1).log()
            inside = remaining @ basis
            columns.insert(0, (inside @ x.unsqueeze(-1)).squeeze(-1))
            remaining = inside @ _complement(x)
        sign = torch.where(torch.rand_like(log_density) < 0.5, -1.0, 1.0).to(remaining.dtype)
        return torch.stack([sign.unsqueeze(-1) * remaining[..., 0], *columns], -1), log_density


def _angular_bound(cost: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return eigenvalues $1 + 2\lambda_i/b$ of Ω and log M(b), b optimal: $\sum_i 1/(b + 2\lambda_i) = 1$."""
    n = cost.shape[-1]
    low, high = torch.ones_like(cost[..., 0]), torch.full_like(cost[..., 0], float(n))
    for _ in range(60):
        middle = (low + high) / 2
        too_small = (1 / (middle.unsqueeze(-1) + 2 * cost)).sum(-1) > 1
        low, high = torch.where(too_small, middle, low), torch.where(too_small, high, middle)
    return 1 + 2 * cost / high.unsqueeze(-1), -(n - high) / 2 + n / 2 * (n / high).log()


def _log_column_integral(eigenvalues: Tensor, step: Tensor) -> Tensor:
    """Return the log of the largest integral of the envelope of one column, over all possible spans.

    It increases in every eigenvalue of A on the span (differentiate: b is optimal, and at least 1), and these
    are at most the largest ones of A (Cauchy interlacing).
    """
    cost = step.unsqueeze(-1) * (eigenvalues - eigenvalues[:, -1:])
    precision, log_bound = _angular_bound(cost)
    return step * eigenvalues[:, :-1].sum(-1) + log_bound - precision.log().sum(-1) / 2


def _complement(x: Tensor) -> Tensor:
    """Return orthonormal columns ``(..., k, k - 1)`` orthogonal to unit vectors x ``(..., k)``, from a reflector."""
    axis = torch.zeros_like(x)
    axis[..., 0] = torch.where(x[..., 0] < 0, -1.0, 1.0)
    v = x + axis
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    reflector = identity - 2 * v.unsqueeze(-1) * (v / v.square().sum(-1, keepdim=True)).unsqueeze(-2)
    return reflector[..., 1:]
