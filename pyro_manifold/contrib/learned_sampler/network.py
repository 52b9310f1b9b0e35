r"""One-hidden-layer networks shared by all coordinates, with exact derivatives with respect to their inputs.

The hidden units are $\varphi(x) = x/\sqrt{1+x^2}$. They are bounded, so that speed and friction are bounded for
chains that start far away; smooth, so that the corrections Γ are smooth; and computed without an exponential.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class CoordinateNetwork(NamedTuple):
    r"""Network $f(u, x) = v \cdot \varphi(W (u, x) + b) + a$ of an energy u and inputs x of a coordinate.

    Attributes:
        weight: W, ``(hidden, inputs)``; the energy is the first input.
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
        """Draw normal weights with variance 1/inputs, standard normal biases, and readouts of sd readout/√hidden."""
        weight = torch.randn(hidden, inputs, generator=random, dtype=torch.double) / inputs**0.5
        bias = torch.randn(hidden, generator=random, dtype=torch.double)
        out = torch.randn(hidden, generator=random, dtype=torch.double) * (readout / hidden**0.5)
        return cls(weight, bias, out, torch.zeros((), dtype=torch.double))

    def value(self, energy: Tensor, *numbers: Tensor) -> Tensor:
        """Evaluate the network for each coordinate.

        Args:
            energy: u, ``(chains,)``.
            *numbers: x, ``(chains, d)`` each.

        Returns:
            ``(chains, d)``.
        """
        return self._read(bounded(self._hidden(energy, torch.stack(numbers, 1)))[0])

    def _hidden(self, energy: Tensor, stacked: Tensor) -> Tensor:
        """Compute pre-activations, ``(chains, hidden, d)``; the energy is shared by all coordinates of a chain."""
        shared = torch.addmm(self.bias, energy.unsqueeze(1), self.weight[:, :1].mT).unsqueeze(2)
        return torch.baddbmm(shared, self.weight[:, 1:].expand(len(energy), -1, -1), stacked)

    def _read(self, hidden: Tensor) -> Tensor:
        return (self.readout @ hidden) + self.offset


class JoinedNetworks(NamedTuple):
    """Several networks of the same coordinates, evaluated with exact derivatives by one matrix product.

    Attributes:
        hidden: weights and biases of all hidden units together, padded with zeros for networks with fewer inputs.
        values: readouts, ``(networks, hidden)``.
        offsets: offsets, ``(networks, 1)``.
        slopes: readouts times weights, ``(derivatives, hidden)``.
    """

    hidden: CoordinateNetwork
    values: Tensor
    offsets: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, *networks: tuple[CoordinateNetwork, Sequence[int]]) -> JoinedNetworks:
        """Join networks, each given with the indices of inputs for its derivatives; 0 is the energy."""
        inputs = max(network.weight.shape[1] for network, _ in networks)
        weights = [torch.nn.functional.pad(net.weight, (0, inputs - net.weight.shape[1])) for net, _ in networks]
        biases, readouts = (torch.cat([net[part] for net, _ in networks]) for part in (1, 2))
        offsets = torch.stack([net.offset for net, _ in networks])
        hidden = CoordinateNetwork(torch.cat(weights), biases, readouts, offsets.sum())
        slopes = [net.readout * net.weight[:, list(by)].mT for net, by in networks]
        values = torch.block_diag(*[net.readout.unsqueeze(0) for net, _ in networks])
        return cls(hidden, values, offsets.unsqueeze(1), torch.block_diag(*slopes))

    def with_slopes(self, energy: Tensor, *numbers: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Compute values and derivatives for each coordinate.

        Args:
            energy: u, ``(chains,)``.
            *numbers: x, ``(chains, d)`` each.

        Returns:
            The value of each network, and the derivatives of all, ``(chains, d)`` each.
        """
        hidden, slopes = bounded(self.hidden._hidden(energy, torch.stack(numbers, 1)))
        return (self.values @ hidden + self.offsets).unbind(1), (self.slopes @ slopes).unbind(1)


def bounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute φ and its derivative; overwrites x if gradients are disabled."""
    if torch.is_grad_enabled():
        root = (1 + x * x).rsqrt()
        return x * root, root * root * root
    root = torch.addcmul(x.new_ones(()), x, x).rsqrt_()
    cube = root * root
    return x.mul_(root), cube.mul_(root)


def finite_differences(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], of: Sequence[int], width: float
) -> tuple[Tensor, ...]:
    """Compute the value of a function, and central differences in place of derivatives by the inputs ``of``."""
    slopes = []
    for index in of:
        above, below = ([x + h if k == index else x for k, x in enumerate(inputs)] for h in (width, -width))
        slopes.append((function(*above) - function(*below)) / (2 * width))
    return function(*inputs), *slopes
