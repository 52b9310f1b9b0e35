"""Draws from the prior of a model, many at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_manifold.density import INVERSE_TEMPERATURE, Sites
from pyro_manifold.infer.mcmc.transitions import Blocks, Layout, Potential
from pyro_manifold.store import Saved

_MOST_TRIES = 100


class PriorDraws(Saved):
    """Independent draws from the prior with a finite energy; draws with zero likelihood are discarded and counted.

    Args:
        draw: returns one draw of all sites but β, from torch's global random number generator.
        layout: layout of sites in blocks.
        potential: potential energy of as many positions as ``example`` has; it shows whether a draw has finite energy.
        example: positions ``(chains, ...)``, used for their shapes.
        random: generator of the seeds.

    Attributes:
        drawn: number of draws made.
        finite: number of draws with a finite energy.
    """

    changing = ("_pool", "_next", "_have", "drawn", "finite")

    def __init__(
        self,
        draw: Callable[[], Sites],
        layout: Layout,
        potential: Potential,
        example: Blocks,
        random: torch.Generator,
    ) -> None:
        self._draw, self._layout, self._potential, self._random = draw, layout, potential, random
        self._pool = {block: x.clone() for block, x in example.items()}
        self._size = len(next(iter(example.values())))
        self._next = self._have = self.drawn = self.finite = 0

    def take(self, count: int) -> Blocks:
        """Return ``count`` draws, ``{block: (count, ...)}``; at most as many as the example has.

        Raises:
            ValueError: if hardly any draw has a finite energy.
        """
        if self._have - self._next < count:
            self._refill(count)
        rows = slice(self._next, self._next + count)
        self._next += count
        return {block: x[rows] for block, x in self._pool.items()}

    def _refill(self, count: int) -> None:
        kept = {block: x[self._next : self._have] for block, x in self._pool.items()}
        for _ in range(_MOST_TRIES):
            sites = self.many(self._random)
            at_prior = next(iter(sites.values())).new_zeros(self._size, 1)
            new = self._layout.pack({**sites, INVERSE_TEMPERATURE: at_prior})
            energy, gradient = self._potential(new)
            finite = torch.isfinite(energy)
            for slope in gradient.values():
                finite = finite & torch.isfinite(slope).flatten(1).all(1)
            self.drawn, self.finite = self.drawn + self._size, self.finite + int(finite.sum())
            kept = {block: torch.cat([x, new[block][finite]])[: self._size] for block, x in kept.items()}
            have = len(next(iter(kept.values())))
            if have >= count:
                break
        else:
            raise ValueError(
                f"The likelihood is zero at nearly all of {self.drawn} draws from the prior, from which replica "
                "exchange starts: choose a prior under which the data are possible."
            )
        # The pool always has the same size, so that saved states have the same shapes.
        self._pool = {block: torch.cat([x, self._pool[block][have:]]) for block, x in kept.items()}
        self._next, self._have = 0, have

    def many(self, random: torch.Generator) -> Sites:
        """Draw as many as the example has, ``{site: (chains, ...)}``, of any likelihood; these are not counted.

        Args:
            random: generator of the seed.
        """
        seed = int(torch.randint(2**63 - 1, (), generator=random, device=random.device))
        with torch.random.fork_rng(devices=[] if random.device.type == "cpu" else None):
            torch.manual_seed(seed)
            return self._at_once() or self._one_by_one()

    def _one_by_one(self) -> Sites:
        draws = [self._draw() for _ in range(self._size)]
        return {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}

    def _at_once(self) -> Sites | None:
        """Draw all at once by `torch.vmap`; None if that fails or all draws are equal."""
        state = torch.get_rng_state()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about operators without a batching rule
                draws: Sites = torch.vmap(lambda _: self._draw(), randomness="different")(torch.empty(self._size))
            if all(_differ(x) for x in draws.values() if x.numel()):
                return draws
        except Exception:  # a model can fail in any way under vmap; draws are then made one by one
            pass
        torch.set_rng_state(state)
        return None


def _differ(draws: Tensor) -> bool:
    return len(draws) < 2 or not bool((draws == draws[:1]).all())
