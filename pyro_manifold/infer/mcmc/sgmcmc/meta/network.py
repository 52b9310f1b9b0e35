r"""One-hidden-layer networks that all coordinates share, with exact derivatives by their inputs.

The hidden units are :math:`\varphi(x) = x/\sqrt{1+x^2}`: bounded, so that neither speed nor friction grows without end
where a chain starts far out, smooth, so that the corrections Γ are, and without an exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_ELEMENTS_AT_ONCE = 2**17
"""Hidden units that fit a processor's cache."""


class CoordinateNetwork(NamedTuple):
    r""":math:`f(u, x) = v \cdot \varphi(W (u, x) + b) + a` of an energy u and numbers x of a coordinate.

    Attributes:
        weight: W, ``(hidden, inputs)``, the energy first.
        bias: b, ``(hidden,)``.
        readout: v, ``(hidden,)``.
        offset: a, ``()``.
    """

    weight: Tensor
    bias: Tensor
    readout: Tensor
    offset: Tensor

    @classmethod
    def random(
        cls, hidden: int, inputs: int, readout: float, random: torch.Generator | None = None
    ) -> CoordinateNetwork:
        """Standard normal weights by √inputs and biases, and a readout of this standard deviation by √hidden."""
        weight = torch.randn(hidden, inputs, generator=random, dtype=torch.double) / inputs**0.5
        bias = torch.randn(hidden, generator=random, dtype=torch.double)
        out = torch.randn(hidden, generator=random, dtype=torch.double) * (readout / hidden**0.5)
        return cls(weight, bias, out, torch.zeros((), dtype=torch.double))

    def value(self, energy: Tensor, *numbers: Tensor) -> Tensor:
        """The value for each coordinate.

        Args:
            energy: u, ``(chains,)``.
            *numbers: x, ``(chains, d)`` each.

        Returns:
            ``(chains, d)``.
        """
        return self._read(bounded(self._hidden(energy, torch.stack(numbers, 1)))[0])

    def with_slopes(self, energy: Tensor, numbers: Sequence[Tensor], of: Sequence[int]) -> tuple[Tensor, ...]:
        """The value for each coordinate, and its derivatives.

        Args:
            energy: u, ``(chains,)``.
            numbers: x, ``(chains, d)`` each.
            of: the inputs to derive by; 0 is the energy.

        Returns:
            ``(chains, d)`` each.
        """
        chains, d = numbers[0].shape
        width = max(_ELEMENTS_AT_ONCE // (chains * len(self.bias)), 1)
        if torch.is_grad_enabled() or width >= d:
            return self._with_slopes(energy, torch.stack(list(numbers), 1), of)
        parts = [
            self._with_slopes(energy, torch.stack(part, 1), of)
            for part in zip(*[x.split(width, 1) for x in numbers], strict=True)
        ]
        return tuple(torch.cat(pieces, 1) for pieces in zip(*parts, strict=True))

    def _with_slopes(self, energy: Tensor, stacked: Tensor, of: Sequence[int]) -> tuple[Tensor, ...]:
        hidden, slopes = bounded(self._hidden(energy, stacked))
        factors = self.readout * self.weight[:, list(of)].mT
        return self._read(hidden), *(factors @ slopes).unbind(1)

    def _hidden(self, energy: Tensor, stacked: Tensor) -> Tensor:
        """``(chains, hidden, d)``, before φ; the energy is the same for all coordinates of a chain."""
        shared = torch.addmm(self.bias, energy.unsqueeze(1), self.weight[:, :1].mT).unsqueeze(2)
        return torch.baddbmm(shared, self.weight[:, 1:].expand(len(energy), -1, -1), stacked)

    def _read(self, hidden: Tensor) -> Tensor:
        return (self.readout @ hidden) + self.offset


def bounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """φ and its derivative; without gradients it overwrites x."""
    if torch.is_grad_enabled():
        root = (1 + x * x).rsqrt()
        return x * root, root * root * root
    root = torch.addcmul(x.new_ones(()), x, x).rsqrt_()
    cube = root * root
    return x.mul_(root), cube.mul_(root)


def finite_differences(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], of: Sequence[int], width: float
) -> tuple[Tensor, ...]:
    """The value of a function and central differences of it, in place of derivatives by some of its inputs."""
    slopes = []
    for index in of:
        above, below = ([x + h if k == index else x for k, x in enumerate(inputs)] for h in (width, -width))
        slopes.append((function(*above) - function(*below)) / (2 * width))
    return function(*inputs), *slopes
