"""A model whose arguments come from a loader, batch after batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.graphs.trusted import reason
from pyro_manifold.target.batched import Batch, Sites
from pyro_manifold.target.minibatch import Minibatch, Plates, Subsample, in_minibatches, shapes_of
from pyro_manifold.target.model import ModelTarget, target_from_model

_PREFIX = "argument "
_END = object()


@dataclass(frozen=True)
class FromLoader:
    """Stands for a model's arguments that come from a loader: ``kernel.setup(warmup_steps, FromLoader(loader))``.

    Args:
        loader: an iterable over batches that can be gone through again and again, such as a torch ``DataLoader``.

    Raises:
        ValueError: for something else, or an iterator, which ends after one pass.
    """

    loader: Iterable[Any]

    def __post_init__(self) -> None:
        if not isinstance(self.loader, Iterable):
            raise ValueError(f"data_loader={self.loader!r}, expected an iterable over batches, such as a DataLoader.")
        if isinstance(self.loader, Iterator):
            raise ValueError(
                "data_loader is an iterator, which ends after one pass: give what it comes from, a list or DataLoader."
            )


def arguments_of(batch: Any) -> Batch:
    """A loader's batch by name: a tuple's parts are positional arguments, a dictionary's are keyword arguments.

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
            said = repr(value) if len(repr(value)) < 40 else f"of type {type(value).__name__}"
            raise ValueError(f"Part {name} of a batch of data_loader is {said}, expected a tensor.")
        if not value.dim() or not len(value):
            said = "has no rows" if value.dim() else "is a single number"
            raise ValueError(
                f"Part {name} of a batch of data_loader {said}, expected data along its first dimension; what is no "
                "data is a keyword argument of run()."
            )
    return {_PREFIX + name: value for name, value in parts.items()}


class Passes:
    """Batches of a loader by number, pass after pass.

    Each pass has random numbers that follow from a seed and the number of the pass: a run that is loaded finds its
    place again, and nothing else in the process changes the order. Generators that the loader has are seeded too.
    What a data set draws from other libraries' generators is its own affair.

    Args:
        loader: an iterable over batches.
        seed_of: the seed of a pass, by its number.
    """

    def __init__(self, loader: Iterable[Any], seed_of: Callable[[int], int]) -> None:
        self._loader, self._seed_of = loader, seed_of
        self._length = _length(loader)
        self._iterator: Iterator[Any] | None = None
        self._pass = self._begun = self._next = 0
        self._state = torch.empty(0)

    def __call__(self, number: int) -> Any:
        """The batch of a number, counted from 0."""
        behind = self._iterator is None or number < self._next
        far = self._length is not None and number - self._next > self._length
        if behind or far:
            self._begin(number // self._length if self._length else 0)
        while True:
            batch = self._take()
            if self._next > number:
                return batch

    def _begin(self, number: int) -> None:
        self._pass, self._begun = number, number * (self._length or 0)
        self._next = self._begun
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
                self._iterator = None  # nobody knows how far it came; the pass begins again
                raise
            if batch is not _END:
                self._next += 1
                return batch
            self._end()

    def _end(self) -> None:
        found = self._next - self._begun
        if not found:
            raise ValueError("data_loader gives no batch: expected at least one in each pass.")
        if self._length not in (None, found):
            raise ValueError(
                f"data_loader gave {found} batches in a pass and has a length of {self._length}: expected as many in "
                "each pass."
            )
        self._length = found
        self._begin(self._pass + 1)

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()


def _length(items: object) -> int | None:
    """How many there are, if they know."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:  # a DataLoader over a stream
        return None


def cases_of(loader: Iterable[Any]) -> int | None:
    """How many cases a loader's data set has, if it has one that knows."""
    return _length(getattr(loader, "dataset", None))


def _generators(loader: Iterable[Any]) -> Iterator[torch.Generator]:
    samplers = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for owner in (loader, *samplers, getattr(samplers[1], "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator


class _Program:
    """A model with the arguments of a batch, which can be exchanged."""

    def __init__(self, model: Callable[..., Any], kwargs: Mapping[str, Any], arguments: Batch) -> None:
        self._model, self._kwargs, self._arguments = model, dict(kwargs), arguments

    def __call__(self) -> Any:
        parts = {name.removeprefix(_PREFIX): value for name, value in self._arguments.items()}
        positional = [value for name, value in parts.items() if name.isdigit()]
        named = {name: value for name, value in parts.items() if not name.isdigit()}
        return self._model(*positional, **named, **self._kwargs)

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        before = self._arguments
        self._arguments = {name: value for name, value in batch.items() if name in before}
        try:
            yield
        finally:
            self._arguments = before


class _Weighted(Messenger):
    """Sites in plates that see a part of their elements count so many times more."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self._weight = weight

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if in_minibatches(msg):
            msg["scale"] = msg["scale"] * self._weight


class _OnBatch:
    """Potential energy of a program on a batch."""

    def __init__(self, program: _Program, potential_fn: Callable[[Sites], Tensor], weight: float) -> None:
        self._program, self._potential_fn, self._weight = program, potential_fn, weight

    def __call__(self, sites: Sites, batch: Batch) -> Tensor:
        with self._program.on(batch), _Weighted(self._weight), Subsample(batch):
            return self._potential_fn(sites)


class LoaderDensity:
    """Densities of a model on the batches of a loader, one for each of the shapes that batches have.

    Args:
        model: a Pyro model.
        kwargs: its arguments beside those of a batch.
        first: the arguments of a first batch.
        loader: whose batches they are.
        options: of `target_from_model`.

    Attributes:
        target: of the model on the first batch.
    """

    def __init__(
        self, model: Callable[..., Any], kwargs: Mapping[str, Any], first: Batch, loader: Iterable[Any], **options: Any
    ) -> None:
        self._model, self._kwargs, self._options = model, dict(kwargs), options
        self._made: dict[Any, Minibatch] = {}
        self._first, self._mean_length = first, _mean_length(loader)
        target, self._weights = self._build(first)
        self._sites = {name: value.shape for name, value in target.draw().items()}
        self.target = replace(target, minibatch_of=self, loader=loader)
        _warn_of_weights(self._weights, first, cases_of(loader), _length(loader))
        _warn_of_sizes(self._made[shapes_of(first)].plates, first, loader)

    def __call__(self, arguments: Batch) -> Minibatch:
        """The density on batches like these arguments.

        Raises:
            ValueError: if the model cannot be run on them, then has other sites, or counts its data another number of
                times.
        """
        arguments = {name: value for name, value in arguments.items() if name.startswith(_PREFIX)}
        shapes = shapes_of(arguments)
        if shapes not in self._made:
            with torch.random.fork_rng(devices=[]):  # to look at the model must not change what others draw
                target, weights = self._other(arguments)
                sites = {name: value.shape for name, value in target.draw().items()}
            if sites != self._sites:
                raise ValueError(
                    f"On a batch of shapes {_in_words(arguments)} the model has the sites {_shapes(sites)}, on the "
                    f"first {_shapes(self._sites)}: sites must not depend on the batch."
                )
            for name, weight in weights.items():
                before = self._weights.get(name, weight)
                # By scales, or by sizes of plates alone, where scales are weights of the rows of a batch.
                if not any(math.isclose(*pair, rel_tol=1e-3) for pair in zip(weight, before, strict=True)):
                    raise ValueError(
                        f"Site '{name}' stands for {weight[0]:.6g} data on a batch of shapes {_in_words(arguments)}, "
                        f"for {before[0]:.6g} on the first: give its plate the size of the whole data, "
                        "pyro.plate(name, size, subsample_size=len(batch)), or leave out the last batch (drop_last)."
                    )
        return self._made[shapes]

    def _other(self, arguments: Batch) -> tuple[ModelTarget, Weights]:
        """The target on batches of another shape than the first."""
        try:
            return self._build(arguments)
        except RuntimeError as error:
            raise ValueError(
                f"The model cannot be run on a batch of shapes {_in_words(arguments)} ({reason(error)}), as it could "
                f"on the first, of shapes {_in_words(self._first)}: is that batch what the model expects?"
            ) from error

    def _weight_of(self, arguments: Batch) -> float:
        """Batches come equally often, so that the rows of a short one would count more than those of others."""
        lengths = {len(value) for value in arguments.values()}
        if self._mean_length is None or len(lengths) != 1:
            return 1.0
        return lengths.pop() / self._mean_length

    def _build(self, arguments: Batch) -> tuple[ModelTarget, Weights]:
        program = _Program(self._model, self._kwargs, arguments)
        target = target_from_model(program, subsample=True, **self._options)
        plates = target.minibatch_of({}).plates if target.minibatch_of else {}
        potential_fn = _OnBatch(program, target.potential_fn, self._weight_of(arguments))
        self._made[shapes_of(arguments)] = Minibatch(potential_fn, plates)
        trace = poutine.block(poutine.trace(target.program).get_trace)()
        return target, _weights(trace)


Weights = dict[str, tuple[float, float]]
"""How many data each observed site stands for: its number of them by its scale, and by the sizes of its plates."""


def _weights(trace: poutine.Trace) -> Weights:
    observed = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and site["is_observed"] and not poutine.util.site_is_subsample(site)
    }
    return {
        name: (
            float(torch.as_tensor(site["scale"]).double().mean()) * site["fn"].batch_shape.numel(),
            float(math.prod(frame.full_size or frame.size for frame in site["cond_indep_stack"])),
        )
        for name, site in observed.items()
    }


def _warn_of_weights(weights: Weights, first: Batch, cases: int | None, batches: int | None) -> None:
    lengths = {len(value) for value in first.values()}
    if (batches or 0) > 1 and weights and all(weight == 1 for weight, _ in weights.values()):
        warnings.warn(
            f"Sites {sorted(weights)} count the data of a batch as if there were no others, for the posterior of "
            "one batch: put them into a plate of the size of all, pyro.plate(name, size, subsample_size=len(batch)).",
            stacklevel=2,
        )
    for name, (weight, _) in weights.items():
        if cases is not None and cases > weight and weight in lengths:
            warnings.warn(
                f"Site '{name}' stands for the {weight:.0f} data of a batch, but data_loader has {cases}: give its "
                f"plate the size of all, pyro.plate(name, {cases}, subsample_size=len(batch)), or the posterior is "
                "that of one batch.",
                stacklevel=2,
            )


def _warn_of_sizes(plates: Plates, first: Batch, loader: Iterable[Any]) -> None:
    lengths = {len(value) for value in first.values()}
    cases = [count for count in (cases_of(loader), _length(getattr(loader, "sampler", None))) if count is not None]
    for name, (size, drawn) in plates.items():
        if cases and drawn in lengths and size not in cases:
            warnings.warn(
                f"The plate '{name}' of the rows of a batch has the size {size}, but data_loader has {cases[0]} cases, "
                f"and the posterior is that of {size} data: give it the size of all, pyro.plate('{name}', {cases[0]}).",
                stacklevel=2,
            )


def _mean_length(loader: Iterable[Any]) -> float | None:
    """Of batches over a pass, where that can be known without going through it."""
    if isinstance(loader, list | tuple):
        lengths = [len(next(iter(arguments_of(batch).values()))) for batch in loader]
        return sum(lengths) / len(lengths)
    size, cases = getattr(loader, "batch_size", None), _length(getattr(loader, "sampler", None))
    batches = _length(loader)
    if not isinstance(size, int) or cases is None or not batches:
        return None
    return size if getattr(loader, "drop_last", False) else cases / batches


def _in_words(arguments: Batch) -> str:
    return ", ".join(str(tuple(value.shape)) for value in arguments.values())


def _shapes(sites: Mapping[str, torch.Size]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in sites.items()}


def target_from_loader(
    model: Callable[..., Any], source: FromLoader, kwargs: Mapping[str, Any], **options: Any
) -> ModelTarget:
    """A target from a Pyro model whose first arguments are a loader's batches.

    Args:
        model: a Pyro model.
        source: where its arguments come from.
        kwargs: its other arguments, by name.
        **options: of `target_from_model`.

    Raises:
        ValueError: if the loader is empty, or a batch has something else than tensors.
    """
    first = arguments_of(Passes(source.loader, lambda _: 0)(0))
    return LoaderDensity(model, kwargs, first, source.loader, **options).target
