"""Do chains tell the same story?"""

from __future__ import annotations

from collections.abc import Mapping

from pyro.ops.stats import split_gelman_rubin
from torch import Tensor

_LARGEST_RHAT = 1.05


def disagreements(samples: Mapping[str, Tensor], largest_rhat: float = _LARGEST_RHAT) -> dict[str, str]:
    """Sites on which chains disagree, and the chain furthest from the others.

    The furthest chain is the one whose mean is most standard deviations (within chains) from the median of the chains'
    means, over the entries of the site.

    Args:
        samples: ``{site: (chains, draws, ...)}``.
        largest_rhat: split R-hat up to which chains count as agreeing.

    Returns:
        ``{site: sentence}``; empty for a single chain.

    Example:
        >>> import torch
        >>> draws = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
        >>> draws[2] += 3
        >>> disagreements({"x": draws})
        {'x': 'R-hat 1.70, chain 2 is furthest from the others'}
    """
    found = {}
    for name, values in samples.items():
        chains, draws = values.shape[:2]
        if chains < 2 or draws < 4 or not values.is_floating_point():
            continue
        values = values.detach().reshape(chains, draws, -1).double()
        spread = values.std(1).mean(0)
        moving = spread > 0
        if not moving.any():
            continue
        rhat = float(split_gelman_rubin(values[..., moving]).max())
        if rhat > largest_rhat:
            means = values.mean(1)
            distance = ((means - means.median(0).values).abs() / spread)[:, moving].amax(1)
            found[name] = f"R-hat {rhat:.2f}, chain {int(distance.argmax())} is furthest from the others"
    return found
