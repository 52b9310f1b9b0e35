"""Batches of a loader by number, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.density.batched import Batch

PREFIX = "argument "
"""Prefix of the names of a model's arguments in a batch."""

_END = object()


def check_loader(loader: object) -> None:
    """Raise ValueError unless it is an iterable over batches that can be iterated repeatedly."""
    if not isinstance(loader, Iterable):
        raise ValueError(f"data_loader={loader!r}, expected an iterable over batches, such as a DataLoader.")
    if isinstance(loader, Iterator):
        raise ValueError(
            "data_loader is an iterator, which ends after one epoch: pass the list or DataLoader that it comes from."
        )


def arguments_of(batch: Any) -> Batch:
    """Return the parts of a batch by name: those of a tuple as positional, of a dictionary as keyword arguments.

    Raises:
        ValueError: if a part is not a tensor with rows.
    """
    if isinstance(batch, Mapping):
        parts = {str(name): value for name, value in batch.items()}
    else:
        whole = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        parts = {str(index): value for index, value in enumerate(whole)}
    for name, value in parts.items():
        if not isinstance(value, Tensor):
            found = repr(value) if len(repr(value)) < 40 else f"of type {type(value).__name__}"
            raise ValueError(f"Part {name} of a batch of data_loader is {found}, expected a tensor.")
        if not value.dim() or not len(value):
            found = "has no rows" if value.dim() else "is a single number"
            raise ValueError(
                f"Part {name} of a batch of data_loader {found}, expected data along its first dimension; pass other "
                "arguments of the model to run() by keyword."
            )
    return {PREFIX + name: value for name, value in parts.items()}


class Epochs:
    """Batches of a loader by number, epoch after epoch.

    The random numbers of each epoch are determined by a seed and the number of the epoch: a run that is loaded
    continues at the same batch, and nothing else in the process changes the order. Generators of the loader are seeded
    too. Random numbers that a data set draws from other libraries are not controlled.

    Args:
        loader: an iterable over batches.
        seed_of: function from the number of an epoch to its seed.
    """

    def __init__(self, loader: Iterable[Any], seed_of: Callable[[int], int]) -> None:
        self._loader, self._seed_of = loader, seed_of
        self._length = length_of(loader)
        self._iterator: Iterator[Any] | None = None
        self._epoch = self._first = self._next = 0
        self._state = torch.empty(0)

    def __call__(self, number: int) -> Any:
        """Return the batch of a number, counted from 0."""
        behind = self._iterator is None or number < self._next
        far = self._length is not None and number - self._next > self._length
        if behind or far:
            self._begin(number // self._length if self._length else 0)
        while True:
            batch = self._take()
            if self._next > number:
                return batch

    def _begin(self, number: int) -> None:
        self._epoch, self._first = number, number * (self._length or 0)
        self._next = self._first
        seed = self._seed_of(number)
        for generator in _generators(self._loader):
            generator.manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._iterator = iter(self._loader)
            self._state = torch.get_rng_state()

    def _take(self) -> Any:
        while True:
            try:
                with self._own_random_numbers():
                    batch = next(self._iterator, _END)  # type: ignore[arg-type]
            except BaseException:
                self._iterator = None  # its position is not known after an error; the epoch begins again
                raise
            if batch is not _END:
                self._next += 1
                return batch
            self._end()

    def _end(self) -> None:
        found = self._next - self._first
        if not found:
            raise ValueError("data_loader gives no batch: expected at least one in each epoch.")
        if self._length not in (None, found):
            raise ValueError(
                f"data_loader gave {found} batches in an epoch and has a length of {self._length}: expected the same "
                "number in each epoch."
            )
        self._length = found
        self._begin(self._epoch + 1)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()


def length_of(items: object) -> int | None:
    """Return the length of a collection; None if it has none."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # a DataLoader over an iterable data set
        return None


def number_of_examples(loader: Iterable[Any]) -> int | None:
    """Return the number of examples in the data set of a loader; None if it is not known."""
    return length_of(getattr(loader, "dataset", None))


def _generators(loader: Iterable[Any]) -> Iterator[torch.Generator]:
    samplers = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for owner in (loader, *samplers, getattr(samplers[1], "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
