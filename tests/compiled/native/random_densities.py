"""Densities put together at random from the operators of the table, and how far rounding moves them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, fx

from pyro_manifold.compiled import PRODUCTS, folded_graph, trace
from pyro_manifold.compiled.native import ELEMENTWISE
from tests.compiled.native.special_functions import in_torch
from tests.compiled.native.test_activations import ACTIVATIONS
from tests.compiled.native.test_operators import MATRICES, POSITIVE, STRUCTURE, WITHIN_ONE

SHAPE = (3, 4)
Density = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[list[Tensor]], Tensor]

_ARITY = {
    name: 1 + max(k for k in range(3) if f"{{{k}}}" in template)
    for name, template in ELEMENTWISE.items()
    if hasattr(torch, name) or name.startswith("special_")
}
UNARY = [name for name, arity in _ARITY.items() if arity == 1 and not name.startswith("bitwise")]
BINARY = [name for name, arity in _ARITY.items() if arity == 2 and not name.startswith(("bitwise", "masked"))]
"""All functions of numbers in the table; the other operators come by the cases of ``test_operators.py``."""

_INTO_THE_DOMAIN = {
    **dict.fromkeys(POSITIVE, lambda x: x.abs() + 0.1),
    **dict.fromkeys(WITHIN_ONE, lambda x: 0.9 * x.tanh()),
    "acosh": lambda x: x.abs() + 1.1,
    "special_ndtri": torch.sigmoid,
    "special_entr": lambda x: x.abs() + 0.1,
}
_SMALLER = [torch.tanh, torch.sigmoid, torch.atan, torch.asinh, lambda x: x / (1 + x.abs()), lambda x: x.cos()]
"""Functions that keep values finite at large scales, since a density that is NaN is not informative."""


def random_density(number: int) -> Density:
    """Density of two matrices ``(3, 4)``, always the same for a number."""
    choice = random.Random(number)
    steps = [_random_step(choice, 2 + k) for k in range(choice.randint(3, 7))]
    last, other = choice.randrange(3), choice.randrange(2 + len(steps))
    reduce = choice.choice([torch.sum, torch.mean, lambda x: x.square().sum(), lambda x: x.logsumexp((0, 1))])

    def density(x: Tensor, y: Tensor) -> Tensor:
        values = [x, y]
        for step in steps:
            values.append(step(values))
        return reduce(values[-1]) + (0 if last else values[other].mean())

    return density


def _random_step(choice: random.Random, known: int) -> Step:
    """Return a random step from the values so far to one more, each ``(3, 4)``."""
    newest = choice.random() < 0.7  # or densities would be many short ones
    first, second = known - 1 if newest else choice.randrange(known), choice.randrange(known)
    kind = choice.choice([_unary, _unary, _binary, _structure, _structure, _matrix, _smaller])
    function, rest = kind(choice), choice.choice([0, 0.5, -2])  # many functions are flat, or constant far away
    return lambda values: function(values[first], values[second]) + (rest * values[first] if rest else 0)


def _unary(choice: random.Random) -> Callable[..., Tensor]:
    name, within = choice.choice(UNARY), choice.random() < 0.7
    into = _INTO_THE_DOMAIN.get(name) if within else None
    return lambda x, _: in_torch(name)(into(x) if into else x).to(x.dtype)


def _binary(choice: random.Random) -> Callable[..., Tensor]:
    name = choice.choice(BINARY)
    return lambda x, y: in_torch(name)(x, y).to(x.dtype)


def _smaller(choice: random.Random) -> Callable[..., Tensor]:
    function = choice.choice(_SMALLER)
    return lambda x, _: function(x)


def _structure(choice: random.Random) -> Callable[..., Tensor]:
    return _one_result_of(choice, _CASES)


def _converted(x: Tensor, y: Tensor) -> Sequence[Tensor]:
    return STRUCTURE["conversions"](1000 * x.tanh(), y)


_CASES = {**STRUCTURE, "conversions": _converted}
_CASES |= {name: (lambda x, y, function=function: (function(x, y),)) for name, function in ACTIVATIONS.items()}
"""To a whole number that its type cannot hold a conversion is undefined, in C and in torch."""


def _matrix(choice: random.Random) -> Callable[..., Tensor]:
    case, regular = _one_result_of(choice, MATRICES), choice.random() < 0.8

    def function(x: Tensor, y: Tensor) -> Tensor:
        a = _fitted(x, (4, 4), 0) * _UNEQUAL.to(x)
        a = a.tanh() + 3 * torch.eye(4).to(x) if regular else a + 0.01 * torch.eye(4).to(x)
        return case(a, _fitted(y, (4, 3), 0))

    return function


_UNEQUAL = 1 + 0.5 * torch.arange(16.0).square().cos().reshape(4, 4)
"""Factors that leave no two rows alike: of an exactly singular matrix rounding decides the sign of the determinant."""


def _one_result_of(choice: random.Random, cases: dict[str, Callable[..., Sequence[Tensor]]]) -> Callable[..., Tensor]:
    name, place, way = choice.choice(list(cases)), choice.randrange(100), choice.randrange(3)

    def function(x: Tensor, y: Tensor) -> Tensor:
        results = cases[name](x, y)
        return _fitted(results[place % len(results)].to(x.dtype), SHAPE, way)

    return function


def _fitted(x: Tensor, shape: tuple[int, int], way: int) -> Tensor:
    """Return as many elements as a shape has, with repetition if there are fewer."""
    row, size = x.reshape(-1), shape[0] * shape[1]
    if not len(row):
        return x.sum() + torch.zeros(shape).to(x)
    if len(row) > size:
        row = (row[:size], row[-size:], row.flip(0)[:size])[way]
    elif len(row) < size:
        places = torch.arange(size) % len(row)
        row = row[places] if way else torch.cat([row] * size)[:size]
    return row.reshape(shape)


# ---- energy and gradient in three ways --------------------------------------------------------------------------


def energy_and_gradient(density: Density) -> Callable[..., list[Tensor]]:
    """Return the function for energy and gradient of one chain, as in targets."""

    def function(*values: Tensor) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            energy = density(*leaves)
            if not energy.requires_grad:
                return [energy, *map(torch.zeros_like, values)]
            gradient = torch.autograd.grad(energy, leaves, allow_unused=True)
        zeros = map(torch.zeros_like, values)
        return [energy.detach(), *[zero if g is None else g.detach() for zero, g in zip(zeros, gradient, strict=True)]]

    return function


class OfManyChains:
    """Energy and gradient ``(chains, ...)`` in torch: chain by chain, as a folded graph, and with noise in each value.

    Args:
        density: of one chain.
        *inputs: ``(chains, ...)``.

    Raises:
        RuntimeError: if the density does not exist at the first of the chains.
    """

    def __init__(self, density: Density, *inputs: Tensor) -> None:
        self._function, self._inputs = energy_and_gradient(density), inputs
        self._same = [value[:1].repeat(len(value), 1, 1) for value in inputs]  # where each matrix has a factor
        one = trace(self._function, *[value[0].clone() for value in inputs])
        self._batched = trace(torch.vmap(one), *self._same)

    def eager(self) -> Iterator[list[Tensor] | None]:
        """Evaluate chain by chain; None where a matrix has no factor."""
        for values in zip(*self._inputs, strict=True):
            try:
                yield self._function(*values)
            except RuntimeError:  # torch.linalg.LinAlgError, or of a zero in LU
                yield None

    def traced(self) -> list[Tensor] | None:
        """Evaluate the graph that targets use; None if a matrix of some chain has no factor."""
        graph = folded_graph(self._batched, *self._same, then=PRODUCTS)
        return self._unless_no_factor(graph)

    def disturbed(self, noise: torch.Generator | float) -> list[Tensor] | None:
        """Evaluate with each result perturbed by 1e-12 of it; None if a matrix of some chain has no factor.

        Args:
            noise: moves are drawn uniformly from [-1, 1] times 1e-12, or are all the number given times 1e-12.
        """
        return self._unless_no_factor(_Disturbed(self._batched, noise).run)

    def _unless_no_factor(self, function: Callable[..., list[Tensor]]) -> list[Tensor] | None:
        try:
            return function(*self._inputs)
        except RuntimeError:  # torch.linalg.LinAlgError, or of a zero in LU
            return None


_EXACT = {"abs", "neg", "relu", "sign", "floor", "ceil", "round", "trunc", "maximum", "minimum", "clamp", "where"}
_EXACT |= {"masked_fill", "amax", "amin", "max", "min", "clone", "_to_copy", "cat", "flip", "roll", "gather", "index"}
_EXACT |= {
    "index_select",
    "embedding",
    "zeros_like",
    "ones_like",
    "full_like",
    "fill",
    "constant_pad_nd",
    "tril",
    "triu",
}
_EXACT |= {"sort", "topk", "kthvalue", "median", "nanmedian", "cummax", "cummin", "argmax", "argmin"}
_EXACT |= {"slice_backward", "select_backward", "diagonal_backward", "slice_scatter", "select_scatter", "sgn"}


_OF_FEWER_DIGITS = {"digamma": 1e-12, "polygamma": 1e-8, "hardsigmoid_backward": 1e-6}
"""By how much the results of operators are moved that torch has fewer digits of, and their arguments by 1e-12.

Its trigamma is six terms of a series; near a pole of digamma its argument loses digits; a sixth of hardsigmoid's slope
has the digits of float32.
"""


_OF_A_DIFFERENCE = {"gelu", "gelu_backward", "_softmax_backward_data", "_log_softmax_backward_data"}
"""Operators that subtract nearly equal numbers inside: far out Φ is 1 + erf, and the slope of a probability near 1 is
1 less that probability. Their results are moved by 1e-15 of what they subtract, and native code may be more exact.
"""


class _Disturbed(fx.Interpreter):
    """Runs a graph with noise in the result of each operator that rounds, and in what sums and the like are of."""

    def __init__(self, module: fx.GraphModule, noise: torch.Generator | float) -> None:
        super().__init__(module)
        self._noise = noise

    def call_function(self, target, args, kwargs):  # type: ignore[no-untyped-def]
        result = super().call_function(target, args, kwargs)
        schema = getattr(target, "_schema", None)
        exact = schema is None or schema.is_mutable or target.__name__.split(".")[0] in _EXACT
        if exact or any(argument.alias_info is not None for argument in schema.arguments):
            return result
        name = target.__name__.split(".")[0]
        # Sums, factorisations: they round as if their arguments were others.
        if torch.Tag.pointwise not in target.tags or name in _OF_FEWER_DIGITS:
            result = super().call_function(target, tuple(map(self._moved, args)), kwargs)
        if isinstance(result, tuple | list):
            return type(result)(self._moved(part) for part in result)
        if name == "polygamma":
            result = _with_poles(result, *args)
        if name in _OF_A_DIFFERENCE:
            size = _subtracted(name, *args)
            result = result + 1e-15 * (self._moved(size, 1.0) - size)
        return self._moved(result, _OF_FEWER_DIGITS.get(name, 1e-12))

    def _moved(self, value: object, share: float = 1e-12) -> object:
        if isinstance(value, list):
            return [self._moved(part) for part in value]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        if isinstance(self._noise, float):
            return value * (1 + share * self._noise)
        return value * (1 + share * (2 * torch.rand(value.shape, generator=self._noise).to(value) - 1))


def _subtracted(name: str, first: Tensor, second: Tensor | None = None, dim: int = 0, *_: object) -> Tensor:
    """Return the size of the numbers that an operator of `_OF_A_DIFFERENCE` subtracts."""
    if "softmax" in name:
        return first.abs().amax(dim, keepdim=True).expand_as(first)
    return first.abs() if second is None else first.abs() * (1 + second.abs())


def _with_poles(value: Tensor, order: int, x: Tensor) -> Tensor:
    """Polygamma with ∞ at trigamma's poles, and NaN where a power of the argument leaves the normal numbers.

    Torch's trigamma is finite, and has no right digit, at negative whole numbers, as all large ones are. In the other
    functions of its family torch multiplies by ``x ** -(order + 1)``, which loses digits below 1e-308.
    """
    if order == 1:
        return value.masked_fill((x <= 0) & (x == x.floor()), torch.inf)
    return value.masked_fill((order + 1) * x.abs().log10() > 300, torch.nan)
