"""In which order minibatches come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.target.batched import Batch

Order = Literal["shuffled", "symmetric", "independent"]


class NoBatches(Saved):
    """Of a model that sees all of its data at each step."""

    def draw(self, random: torch.Generator) -> Batch:
        """Nothing changes."""
        return {}


class PlateBatches(Saved):
    """Indices of the plates that subsample, one batch a step.

    ``"shuffled"`` goes through the elements of each plate in a random order, and takes a new order when all have come.
    Over such an epoch every element comes once, so that errors cancel which ``"independent"`` batches leave.
    ``"symmetric"`` goes through them forwards, then backwards, and then takes a new order: with a symmetric step the
    bias of minibatches is then of second order in the step size (Paulin, Whalley, Chada & Leimkuhler, arXiv 2410.19780,
    in flat space). In all three every element is as likely in a batch as any other: the gradient is unbiased. Elements
    that do not fill a last batch are left out of their epoch; which ones is chance.

    Args:
        plates: ``{plate: (size, subsample size)}``.
        order: one of the three.
        chains: None for one batch that all chains share, else how many chains have batches of their own.
        device: of the indices.

    Raises:
        ValueError: for another order.
    """

    changing = ("_orders", "_next")

    def __init__(
        self,
        plates: Mapping[str, tuple[int, int]],
        order: Order = "shuffled",
        chains: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if order not in get_args(Order):
            raise ValueError(f"minibatches={order!r}, expected one of {list(get_args(Order))}.")
        self._plates, self._order = dict(plates), order
        front = () if chains is None else (chains,)
        # Permutations ``(size,)`` or ``(chains, size)``, and which batch of each plate comes next.
        self._orders = {
            name: torch.arange(size, device=device).expand(*front, size).contiguous()
            for name, (size, _) in self._plates.items()
        }
        self._next = dict.fromkeys(self._plates, 0)

    def draw(self, random: torch.Generator) -> Batch:
        """The next batch, ``{plate: indices}``, ``(subsample size,)`` or ``(chains, subsample size)``."""
        return {name: self._of(name, random) for name in self._plates}

    def _of(self, name: str, random: torch.Generator) -> Tensor:
        size, drawn = self._plates[name]
        whole = size // drawn
        length = {"shuffled": whole, "symmetric": 2 * whole, "independent": 1}[self._order]
        if self._next[name] == 0:
            # Sorted noise is a random permutation of each row.
            noise = torch.rand(self._orders[name].shape, generator=random, device=random.device)
            self._orders[name] = noise.argsort(-1)
        step = self._next[name]
        batch = step if step < whole else 2 * whole - 1 - step
        self._next[name] = (step + 1) % length
        return self._orders[name][..., batch * drawn : (batch + 1) * drawn]
