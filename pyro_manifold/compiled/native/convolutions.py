"""Convolutions, their transposes and their derivatives: three sums over one index relation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.nn.functional import pad

from pyro_manifold.compiled.native import indexing
from pyro_manifold.compiled.native.matrices import cut
from pyro_manifold.compiled.native.reductions import reduced
from pyro_manifold.compiled.native.values import FIRST, Index, Place, Shape, Value, entry, flat, shifted, strided
from pyro_manifold.compiled.native.writer import Writer

_SIDE_BY_SIDE = 4  # sums of as many channels, which read the same numbers of one factor
_padded = indexing.TABLE["constant_pad_nd"]

Places = dict[str, Place]
"""C expressions of the indices of a relation, by name."""

IndexOf = Callable[[Places], Index]
Factor = tuple[Value, IndexOf]
"""A value, and the map from the indices of a relation to those of its entries."""


class _Relation(NamedTuple):
    """Relation of the indices of the wide side, the weights and the narrow side.

    A convolution adds products of wide entries and weights to the narrow ones. Transposed convolutions and all
    derivatives add products of two of the three to the third. The indices are n of the batch, g of groups, m and c of
    channels in a group on the narrow and the wide side, q0, q1, … of positions on the narrow side and t0, t1, … of taps
    of the kernel.

    Attributes:
        extents: sizes of the indices.
        wide: shape with padding.
        weights: shape.
        narrow: shape.
        stride: along each spatial dimension.
        padding: along each spatial dimension.
        dilation: along each spatial dimension.
    """

    extents: dict[str, int]
    wide: Shape
    weights: Shape
    narrow: Shape
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @classmethod
    def of(cls, wide: Shape, weights: Shape, narrow: Shape, options: _Options) -> _Relation:
        """Return the relation of these shapes, the wide one without padding."""
        spatial = len(wide) - 2
        stride, padding, dilation = (
            tuple(x) * spatial if len(x) < spatial else tuple(x)
            for x in (options.stride, options.padding, options.dilation)
        )
        groups = options.groups
        extents = {"n": narrow[0], "g": groups, "m": narrow[1] // groups, "c": wide[1] // groups}
        extents |= {f"q{d}": n for d, n in enumerate(narrow[2:])} | {f"t{d}": n for d, n in enumerate(weights[2:])}
        padded = (*wide[:2], *[n + 2 * k for n, k in zip(wide[2:], padding, strict=True)])
        return cls(extents, padded, weights, narrow, stride, padding, dilation)

    def to_narrow(self, writer: Writer, wide: Value, weights: Value, bias: Value | None) -> Value:
        """Write a convolution."""
        result, factors = _unwritten(writer, self.narrow), [self._wide(writer, wide), self._weights(writer, weights)]
        bias = None if bias is None else writer.cheap(bias)
        start: Callable[[Places], str] = lambda at: "spread(0)" if bias is None else bias.at([self._channel(at, "m")])  # noqa: E731
        self._add(writer, (result, self._in_narrow), factors, ["c", *self._names("t")], "m", start)
        return result

    def to_weights(self, writer: Writer, wide: Value, narrow: Value) -> Value:
        """Write the derivative with respect to the weights."""
        result, factors = _unwritten(writer, self.weights), [self._wide(writer, wide), self._narrow(writer, narrow)]
        over = ["n", *self._names("q")]
        self._add(writer, (result, self._in_weights), factors, over, "m", lambda _: "spread(0)")
        return result

    def to_wide(self, writer: Writer, narrow: Value, weights: Value, bias: Value | None) -> Value:
        """Write the transpose of a convolution, or the derivative with respect to the wide side."""
        bias = None if bias is None else writer.cheap(bias)
        result = writer.filled(self.wide, lambda i: "spread(0)" if bias is None else bias.at([i[1]]))
        factors = [self._narrow(writer, narrow), self._weights(writer, weights)]
        self._add(writer, (result, self._in_wide), factors, ["m"], "c")
        inner = (*self.wide[:2], *[n - 2 * k for n, k in zip(self.wide[2:], self.padding, strict=True)])
        if inner == self.wide:
            return result
        return result.viewed(
            inner, lambda i: [*i[:2], *[shifted(place, n) for place, n in zip(i[2:], self.padding, strict=True)]]
        )

    def _add(
        self,
        writer: Writer,
        target: Factor,
        factors: Sequence[Factor],
        over: Sequence[str],
        tiled: str,
        start: Callable[[Places], str] | None = None,
    ) -> None:
        """Write sums of products of two factors.

        Args:
            writer: writer of the C source.
            target: array of the sums.
            factors: the two factors.
            over: indices of summation.
            tiled: the index of sums that are computed together.
            start: initial value of a sum; None to add to the present value.
        """
        writer.arithmetic += math.prod(self.extents.values())
        (result, index_of), sign = target, "=" if start else "+="
        at = {name: FIRST if n == 1 else Place(name) for name, n in self.extents.items()}
        outer = "".join(self._loop(name) for name in self.extents if name != tiled and name not in over)
        inner = "".join(self._loop(name) for name in over)
        for first, (size, extent) in cut(self.extents[tiled], _SIDE_BY_SIDE):
            moving = Place(tiled) if extent > size else FIRST
            tile = [{**at, tiled: shifted(moving, first + k)} for k in range(size)]
            reads, (lefts, rights) = _read(factors, tile)
            starts = " ".join(f"V s{k} = {start(here) if start else 'spread(0)'};" for k, here in enumerate(tile))
            sums = " ".join(f"s{k} += {x} * {y};" for k, (x, y) in enumerate(zip(lefts, rights, strict=True)))
            places = [entry(str(result.array), flat(index_of(here), result.shape)) for here in tile]
            stores = " ".join(f"{place} {sign} s{k};" for k, place in enumerate(places))
            side = f"for (int {tiled} = 0; {tiled} < {extent}; {tiled} += {size}) "
            writer.lines.append(f"{side}{outer}{{ {starts} {inner}{{ {reads} {sums} }} {stores} }}")

    def _loop(self, name: str) -> str:
        n = self.extents[name]
        return f"for (int {name} = 0; {name} < {n}; {name}++) " if n != 1 else ""

    def _names(self, letter: str) -> list[str]:
        return [f"{letter}{d}" for d in range(len(self.stride))]

    # ---- the three sides -----------------------------------------------------------------------------------------

    def _wide(self, writer: Writer, value: Value) -> Factor:
        """Return the wide side, padded with zeros."""
        widths = [n for n in reversed(self.padding) for _ in range(2)]
        if not any(widths):
            return writer.cheap(value), self._in_wide
        if value.constant is not None:
            return writer.constant(pad(value.constant, widths)), self._in_wide
        return _padded(writer, self.wide, value, widths), self._in_wide

    def _weights(self, writer: Writer, value: Value) -> Factor:
        return writer.cheap(value), self._in_weights

    def _narrow(self, writer: Writer, value: Value) -> Factor:
        return writer.cheap(value), self._in_narrow

    def _in_wide(self, at: Places) -> Index:
        steps = enumerate(zip(self.stride, self.dilation, strict=True))
        along = [_sum(_times(at[f"q{d}"], stride), _times(at[f"t{d}"], step)) for d, (stride, step) in steps]
        return [at["n"], self._channel(at, "c"), *along]

    def _in_weights(self, at: Places) -> Index:
        return [self._channel(at, "m"), at["c"], *[at[name] for name in self._names("t")]]

    def _in_narrow(self, at: Places) -> Index:
        return [at["n"], self._channel(at, "m"), *[at[name] for name in self._names("q")]]

    def _channel(self, at: Places, name: str) -> Place:
        return _sum(_times(at["g"], self.extents[name]), at[name])


def _read(factors: Sequence[Factor], tile: Sequence[Places]) -> tuple[str, list[list[str]]]:
    """Return declarations of the operands of sums computed together, and their names for each sum; no operand twice."""
    declared, names = [], []
    for letter, (value, index_of) in zip("xy", factors, strict=True):
        entries = [value.at(index_of(here)) for here in tile]
        own = list(dict.fromkeys(entries))
        declared += [f"V {letter}{k} = {text};" for k, text in enumerate(own)]
        names.append([f"{letter}{own.index(text)}" for text in entries])
    return " ".join(declared), names


def _unwritten(writer: Writer, shape: Shape) -> Value:
    return writer.value(shape, writer.array(math.prod(shape)))


def _times(place: Place, step: int) -> Place:
    return FIRST if place == FIRST else strided(place, step)


def _sum(first: Place, second: Place) -> Place:
    if second.isdigit():
        return shifted(first, int(second))
    return second if first == FIRST else Place(f"{first} + {second}")


# ---- the operators -----------------------------------------------------------------------------------------------


class _Options(NamedTuple):
    """Arguments of a convolution, in their order."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def _convolution(writer: Writer, shape: Shape, x: Value, weights: Value, bias: Value | None, *options: Any) -> Value:
    given = _Options(*options)
    if given.transposed:
        return _Relation.of(shape, weights.shape, x.shape, given).to_wide(writer, x, weights, bias)
    return _Relation.of(x.shape, weights.shape, shape, given).to_narrow(writer, x, weights, bias)


def _backward(
    writer: Writer, _: None, gradient: Value, x: Value, weights: Value, __: object, *options: Any
) -> list[Value | None]:
    """Write the derivatives with respect to input, weights and bias that the last option requests."""
    given, (of_input, of_weights, of_bias) = _Options(*options[:-1]), options[-1]
    gradient = writer.cheap(gradient)
    wide, narrow = (gradient, x) if given.transposed else (x, gradient)
    relation = _Relation.of(wide.shape, weights.shape, narrow.shape, given)
    by_input = relation.to_narrow if given.transposed else relation.to_wide
    others = [d for d in range(len(gradient.shape)) if d != 1]
    return [
        by_input(writer, gradient, weights, None) if of_input else None,
        relation.to_weights(writer, wide, narrow) if of_weights else None,
        reduced(writer, gradient, others, False, "spread(0)", "{0} + {1}") if of_bias else None,
    ]


TABLE: dict[str, Callable[..., Any]] = {"convolution": _convolution, "convolution_backward": _backward}
