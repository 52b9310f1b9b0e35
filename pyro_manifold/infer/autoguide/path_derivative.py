"""Path-derivative gradient estimator: a distribution whose entropy has gradients only through its draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pyro.distributions import TorchDistribution
from pyro.distributions.score_parts import ScoreParts
from torch import Tensor


class PathDerivative(TorchDistribution):
    r"""Distribution $q_\lambda$ for which Pyro's ELBOs omit the score function of its parameters λ.

    With draws $\theta_\lambda$, the gradient of the ELBO has two terms from the entropy,

    $$
    \nabla_\lambda \log q_\lambda(\theta_\lambda) =
    \frac{\partial \log q_\lambda}{\partial \theta}\,\frac{\partial \theta_\lambda}{\partial \lambda}
    + \frac{\partial \log q_\lambda}{\partial \lambda} .
    $$

    The second term has mean zero. Without it the estimate remains unbiased, and it is zero for every draw where q is
    the posterior. Roeder, Wu & Duvenaud 2017 (arXiv 1703.09194), equation 5. `log_prob` is unchanged, so objectives
    that weight draws by their density (`RenyiELBO`), which would be biased without the score, keep it.

    Args:
        distribution: a distribution with reparametrised draws.
        frozen: the same distribution with detached parameters.

    Examples:
        >>> import pyro.distributions as dist
        >>> loc = torch.tensor(1.0, requires_grad=True)
        >>> q = PathDerivative(dist.Normal(loc, 1.0), dist.Normal(loc.detach(), 1.0))
        >>> loss = q.score_parts(q.rsample()).entropy_term  # log N(loc + ε; loc, 1), with the gradient -ε
        >>> bool(torch.autograd.grad(loss, loc)[0] != 0)
        True
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = True

    def __init__(self, distribution: TorchDistribution, frozen: TorchDistribution) -> None:
        self.distribution, self.frozen = distribution, frozen
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        return self.distribution.support

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> PathDerivative:
        return PathDerivative(self.distribution.expand(batch_shape), self.frozen.expand(batch_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.distribution.rsample(torch.Size(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return self.distribution.log_prob(value)

    def score_parts(self, value: Tensor) -> ScoreParts:
        """Return Pyro's split of the gradient, with the path-derivative term of the entropy."""
        return ScoreParts(self.log_prob(value), 0, self.frozen.log_prob(value))
