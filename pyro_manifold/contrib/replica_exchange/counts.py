r"""Estimates from swap statistics: rejection rates and the barrier, round trips, and the evidence.

The ratio of the normalisers of two neighbouring levels is

$$
\frac{Z_{k+1}}{Z_k} = \frac{E_k\,e^{-\delta L/2}}{E_{k+1}\,e^{\delta L/2}}, \qquad
\delta = \beta_{k+1} - \beta_k,
$$

bridge sampling of Meng & Wong (Statistica Sinica 6, 1996) with the geometric mean of both densities as the bridge; the
product of all ratios is the evidence. One-sided stepping-stone estimates average weights of larger variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.transitions import Statistics
from pyro_manifold.store import Saved

_FROM_PRIOR, _FROM_POSTERIOR, _FROM_NOWHERE = 1, -1, 0


class Counts(Saved):
    """Swap statistics since the ladder was last set; tensors have shape ``(levels, groups)`` or ``(groups,)``.

    Args:
        inverse_temperature: β of the levels, ``(levels,)``.
        groups: number of replicas at each level.

    Attributes:
        inverse_temperature: β of the levels.
        iterations: number of iterations counted.
        round_trips: number of round trips from the prior to the posterior and back, ``(groups,)``.
    """

    changing = (
        "inverse_temperature",
        "iterations",
        "round_trips",
        "_direction",
        "_probability",
        "_log_up",
        "_log_down",
    )

    def __init__(self, inverse_temperature: Tensor, groups: int) -> None:
        self.inverse_temperature = inverse_temperature
        self.iterations = 0
        between = inverse_temperature.new_zeros(len(inverse_temperature) - 1, groups)
        self.round_trips = torch.zeros(groups, dtype=torch.long, device=inverse_temperature.device)
        self._direction = self.round_trips.new_full((len(inverse_temperature), groups), _FROM_NOWHERE)
        self._probability = between
        self._log_up, self._log_down = between.log(), between.log()

    def take_in(self, statistics: Statistics) -> None:
        """Add the statistics of one iteration, as returned by `Swap`."""
        levels = len(self.inverse_temperature)
        negative_log_likelihood, probability, came_from = (
            statistics[name].reshape(levels, -1)
            for name in ("negative_log_likelihood", "swap_probability", "came_from")
        )
        self.iterations += 1
        self._probability = self._probability + probability[:-1]
        half = self.inverse_temperature.diff().unsqueeze(-1) / 2
        self._log_up = torch.logaddexp(self._log_up, -half * negative_log_likelihood[:-1])
        self._log_down = torch.logaddexp(self._log_down, half * negative_log_likelihood[1:])
        self._follow(came_from)

    def _follow(self, came_from: Tensor) -> None:
        """Update the direction of each replica, that is the end of the ladder that it visited last."""
        direction = self._direction.gather(0, came_from)
        self.round_trips = self.round_trips + (direction[0] == _FROM_POSTERIOR)
        top = torch.where(direction[-1] == _FROM_NOWHERE, _FROM_NOWHERE, _FROM_POSTERIOR)
        bottom = torch.full_like(top, _FROM_PRIOR)
        self._direction = torch.cat([bottom.unsqueeze(0), direction[1:-1], top.unsqueeze(0)])

    @property
    def rejection(self) -> Tensor:
        """Mean rejection probability between neighbours, ``(levels - 1,)``."""
        return 1 - self._probability.mean(1) / max(self.iterations, 1)

    @property
    def barrier(self) -> float:
        """Global communication barrier Λ, the sum of the rejection probabilities."""
        return float(self.rejection.sum())

    @property
    def expected_round_trips(self) -> float:
        """Expected round trips of each group, if log likelihoods at successive swaps are independent."""
        rejection = self.rejection.clamp(max=1 - 1e-9)
        return self.iterations / (2 + 2 * float((rejection / (1 - rejection)).sum()))

    @property
    def log_evidence(self) -> tuple[float, float]:
        """Log Z(1)/Z(0) and its jackknife standard error over groups, which is NaN for a single group."""
        groups = self._log_up.shape[1]
        all_of_them = float((self._log_up.logsumexp(1) - self._log_down.logsumexp(1)).sum())
        if groups < 2:
            return all_of_them, math.nan
        without = [
            (self._log_up[:, kept].logsumexp(1) - self._log_down[:, kept].logsumexp(1)).sum()
            for kept in ~torch.eye(groups, dtype=torch.bool, device=self._log_up.device)
        ]
        return all_of_them, float((groups - 1) ** 0.5 * torch.stack(without).std(correction=0))
