r"""One-hidden-layer networks that all coordinates share, with exact derivatives by their inputs.

The hidden units are :math:`\varphi(x) = x/\sqrt{1+x^2}`: bounded, so that neither speed nor friction grows without end
where a chain starts far out, smooth, so that the corrections Γ are, and without an exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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

    def _hidden(self, energy: Tensor, stacked: Tensor) -> Tensor:
        """``(chains, hidden, d)``, before φ; the energy is the same for all coordinates of a chain."""
        shared = torch.addmm(self.bias, energy.unsqueeze(1), self.weight[:, :1].mT).unsqueeze(2)
        return torch.baddbmm(shared, self.weight[:, 1:].expand(len(energy), -1, -1), stacked)

    def _read(self, hidden: Tensor) -> Tensor:
        return (self.readout @ hidden) + self.offset


class JoinedNetworks(NamedTuple):
    """Several networks of the same coordinates as one product, with exact derivatives: fewer passes over memory.

    Attributes:
        hidden: weights and biases of all hidden units together, those of fewer inputs filled up with zeros.
        values: the readouts, ``(networks, hidden)``.
        offsets: ``(networks, 1)``.
        slopes: readouts times weights, ``(derivatives, hidden)``.
    """

    hidden: CoordinateNetwork
    values: Tensor
    offsets: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, *networks: tuple[CoordinateNetwork, Sequence[int]]) -> JoinedNetworks:
        """Networks, each with the inputs to derive it by; 0 is the energy."""
        inputs = max(network.weight.shape[1] for network, _ in networks)
        weights = [torch.nn.functional.pad(net.weight, (0, inputs - net.weight.shape[1])) for net, _ in networks]
        biases, readouts = (torch.cat([net[part] for net, _ in networks]) for part in (1, 2))
        offsets = torch.stack([net.offset for net, _ in networks])
        hidden = CoordinateNetwork(torch.cat(weights), biases, readouts, offsets.sum())
        slopes = [net.readout * net.weight[:, list(by)].mT for net, by in networks]
        values = torch.block_diag(*[net.readout.unsqueeze(0) for net, _ in networks])
        return cls(hidden, values, offsets.unsqueeze(1), torch.block_diag(*slopes))

    def with_slopes(self, energy: Tensor, *numbers: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Values and derivatives for each coordinate.

        Args:
            energy: u, ``(chains,)``.
            *numbers: x, ``(chains, d)`` each.

        Returns:
            The value of each network, and the derivatives of all, ``(chains, d)`` each.
        """
        hidden, slopes = bounded(self.hidden._hidden(energy, torch.stack(numbers, 1)))
        return (self.values @ hidden + self.offsets).unbind(1), (self.slopes @ slopes).unbind(1)


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
