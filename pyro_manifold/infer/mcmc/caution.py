"""Shorter steps for chains that go wrong during warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.saving import Saved


class Caution(Saved):
    """After a trajectory that went wrong, a chain takes half of its step; after each that did not, a fifth more.

    Where chains start, the density can be a thousand times as steep as where they belong. With one step size for all,
    either those that have arrived creep, or those that have not stay where they are.

    Args:
        energy: of the chains, ``(chains,)``, for dtype and device.

    Attributes:
        share: of the step size, which each chain takes, ``(chains,)``, at most 1.
    """

    changing = ("share",)

    def __init__(self, energy: Tensor) -> None:
        self.share = torch.ones_like(energy)

    def learn(self, wrong: Tensor) -> None:
        """Take in which chains went wrong, ``(chains,)``."""
        self.share = torch.where(wrong, self.share / 2, 1.2 * self.share).clamp(max=1)
