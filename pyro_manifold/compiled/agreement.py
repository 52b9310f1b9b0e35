"""Numerical agreement of two functions of tensors, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled.rounding import with_other_rounding

FlatFunction = Callable[..., tuple[Tensor, ...]]
"""Function from tensors to a tuple of tensors."""

FactorisationError = torch.linalg.LinAlgError

_DISTURBANCES = 8
_NEIGHBOURS = 3
_UNITS = 16.0  # of rounding, up to which inputs are perturbed: a graph rounds at each of its operations
_ALLOWED, _AMBIGUOUS = 2.0, 200.0  # times the effect of the perturbations


def agrees(found: Tensor, expected: Tensor) -> bool:
    """Return whether tensors agree to half the digits of the dtype, relative to the largest entry; NaN equals NaN."""
    if not _has_digits(expected):
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=_half_the_digits(expected), atol=_tolerance(expected), equal_nan=True)


class Difference(NamedTuple):
    """The largest difference of two functions, in units of the effect of rounding.

    Attributes:
        output: index of the output.
        entry: index of the entry in it.
        found: the candidate's value of the entry.
        expected: the function's value.
        excess: distance of the entry over the effect of rounding on it, the largest of all.
        dtype: dtype of the outputs.
    """

    output: int
    entry: tuple[int, ...]
    found: float
    expected: float
    excess: float
    dtype: torch.dtype

    @property
    def may_be_rounding(self) -> bool:
        """Return whether the difference is so near to the size of rounding that this may be the cause."""
        return self.excess <= _AMBIGUOUS

    def described(self, names: Sequence[str] = ()) -> str:
        """Return a clause with both values, by the names of outputs, and rounding if that may be the cause."""
        name = names[self.output] if self.output < len(names) else f"output {self.output}"
        inner = f" at entry {list(self.entry[1:])}" if len(self.entry) > 1 else ""
        chain = f" in chain {self.entry[0]}" if self.entry else ""
        clause = f"{name} is {self.found:.7g} instead of {self.expected:.7g}{inner}{chain}"
        if not self.may_be_rounding:
            return clause
        kind = str(self.dtype).removeprefix("torch.")
        remedy = ", which float64 would avoid" if self.dtype == torch.float32 else ""
        return (
            f"{clause}, {self.excess:.0f} times what rounding the sites to {kind} changes there, so that the model may "
            f"lose precision there{remedy}"
        )


def difference(candidate: FlatFunction, function: FlatFunction, inputs: Sequence[Tensor]) -> Difference | None:
    """Return where ``candidate`` differs from ``function`` at these inputs; None if only by rounding.

    If `agrees` is false, the inputs are perturbed by up to 16 units of rounding, and the result of each
    operation by its possible rounding error (`OtherRounding`): far from the typical set sums of large terms
    cancel, the gradient of one site is lost in the rounding of the gradient of another, and the logarithm of 1 - Φ(8)
    depends on the last bit of Φ. The unit of the difference is the resulting change of the function itself, twice of
    which is allowed. A branch that was frozen differs although these perturbations change nothing.

    Remaining differences are compared once more nearby, at a distance of half the digits: a network with thousands of
    ReLUs has some within rounding of the kink, where a part of the gradient is present in one of the two functions and
    absent in the other. Nearby other entries differ, whereas a branch that was frozen differs in the same entries.

    Returns:
        The entry that differs most, of the first output that differs.
    """
    found, expected = candidate(*inputs), function(*inputs)
    if all(agrees(*pair) for pair in zip(found, expected, strict=True)):
        return None
    units = _units(found, expected, function, inputs)
    noise = torch.Generator().manual_seed(1)
    for _ in range(_NEIGHBOURS):
        if _largest(units) <= _ALLOWED:
            return None
        near = [_disturbed(value, noise, _half_the_digits(value)) for value in inputs]
        try:
            units = _units(candidate(*near), function(*near), function, near, units)
        except FactorisationError:
            continue
    if _largest(units) <= _ALLOWED:
        return None
    output = next(
        k for k in range(len(units)) if _largest(units[k : k + 1]) > _ALLOWED
    )  # later outputs are computed from it
    place = int(units[output].argmax())
    entry = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), units[output].shape))
    values = [float(side[output].detach().reshape(-1)[place].real) for side in (found, expected)]
    return Difference(output, entry, values[0], values[1], _largest(units), expected[0].dtype)


def _units(
    found: Sequence[Tensor],
    expected: Sequence[Tensor],
    function: FlatFunction,
    inputs: Sequence[Tensor],
    elsewhere: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Return the distance of each entry beyond the tolerance of `agrees`, over the effect of rounding on it.

    The result is the entrywise minimum with the units ``elsewhere``, if they are given. More perturbations make it
    smaller, so that the first after which it is allowed is the last: the verdict is that of all, and the function is
    a whole model, whose evaluations take most of the time in which a graph is compared.
    """
    units: list[Tensor] = []
    for rounding in _effects_of_rounding(function, inputs, expected):
        units = [_excess(*of_output) for of_output in zip(found, expected, rounding, strict=True)]
        if elsewhere is not None:
            units = [torch.minimum(*pair) for pair in zip(units, elsewhere, strict=True)]
        if _largest(units) <= _ALLOWED:
            break
    return units


def _largest(units: Sequence[Tensor]) -> float:
    return max((float(value.max()) for value in units if value.numel()), default=0.0)


def _excess(found: Tensor, expected: Tensor, rounding: Tensor) -> Tensor:
    if not _has_digits(expected):
        return torch.where(found == expected, 0.0, torch.inf)
    distance = (found - expected).abs() - _tolerance(expected) - _half_the_digits(expected) * expected.abs()
    # Infinite in different ways, or NaN: nothing can be distinguished there, and no chain moves there.
    distance = torch.where(found.isfinite() | expected.isfinite(), distance.nan_to_num(nan=torch.inf), 0.0)
    units = distance / rounding.clamp(min=torch.finfo(rounding.dtype).tiny)
    return torch.where((distance <= 0) | rounding.isinf(), 0.0, units)


def effect_of_rounding(function: FlatFunction, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Tensor]:
    """Return how much each entry changes if inputs and operations are rounded differently; infinite if it is lost."""
    *_, largest = _effects_of_rounding(function, inputs, expected)
    return largest


def _effects_of_rounding(
    function: FlatFunction, inputs: Sequence[Tensor], expected: Sequence[Tensor]
) -> Iterator[list[Tensor]]:
    """Yield the largest change of each entry so far, after each perturbation."""
    noise = torch.Generator().manual_seed(0)
    otherwise = with_other_rounding(function, noise)
    largest = [torch.zeros_like(value.abs() if _has_digits(value) else value) for value in expected]
    for _ in range(_DISTURBANCES):
        try:
            moved = otherwise(*[_disturbed(value, noise, _UNITS * _epsilon(value)) for value in inputs])
        except FactorisationError:
            yield [torch.full_like(value.abs(), torch.inf) if _has_digits(value) else value for value in expected]
            return
        for k, (here, there) in enumerate(zip(expected, moved, strict=True)):
            if not _has_digits(here):
                continue
            distance = (there - here).abs()
            lost = here.isfinite() != there.isfinite()
            distance = torch.where(lost, torch.inf, distance.nan_to_num(nan=0.0, posinf=0.0))
            largest[k] = torch.maximum(largest[k], distance)
        yield list(largest)


def _disturbed(value: Tensor, noise: torch.Generator, share: float) -> Tensor:
    """Return the tensor with each number changed at random by up to this fraction of it."""
    if not value.is_floating_point() or not value.numel():
        return value
    return value + share * value.abs() * (2 * torch.rand(value.shape, generator=noise) - 1).to(value)


def _has_digits(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _epsilon(value: Tensor) -> float:
    return float(torch.finfo(value.dtype).eps) if _has_digits(value) else 0.0


def _half_the_digits(expected: Tensor) -> float:
    return _epsilon(expected) ** 0.5


def _tolerance(expected: Tensor) -> float:
    finite = expected[expected.isfinite()].abs()
    return _half_the_digits(expected) * max(float(finite.max()) if len(finite) else 1.0, 1.0)
