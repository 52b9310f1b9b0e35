r"""Choice of inverse temperatures such that all swaps between neighbours are rejected equally often.

The rejection probability of a swap between nearby levels is $\int\lambda(\beta)\,d\beta$ between them, λ the
local communication barrier; its integral from 0 to 1 is the global barrier Λ. Levels at equal increments of the
integral minimise the time that a replica takes from one end of the ladder to the other (Syed, Bouchard-Côté,
Deligiannidis & Doucet, JRSS-B 84, 2022,
section 5).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_SMALLEST_REJECTION = 1e-4
_NORMAL_QUARTILES = 1.349  # interquartile range of a normal, in standard deviations
_FIRST_ROUND = 8
_SHARE_OF_ROUNDS = 0.9


def first_ladder(negative_log_likelihood: Tensor, levels: int) -> Tensor:
    """Compute the initial inverse temperatures, ``(levels,)``: 0, then geometric up to 1.

    The smallest positive β is about the inverse of the spread of the log likelihood under the prior.

    Args:
        negative_log_likelihood: minus the log likelihood of draws from the prior, of any shape.
        levels: number of levels.
    """
    low, high = np.quantile(negative_log_likelihood.double().cpu().numpy(), [0.25, 0.75])
    first = min(1 / (levels - 1), _NORMAL_QUARTILES / max(high - low, 1e-300))
    return negative_log_likelihood.new_tensor([0.0, *np.geomspace(first, 1, levels - 1)[:-1], 1.0])


def ladder_of_equal_rejection(inverse_temperature: Tensor, rejection: Tensor) -> Tensor:
    """Compute as many levels at equal increments of the barrier that these rejection probabilities estimate.

    The barrier is interpolated monotonically, over `scale` of β.

    Args:
        inverse_temperature: β of the present levels, ``(levels,)``, from 0 to 1.
        rejection: mean rejection probabilities between neighbours, ``(levels - 1,)``.
    """
    from scipy.interpolate import PchipInterpolator  # imported here, because the import takes a third of a second

    steps = rejection.double().cpu().numpy().clip(_SMALLEST_REJECTION)
    barrier = np.concatenate([[0.0], steps.cumsum()])
    first = float(inverse_temperature[1])
    where = scale(inverse_temperature.double().cpu(), first).numpy()
    equal = np.linspace(0, barrier[-1], len(barrier))
    found = first * np.expm1(PchipInterpolator(barrier, where)(equal))
    found[0], found[-1] = 0, 1
    return torch.from_numpy(found).to(inverse_temperature)


def scale(inverse_temperature: Tensor, first: float) -> Tensor:
    """Compute log(1 + β/β₁): linear in β near 0 and in log β far from it, like precisions of Gaussians on the path."""
    return torch.log1p(inverse_temperature / first)


def interpolated(old: Tensor, values: Tensor, new: Tensor) -> Tensor:
    """Interpolate values at the levels of one ladder, ``(levels, ...)``, to those of another; linear in `scale`."""
    first = float(old[1])
    at, wanted = scale(old, first), scale(new, first)
    right = torch.searchsorted(at, wanted).clamp(1, len(old) - 1)
    share = ((wanted - at[right - 1]) / (at[right] - at[right - 1])).reshape(-1, *[1] * (values.dim() - 1))
    return values[right - 1] + share * (values[right] - values[right - 1])


def ends_of_rounds(warmup_steps: int) -> list[int]:
    """Return the iterations after which the ladder is updated; each round is twice as long as the one before.

    The last tenth of warm-up adapts step sizes on the final ladder.
    """
    last = round(_SHARE_OF_ROUNDS * warmup_steps)
    ends = [last]
    while ends[-1] >= 2 * _FIRST_ROUND:
        ends.append(ends[-1] // 2)
    return ends[::-1]
