"""Minibatches: the batch of a step, as a function of the step's number and a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyro_manifold.density.batched import Batch
from pyro_manifold.density.epochs import Epochs, arguments_of
from pyro_manifold.density.minibatch import Plates, shapes_of
from pyro_manifold.density.seeds import seed_of
from pyro_manifold.store import Saved

Order = Literal["shuffled", "symmetric", "independent"]


class Batches(Saved):
    """Batches of a model's data: indices of the plates that subsample, and arguments from a loader.

    A model without either has one batch, ``{}``, of all its data.

    ``"shuffled"`` takes the elements of each plate in a random order, and a new order in each epoch. Every element is
    used once in an epoch, which cancels errors that remain with ``"independent"`` batches, whose elements are drawn
    with replacement. ``"symmetric"`` takes them forwards, then backwards, and then in a new order: with a symmetric
    step the bias of minibatches is then of second order in the step size (Paulin, Whalley, Chada & Leimkuhler, arXiv
    2410.19780, in flat space). In all three every element is equally likely to be in a batch, so the gradient is
    unbiased. Elements that do not fill a last batch are left out of their epoch, at random. A loader has its own order.

    Args:
        plates_of: function from the arguments of a loader (``{}`` without one) to the plates that subsample then; None
            for one batch of all data.
        loader: an iterable over batches of a model's arguments; None for a model that has its arguments.
        order: one of the three.
        chains: None for one batch that all chains share, else the number of chains, which have batches of their own.
        device: device of the indices.
        seed: seed of all orders.

    Raises:
        ValueError: for another order, or ``"symmetric"`` with a loader.
    """

    changing = ("_seed",)

    def __init__(
        self,
        plates_of: Callable[[Batch], Plates] | None = None,
        loader: Iterable[Any] | None = None,
        order: Order = "shuffled",
        chains: int | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        check_order(order)
        if order == "symmetric" and loader is not None:
            raise ValueError("minibatches='symmetric' is for plates with subsample_size: a loader has its own order.")
        self._plates_of, self._loader, self._order, self._chains, self._seed = plates_of, loader, order, chains, seed
        self._random = torch.Generator(device)
        self._plates: dict[Any, Plates] = {}
        self._permutations: dict[str, tuple[tuple[int, int, int], Tensor]] = {}
        self._epochs: tuple[int, Epochs] | None = None
        self._last: tuple[tuple[int, int], Batch] | None = None

    @property
    def is_full(self) -> bool:
        """True if the only batch is that of all data."""
        return self._plates_of is None

    @property
    def repeatable(self) -> bool:
        """True if a batch can be made again at no cost."""
        return self._loader is None

    @property
    def steps_of_an_epoch(self) -> int | None:
        """Number of steps that use each element at most once; None if batches are independent or from a loader."""
        if self._plates_of is None or self._loader is not None or self._order == "independent":
            return None
        return max((size // drawn for size, drawn in self._plates_of({}).values()), default=None)

    def __call__(self, number: int) -> Batch:
        """Return the batch of a step: ``{plate: indices}`` and arguments by name, with a chain dimension if its own."""
        key = (self._seed, number)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._made(number))
        return self._last[1]

    def _made(self, number: int) -> Batch:
        if self._plates_of is None:
            return {}
        arguments, one = self._arguments(number) if self._loader is not None else ({}, {})
        shapes = shapes_of(one)
        if shapes not in self._plates:
            self._plates[shapes] = self._plates_of(one)
        plates = enumerate(self._plates[shapes].items())
        return {**arguments, **{name: self._indices(place, name, *of, number) for place, (name, of) in plates}}

    def _arguments(self, number: int) -> tuple[Batch, Batch]:
        """Return the arguments of all chains and those of one chain."""
        if self._epochs is None or self._epochs[0] != self._seed:
            seed = self._seed
            self._epochs = (seed, Epochs(self._loader or (), lambda number: seed_of(seed, number)))
        take, chains = self._epochs[1], self._chains
        if chains is None:
            arguments = arguments_of(take(number))
            return arguments, arguments
        # Copies, since a loader may reuse its memory; in a random order, or a chain would see every k-th only.
        each = [_copied(arguments_of(take(number * chains + k))) for k in range(chains)]
        order_of_chains = torch.Generator().manual_seed(seed_of(self._seed, chains, number))
        each = [each[k] for k in torch.randperm(chains, generator=order_of_chains).tolist()]
        return _stacked(each), each[0]

    def _indices(self, place: int, name: str, size: int, drawn: int, number: int) -> Tensor:
        """Return the indices of one plate, ``(drawn,)`` or ``(chains, drawn)``."""
        if self._order == "independent":
            random = self._random.manual_seed(seed_of(self._seed, place, number))
            front = () if self._chains is None else (self._chains,)
            return torch.randint(size, (*front, drawn), generator=random, device=random.device)
        whole = size // drawn
        epoch, step = divmod(number, 2 * whole if self._order == "symmetric" else whole)
        batch = step if step < whole else 2 * whole - 1 - step
        return self._permutation(place, name, size, epoch)[..., batch * drawn : (batch + 1) * drawn]

    def _permutation(self, place: int, name: str, size: int, epoch: int) -> Tensor:
        """Return the random order of a plate in an epoch, cached for the epoch."""
        key, permutation = self._permutations.get(name, (None, None))
        if permutation is None or key != (self._seed, size, epoch):
            random = self._random.manual_seed(seed_of(self._seed, place, epoch))
            front = () if self._chains is None else (self._chains,)
            each = [torch.randperm(size, generator=random, device=random.device) for _ in range(math.prod(front))]
            permutation = torch.stack(each).reshape(*front, size)
            self._permutations[name] = ((self._seed, size, epoch), permutation)
        return permutation


def _copied(batch: Batch) -> Batch:
    return {name: value.clone() for name, value in batch.items()}


def _stacked(each: list[Batch]) -> Batch:
    if len({shapes_of(batch) for batch in each}) > 1:
        raise ValueError(
            "per_chain_minibatches=True needs batches of one shape, and data_loader's differ: leave out the last "
            "smaller one (drop_last=True), or let chains share their batches."
        )
    return {name: torch.stack([batch[name] for batch in each]) for name in each[0]}


def check_order(order: object) -> None:
    """Raise ValueError unless it is one of the orders."""
    if order not in get_args(Order):
        raise ValueError(f"minibatches={order!r}, expected one of {list(get_args(Order))}.")
