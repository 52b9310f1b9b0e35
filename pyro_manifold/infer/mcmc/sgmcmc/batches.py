"""In which order minibatches come: the batch of a step, as a function of the step's number and a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.saving import Saved
from pyro_manifold.target.batched import Batch
from pyro_manifold.target.loader import Passes, arguments_of
from pyro_manifold.target.minibatch import MinibatchOf, shapes_of

Order = Literal["shuffled", "symmetric", "independent"]


def seed_of(seed: int, *numbers: int) -> int:
    """A seed for each tuple of numbers, far from each other."""
    for number in numbers:
        seed = (seed * 6364136223846793005 + 0x9E3779B97F4A7C15 * (number + 1)) % 2**63
    return seed


class PlateBatches(Saved):
    """Indices of the plates that subsample, one batch a step.

    ``"shuffled"`` goes through the elements of each plate in a random order, and takes a new order when all have come.
    Over such an epoch every element comes once, so that errors cancel which ``"independent"`` batches leave, whose
    elements are drawn with replacement. ``"symmetric"`` goes through them forwards, then backwards, and then takes a
    new order: with a symmetric step the bias of minibatches is then of second order in the step size (Paulin, Whalley,
    Chada & Leimkuhler, arXiv 2410.19780, in flat space). In all three every element is as likely in a batch as any
    other: the gradient is unbiased. Elements that do not fill a last batch are left out of their epoch; which ones is
    chance.

    Args:
        plates: ``{plate: (size, subsample size)}``.
        order: one of the three.
        chains: None for one batch that all chains share, else how many chains have batches of their own.
        device: of the indices.
        seed: of all orders.

    Raises:
        ValueError: for another order.
    """

    changing = ("_seed",)

    def __init__(
        self,
        plates: Mapping[str, tuple[int, int]],
        order: Order = "shuffled",
        chains: int | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        check_order(order)
        self._plates, self._order = dict(plates), order
        self._front = () if chains is None else (chains,)
        self._random = torch.Generator(device)
        self._seed = seed
        self._permutations: dict[str, tuple[tuple[int, int], Tensor]] = {}

    def __call__(self, number: int) -> Batch:
        """The batch of a step, ``{plate: indices}``, ``(subsample size,)`` or ``(chains, subsample size)``."""
        return {name: self._of(place, name, number) for place, name in enumerate(self._plates)}

    def _of(self, place: int, name: str, number: int) -> Tensor:
        size, drawn = self._plates[name]
        if self._order == "independent":
            random = self._random.manual_seed(seed_of(self._seed, place, number))
            return torch.randint(size, (*self._front, drawn), generator=random, device=random.device)
        whole = size // drawn
        epoch, step = divmod(number, 2 * whole if self._order == "symmetric" else whole)
        batch = step if step < whole else 2 * whole - 1 - step
        return self._permutation(place, name, epoch)[..., batch * drawn : (batch + 1) * drawn]

    def _permutation(self, place: int, name: str, epoch: int) -> Tensor:
        """Of an epoch, kept while the epoch lasts."""
        key, permutation = self._permutations.get(name, (None, None))
        if permutation is None or key != (self._seed, epoch):
            random = self._random.manual_seed(seed_of(self._seed, place, epoch))
            size, rows = self._plates[name][0], math.prod(self._front)
            each = [torch.randperm(size, generator=random, device=random.device) for _ in range(rows)]
            permutation = torch.stack(each).reshape(*self._front, size)
            self._permutations[name] = ((self._seed, epoch), permutation)
        return permutation


class LoaderBatches(Saved):
    """Batches of a loader, in its own order, with indices of plates that subsample beside them.

    Args:
        loader: an iterable over batches.
        minibatch_of: tells which plates the model has on a batch.
        order: of the plates' indices.
        chains: None for one batch that all chains share, else how many chains have batches of their own.
        device: of the plates' indices.
        seed: of all orders.
    """

    changing = ("_seed",)

    def __init__(
        self,
        loader: Iterable[Any],
        minibatch_of: MinibatchOf,
        order: Order = "shuffled",
        chains: int | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        check_order(order)
        if order == "symmetric":
            raise ValueError("minibatches='symmetric' is for plates with subsample_size: a loader has its own order.")
        self._loader, self._minibatch_of, self._seed = loader, minibatch_of, seed
        self._options: tuple[Order, int | None, torch.device | str] = (order, chains, device)
        self._passes: tuple[int, Passes] | None = None
        self._plates: dict[Any, PlateBatches] = {}
        self._last: tuple[tuple[int, int], Batch] | None = None

    def __call__(self, number: int) -> Batch:
        """The batch of a step: arguments and indices by name."""
        key = (self._seed, number)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._made(number))
        return self._last[1]

    def _made(self, number: int) -> Batch:
        if self._passes is None or self._passes[0] != self._seed:
            seed = self._seed
            self._passes = (seed, Passes(self._loader, lambda number: seed_of(seed, number)))
        take, (order, chains, device) = self._passes[1], self._options
        if chains is None:
            arguments = one = arguments_of(take(number))
        else:
            # Copies, for a loader may use its memory again; in a random order, or a chain would see every k-th only.
            each = [_copied(arguments_of(take(number * chains + k))) for k in range(chains)]
            order_of_chains = torch.Generator().manual_seed(seed_of(self._seed, chains, number))
            each = [each[k] for k in torch.randperm(chains, generator=order_of_chains).tolist()]
            arguments, one = _stacked(each), each[0]
        key = self._seed, shapes_of(one)
        if key not in self._plates:
            self._plates[key] = PlateBatches(self._minibatch_of(one).plates, order, chains, device, self._seed)
        return {**arguments, **self._plates[key](number)}


def _copied(batch: Batch) -> Batch:
    return {name: value.clone() for name, value in batch.items()}


def _stacked(each: list[Batch]) -> Batch:
    if len({shapes_of(batch) for batch in each}) > 1:
        raise ValueError(
            "own_minibatches=True needs batches of one shape, and data_loader's differ: leave out the last smaller one "
            "(drop_last=True), or let chains share their batches."
        )
    return {name: torch.stack([batch[name] for batch in each]) for name in each[0]}


def check_order(order: object) -> None:
    """Raise a sentence unless it is one of the orders."""
    if order not in get_args(Order):
        raise ValueError(f"minibatches={order!r}, expected one of {list(get_args(Order))}.")
