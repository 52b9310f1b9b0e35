"""Models whose arguments come in batches from a data loader."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from pyro import poutine
from torch import Tensor

from pyro_manifold.compiled import reason
from pyro_manifold.density.batch_program import BatchProgram
from pyro_manifold.density.batched import Batch, Sites
from pyro_manifold.density.epochs import PREFIX, Epochs, arguments_of, check_loader, length_of, number_of_examples
from pyro_manifold.density.minibatch import Minibatch, Plates, Subsample, shapes_of
from pyro_manifold.density.model import ModelTarget, target_from_model


def _arguments(others: Mapping[str, Any], batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a model, of which a batch has a part; numbers are places, and other names keywords."""
    parts = {name.removeprefix(PREFIX): value for name, value in batch.items()}
    positional = tuple(value for name, value in parts.items() if name.isdigit())
    return positional, {**{name: value for name, value in parts.items() if not name.isdigit()}, **others}


def _on_batch(
    program: BatchProgram, potential_fn: Callable[[Sites], Tensor], weight: float, sites: Sites, batch: Batch
) -> Tensor:
    """Compute the potential energy of a program on a batch."""
    with program.on(batch), Subsample(batch, weight):
        return potential_fn(sites)


class LoaderDensity:
    """Densities of a model on the batches of a loader, one for each shape of batches.

    Args:
        model: a Pyro model.
        kwargs: its keyword arguments, the same for all batches.
        first: the arguments of a first batch.
        loader: the loader of the batches.
        options: options of `target_from_model`.

    Attributes:
        target: the target of the model on the first batch.
    """

    def __init__(
        self, model: Callable[..., Any], kwargs: Mapping[str, Any], first: Batch, loader: Iterable[Any], **options: Any
    ) -> None:
        self._model, self._kwargs, self._options = model, dict(kwargs), options
        self._made: dict[Any, Minibatch] = {}
        self._first, self._mean_length = first, _mean_length(loader)
        target, self._weights, self._sites = self._build(first)
        self.target = replace(target, minibatch_of=self, loader=loader)
        _warn_of_weights(self._weights, first, number_of_examples(loader), length_of(loader))
        _warn_of_sizes(self._made[shapes_of(first)].plates, first, loader)

    def __call__(self, arguments: Batch) -> Minibatch:
        """Return the density on batches with the shapes of these arguments.

        Raises:
            ValueError: if the model cannot be run on them, has other sites than on the first batch, or scales its data
                to another total number.
        """
        arguments = {name: value for name, value in arguments.items() if name.startswith(PREFIX)}
        shapes = shapes_of(arguments)
        if shapes not in self._made:
            with torch.random.fork_rng(devices=[]):  # so that these runs do not change later random numbers
                _, weights, sites = self._other(arguments)
            if sites != self._sites:
                raise ValueError(
                    f"On a batch of shapes {_batch_shapes(arguments)} the model has the sites {_shapes(sites)}, on the "
                    f"first {_shapes(self._sites)}: sites must not depend on the batch."
                )
            for name, weight in weights.items():
                before = self._weights.get(name, weight)
                # Scales may be weights of the rows of a batch; the sizes of plates alone count in that case.
                if not any(math.isclose(*pair, rel_tol=1e-3) for pair in zip(weight, before, strict=True)):
                    raise ValueError(
                        f"Site '{name}' stands for {weight[0]:.6g} data on a batch of shapes "
                        f"{_batch_shapes(arguments)}, for {before[0]:.6g} on the first: give its plate the size of all "
                        "data, "
                        "pyro.plate(name, size, subsample_size=len(batch)), or leave out the last batch (drop_last)."
                    )
        return self._made[shapes]

    def _other(self, arguments: Batch) -> tuple[ModelTarget, Weights, Shapes]:
        """Return the target on batches of another shape than the first."""
        try:
            return self._build(arguments)
        except RuntimeError as error:
            raise ValueError(
                f"The model cannot be run on a batch of shapes {_batch_shapes(arguments)} ({reason(error)}), as it "
                f"could on the first, of shapes {_batch_shapes(self._first)}: check the batches of data_loader."
            ) from error

    def _weight_of(self, arguments: Batch) -> float:
        """Return the weight of a batch: batches are equally frequent, so rows of a shorter one would count more."""
        lengths = {len(value) for value in arguments.values()}
        if self._mean_length is None or len(lengths) != 1:
            return 1.0
        return lengths.pop() / self._mean_length

    def _build(self, arguments: Batch) -> tuple[ModelTarget, Weights, Shapes]:
        program = BatchProgram(self._model, partial(_arguments, self._kwargs), arguments)
        target = target_from_model(program, **{**self._options, "subsample": True})
        plates = target.on({}).plates
        potential_fn = partial(_on_batch, program, target.potential_fn, self._weight_of(arguments))
        self._made[shapes_of(arguments)] = Minibatch(potential_fn, plates)
        trace = poutine.block(poutine.trace(target.program).get_trace)()
        values = {name: trace.nodes[name]["value"] for name in [*target.manifolds, *target.transforms]}
        shapes = {name: value.shape for name, value in target.positions(values).items()}
        return target, _weights(trace), shapes


Shapes = dict[str, torch.Size]
"""Shapes of the sites of one chain, in unconstrained space if they have no manifold."""

Weights = dict[str, tuple[float, float]]
"""The number of data that each observed site stands for, by its scale and by the sizes of its plates."""


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


def _warn_of_weights(weights: Weights, first: Batch, examples: int | None, batches: int | None) -> None:
    lengths = {len(value) for value in first.values()}
    if (batches or 0) > 1 and weights and all(weight == 1 for weight, _ in weights.values()):
        warnings.warn(
            f"Sites {sorted(weights)} count the data of a batch as if there were no others, and the posterior is that "
            "of one batch: put them into a plate of the size of all data, pyro.plate(name, size, "
            "subsample_size=len(batch)).",
            stacklevel=2,
        )
    for name, (weight, _) in weights.items():
        if examples is not None and examples > weight and weight in lengths:
            warnings.warn(
                f"Site '{name}' stands for the {weight:.0f} data of a batch, but data_loader has {examples}, and the "
                f"posterior is that of one batch: give its plate the size of all data, pyro.plate(name, {examples}, "
                "subsample_size=len(batch)).",
                stacklevel=2,
            )


def _warn_of_sizes(plates: Plates, first: Batch, loader: Iterable[Any]) -> None:
    lengths = {len(value) for value in first.values()}
    counts = number_of_examples(loader), length_of(getattr(loader, "sampler", None))
    known = [count for count in counts if count is not None]
    for name, (size, drawn) in plates.items():
        if known and drawn in lengths and size not in known:
            warnings.warn(
                f"The plate '{name}' of the rows of a batch has the size {size}, but data_loader has {known[0]} "
                f"examples, and the posterior is that of {size} data: give it the size of all data, "
                f"pyro.plate('{name}', {known[0]}).",
                stacklevel=2,
            )


def _mean_length(loader: Iterable[Any]) -> float | None:
    """Return the mean length of batches over an epoch; None if it is not known without iterating the loader."""
    if isinstance(loader, list | tuple):
        lengths = [len(next(iter(arguments_of(batch).values()))) for batch in loader]
        return sum(lengths) / len(lengths)
    size, examples = getattr(loader, "batch_size", None), length_of(getattr(loader, "sampler", None))
    batches = length_of(loader)
    if not isinstance(size, int) or examples is None or not batches:
        return None
    return size if getattr(loader, "drop_last", False) else examples / batches


def _batch_shapes(arguments: Batch) -> str:
    return ", ".join(str(tuple(value.shape)) for value in arguments.values())


def _shapes(sites: Mapping[str, torch.Size]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in sites.items()}


def target_from_loader(
    model: Callable[..., Any], loader: Iterable[Any], kwargs: Mapping[str, Any], **options: Any
) -> ModelTarget:
    """Return the target of a Pyro model whose first arguments are the batches of a loader.

    Args:
        model: a Pyro model.
        loader: an iterable over batches that can be iterated repeatedly, such as a torch ``DataLoader``.
        kwargs: its other arguments, by name.
        **options: options of `target_from_model`.

    Raises:
        ValueError: if the loader is empty, or a batch has parts that are not tensors.
    """
    check_loader(loader)
    first = arguments_of(Epochs(loader, lambda _: 0)(0))
    return LoaderDensity(model, kwargs, first, loader, **options).target
