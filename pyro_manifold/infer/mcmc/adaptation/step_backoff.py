"""Per-chain step-size backoff during warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.store import Saved


class StepBackoff(Saved):
    """Per-chain step-size backoff: a failed trajectory halves a chain's step size, any other increases it by a fifth.

    At the start of chains, the gradient can be a thousand times as large as in the typical set. With a common step
    size, either chains in the typical set would move slowly, or the others would not move at all.

    Args:
        energy: energies of the chains, ``(chains,)``, used for dtype and device.

    Attributes:
        share: fraction of the step size used by each chain, ``(chains,)``, at most 1.
    """

    changing = ("share",)

    def __init__(self, energy: Tensor) -> None:
        self.share = torch.ones_like(energy)

    def learn(self, wrong: Tensor) -> None:
        """Update the shares, given the chains whose trajectory failed, ``(chains,)``."""
        self.share = torch.where(wrong, self.share / 2, 1.2 * self.share).clamp(max=1)
