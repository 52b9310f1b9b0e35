"""Whether two functions of tensors give the same numbers, up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FlatFunction = Callable[..., tuple[Tensor, ...]]
"""Tensors to a tuple of tensors."""

FactorisationError = torch.linalg.LinAlgError  # type: ignore[attr-defined]

_DISTURBANCES = 3
_NEIGHBOURS = 3
_UNITS = 16.0  # of rounding, up to which inputs are disturbed: a graph rounds at each of its operations
_ALLOWED, _AMBIGUOUS = 2.0, 200.0  # times what the disturbances move


def agrees(found: Tensor, expected: Tensor) -> bool:
    """Equal up to half the digits of the dtype, relative to the largest entry, with NaN and infinities alike."""
    if not _has_digits(expected):
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=_half_the_digits(expected), atol=_tolerance(expected), equal_nan=True)


def difference(candidate: FlatFunction, function: FlatFunction, inputs: Sequence[Tensor]) -> str | None:
    """What ``candidate`` has different from ``function`` at these inputs; None if nothing but rounding.

    Where `agrees` says no, the inputs are disturbed by up to 16 units of their rounding: far from the mass of a
    posterior, sums of large terms cancel, and the gradient of one site is lost in the rounding of another's. How far
    the function itself moves is the yardstick, twice of which is allowed. A branch that was frozen differs though
    nothing moves.

    What remains is looked at once more near by, at a distance of half the digits: a network with ReLUs has thousands of
    them, of which one or the other is within rounding of its kink, and then a part of the gradient is there in one of
    the two and not in the other. Near by it is another one, while a branch that was frozen differs in the same entries.

    Returns:
        A clause for a warning; it names rounding if that may be the cause.
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
            there = _units(candidate(*near), function(*near), function, near)
        except FactorisationError:
            continue
        units = [torch.minimum(*pair) for pair in zip(units, there, strict=True)]
    excess = _largest(units)
    if excess <= _ALLOWED:
        return None
    if excess > _AMBIGUOUS:
        return "its values differ from the model's; does the model branch on values of sites?"
    dtype = expected[0].dtype
    return (
        f"its values differ from the model's by {_UNITS * excess:.0f} times what rounding the sites to "
        f"{str(dtype).removeprefix('torch.')} changes there; does the model lose its digits"
        f"{', which float64 would mend,' if dtype == torch.float32 else ''} or branch on values of sites?"
    )


def _units(
    found: Sequence[Tensor], expected: Sequence[Tensor], function: FlatFunction, inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Of each entry the distance beyond the tolerance of `agrees`, to what disturbances of the inputs move."""
    return [
        _excess(*of_output)
        for of_output in zip(found, expected, effect_of_rounding(function, inputs, expected), strict=True)
    ]


def _largest(units: Sequence[Tensor]) -> float:
    return max((float(value.max()) for value in units if value.numel()), default=0.0)


def _excess(found: Tensor, expected: Tensor, rounding: Tensor) -> Tensor:
    if not _has_digits(expected):
        return torch.where(found == expected, 0.0, torch.inf)
    distance = (found - expected).abs() - _tolerance(expected) - _half_the_digits(expected) * expected.abs()
    # Infinite in different ways, or NaN: nothing can be told apart there, and no chain moves there.
    distance = torch.where(found.isfinite() | expected.isfinite(), distance.nan_to_num(nan=torch.inf), 0.0)
    units = distance / rounding.clamp(min=torch.finfo(rounding.dtype).tiny)
    return torch.where((distance <= 0) | rounding.isinf(), 0.0, units)


def effect_of_rounding(function: FlatFunction, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> list[Tensor]:
    """How far each entry moves when each number of the inputs moves by its rounding; infinite if it is lost."""
    noise = torch.Generator().manual_seed(0)
    largest = [torch.zeros_like(value.abs() if _has_digits(value) else value) for value in expected]
    for _ in range(_DISTURBANCES):
        try:
            moved = function(*[_disturbed(value, noise, _UNITS * _epsilon(value)) for value in inputs])
        except FactorisationError:
            return [torch.full_like(value.abs(), torch.inf) if _has_digits(value) else value for value in expected]
        for k, (here, there) in enumerate(zip(expected, moved, strict=True)):
            if not _has_digits(here):
                continue
            distance = (there - here).abs()
            lost = here.isfinite() != there.isfinite()
            distance = torch.where(lost, torch.inf, distance.nan_to_num(nan=0.0, posinf=0.0))
            largest[k] = torch.maximum(largest[k], distance)
    return largest


def _disturbed(value: Tensor, noise: torch.Generator, share: float) -> Tensor:
    """Each number moved by up to this share of it."""
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
