"""The one place that builds a graph, compares it with what it stands for, and falls back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_manifold.graphs.agreement import FactorisationError, FlatFunction, difference
from pyro_manifold.graphs.native.values import NotWorthItError


class Trusted:
    """A function of tensors, by the fastest of its forms that gives what the function itself gives.

    It begins as the function. Each `attempt` builds another form of it, compares the two, and takes the new one if they
    agree. Where a form raises because some chain failed to factorise a matrix, the function itself is asked.

    Args:
        function: what every form stands for, tensors to a tuple of tensors.
        form: its name while no attempt has succeeded.
        common: how many of the last inputs belong to all rows together.

    Attributes:
        form: the name of the form in use.
    """

    def __init__(self, function: FlatFunction, form: str, common: int = 0) -> None:
        self._function = self._fastest = function
        self._own_form = self.form = form
        self._common = common

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        try:
            return self._fastest(*inputs)
        except FactorisationError:
            return self._function(*inputs)

    def attempt(
        self,
        form: str,
        build: Callable[[FlatFunction], FlatFunction],
        points: Iterable[Sequence[Tensor]],
        *,
        rows: list[int] | None = None,
        contains: Trusted | None = None,
        failure: str | None = None,
    ) -> bool:
        """Take another form, if it can be built and agrees with the function wherever they are compared.

        Args:
            form: its name.
            build: from the form in use to the new one; it can fail in any way.
            points: inputs to compare at; elsewhere than where the form was traced, if a branch on values is to be
                noticed. One at which a matrix cannot be factorised is passed over.
            rows: compare only these rows of inputs and outputs, where rows are chains and the function is slow.
            contains: another function that becomes part of it: if that could not become a graph, neither can this.
            failure: what to say in a warning if it fails, with ``{reason}`` in it; None to say nothing.

        Returns:
            Whether the new form is in use.
        """
        try:
            if contains is not None and not contains.is_graph:
                raise ValueError("the model cannot be traced")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deprecations inside torch's own compiler
                candidate = build(self._fastest)
                self._compare(candidate, points, rows)
        except Exception as error:  # a tracer or compiler can fail in any way; what there is goes on
            if failure is not None and not isinstance(error, NotWorthItError):
                warnings.warn(failure.format(reason=reason(error)), stacklevel=2)
            return False
        self._fastest, self.form = candidate, form
        return True

    @property
    def is_graph(self) -> bool:
        """Whether another form than the function itself is in use."""
        return self.form != self._own_form

    def difference_at(self, inputs: Sequence[Tensor], rows: list[int]) -> str | None:
        """What the form in use has different from the function at these rows of the inputs; None if nothing."""
        if not self.is_graph:
            return None
        try:
            return self._difference(self._fastest, inputs, rows)
        except FactorisationError:
            return None

    def forget(self) -> None:
        """Use the function itself from now on."""
        self._fastest, self.form = self._function, self._own_form

    def _compare(self, candidate: FlatFunction, points: Iterable[Sequence[Tensor]], rows: list[int] | None) -> None:
        compared = 0
        for inputs in points:
            try:
                differs = self._difference(candidate, inputs, rows)
            except FactorisationError:
                continue  # outside the support of some chain; another point decides
            compared += 1
            if differs:
                raise ValueError(differs)
        if not compared:
            raise ValueError("there is no point at which it can be compared with the model")

    def _difference(self, candidate: FlatFunction, inputs: Sequence[Tensor], rows: list[int] | None) -> str | None:
        if rows is None:
            return difference(candidate, self._function, inputs)
        own = len(inputs) - self._common

        def of_rows(*inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(value[rows] for value in candidate(*inputs))

        def function(*inputs: Tensor) -> tuple[Tensor, ...]:
            return self._function(*[value[rows] for value in inputs[:own]], *inputs[own:])

        return difference(of_rows, function, inputs)


def compiled(graph: FlatFunction, options: Mapping[str, Any] | None) -> FlatFunction:
    """The graph by `torch.compile`; shapes are those of its inputs unless ``options`` say otherwise."""
    function: FlatFunction = torch.compile(graph, **{"dynamic": False, **(options or {})})
    return function


def reason(error: Exception) -> str:
    """Why there is no graph: the first sentence of what a tracer or compiler said."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].split(". ")[0].rstrip(".")
