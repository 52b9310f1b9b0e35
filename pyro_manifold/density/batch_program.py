"""A model whose arguments are those of the current batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyro_manifold.density.batched import Batch

ArgumentsOf = Callable[[Batch], tuple[tuple[Any, ...], Mapping[str, Any]]]
"""Function from a batch to the positional and keyword arguments of a model."""


class BatchProgram:
    """A model whose arguments are those of the current batch.

    Args:
        model: a Pyro model.
        arguments_of: function from a batch to the model's arguments.
        batch: the first batch.
    """

    def __init__(self, model: Callable[..., Any], arguments_of: ArgumentsOf, batch: Batch) -> None:
        self._model, self._arguments_of, self._batch = model, arguments_of, batch

    def __call__(self) -> Any:
        """Run the model."""
        args, kwargs = self._arguments_of(self._batch)
        return self._model(*args, **kwargs)

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        """Run the model on another batch within this context; tensors that are not its arguments are left out."""
        before = self._batch
        self._batch = {name: value for name, value in batch.items() if name in before}
        try:
            yield
        finally:
            self._batch = before
