"""Layers whose weights have orthonormal rows or columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor
from torch.nn import functional

from pyro_manifold.nn.checks import as_pair, check_counts, check_gain, check_positive
from pyro_manifold.nn.priors import NormalPrior, StiefelPrior, remember_placement

_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


class _Orthogonal(PyroModule):
    """Base class of the layers: the sites ``basis``, ``bias`` and ``gain``."""

    def _set_up(
        self,
        matrix: tuple[int, int],
        outputs: int,
        groups: int,
        bias: bool,
        gain: Any,
        bias_scale: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        owner = type(self).__name__
        check_gain(owner, gain)
        check_positive(owner, bias_scale=bias_scale)
        remember_placement(self, dtype, device)
        self._transposed = matrix[0] <= matrix[1]
        self.basis = PyroSample(StiefelPrior(max(matrix), min(matrix), (groups,) if groups > 1 else ()))
        # A constant gain stays a Python number, whatever the dtype.
        self.gain = PyroSample(gain) if hasattr(gain, "sample") else float(gain)
        self.bias = PyroSample(NormalPrior((outputs,), float(bias_scale))) if bias else None

    def _matrix(self) -> Tensor:
        basis: Tensor = self.basis
        return self.gain * (basis.mT if self._transposed else basis)

    def _gain_option(self) -> str:
        gain = self._pyro_samples.get("gain", self.__dict__.get("gain"))
        return "" if gain == 1.0 else f", gain={gain}"


class OrthogonalLinear(_Orthogonal):
    r"""`torch.nn.Linear` whose weight is uniform on the matrices with orthonormal rows, or columns.

    $$ y = g\, Q x + b, \quad Q Q^\top = I \text{ if out ≤ in}, \quad Q^\top Q = I \text{ otherwise}, $$

    with Q uniform and $b_i \sim N(0, s^2)$ independent. For inputs of variance 1, outputs have the variance
    $g^2 \min(1, \text{in} / \text{out}) + s^2$.

    The site ``basis`` is the tall one of Q and Qᵀ, on the Stiefel manifold V(max, min) of in and out; ``weight`` is gQ.
    For in = out the manifold has two components, determinants 1 and −1, between which no continuous path leads: each
    chain, and each fit of a guide or by an optimiser, stays in the component in which it began.

    Args:
        in_features: size of each input.
        out_features: size of each output.
        bias: whether the layer has a bias.
        gain: g, a positive number, or a Pyro distribution of one, whose draws are then the site ``gain``.
        bias_scale: s.
        device: as in `torch.nn.Linear`.
        dtype: as in `torch.nn.Linear`; both follow ``.to(...)``, except for a ``gain`` that is a distribution.

    Shapes: ``(..., in)`` to ``(..., out)``.

    Raises:
        ValueError: for sizes that are not positive integers, a ``gain`` or ``bias_scale`` that is not positive.

    Source: Saxe, McClelland & Ganguli 2014, arXiv 1312.6120, whose initial values are draws of this prior.

    Examples:
        >>> layer = OrthogonalLinear(3, 2, gain=2.0)
        >>> layer(torch.randn(7, 3)).shape
        torch.Size([7, 2])
        >>> W = layer.weight
        >>> bool(torch.allclose(W @ W.T, 4 * torch.eye(2), atol=1e-5))
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        gain: Any = 1.0,
        bias_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_counts(type(self).__name__, in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self._set_up((out_features, in_features), out_features, 1, bias, gain, bias_scale, device, dtype)

    @property
    def weight(self) -> Tensor:
        """The weight gQ, ``(out, in)``; outside of `forward` each access is a new draw."""
        return self._matrix()

    def forward(self, input: Tensor) -> Tensor:
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={'bias' in self._pyro_samples}{self._gain_option()}"


class OrthogonalConv2d(_Orthogonal):
    r"""`torch.nn.Conv2d` whose kernel, as a matrix out × (in·height·width), has orthonormal rows, or columns.

    That matrix is gQ as in `OrthogonalLinear`: each row is a filter, and the layer maps a patch of the image, as a
    vector, to the outputs at its position. This does not make the whole convolution an orthogonal map of images. With
    ``groups`` each group of outputs has a matrix of its own, (out/groups) × (in/groups·height·width).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width, one number for both.
        stride: as in `torch.nn.Conv2d`, as are the following arguments.
        padding: number of pixels, ``"same"`` or ``"valid"``.
        dilation: distance of the pixels of a patch.
        groups: number of groups of channels; divides both numbers of channels.
        bias: whether the layer has a bias.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        gain: g, a positive number, or a Pyro distribution of one, whose draws are then the site ``gain``.
        bias_scale: standard deviation of the bias.
        device: as in `torch.nn.Conv2d`.
        dtype: as in `torch.nn.Conv2d`; both follow ``.to(...)``, except for a ``gain`` that is a distribution.

    Shapes: ``(..., in, height, width)`` to ``(..., out, height', width')``; the site ``basis`` is (max, min) of the
    numbers of rows and columns, ``(groups, max, min)`` for several groups.

    Raises:
        ValueError: for sizes or options that `torch.nn.Conv2d` does not have, a ``gain`` or ``bias_scale`` that is not
            positive.

    Examples:
        >>> layer = OrthogonalConv2d(3, 8, 3, padding=1)
        >>> layer(torch.randn(2, 3, 10, 10)).shape
        torch.Size([2, 8, 10, 10])
        >>> W = layer.weight.flatten(1)
        >>> bool(torch.allclose(W @ W.T, torch.eye(8), atol=1e-5))
        True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        gain: Any = 1.0,
        bias_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        check_counts(owner, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{owner}: groups={groups} does not divide in_channels={in_channels} and out_channels={out_channels}, "
                "expected a divisor of both."
            )
        if padding_mode not in _PADDING_MODES:
            raise ValueError(f"{owner}: padding_mode={padding_mode!r}, expected one of {list(_PADDING_MODES)}.")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = as_pair(owner, "kernel_size", kernel_size)
        self.stride, self.dilation = as_pair(owner, "stride", stride), as_pair(owner, "dilation", dilation)
        self.padding, self.padding_mode = self._checked_padding(padding), padding_mode
        matrix = (out_channels // groups, in_channels // groups * self.kernel_size[0] * self.kernel_size[1])
        self._set_up(matrix, out_channels, groups, bias, gain, bias_scale, device, dtype)

    def _checked_padding(self, padding: int | Sequence[int] | str) -> tuple[int, int] | str:
        if not isinstance(padding, str):
            return as_pair(type(self).__name__, "padding", padding, least=0)
        if padding not in ("same", "valid"):
            raise ValueError(f"OrthogonalConv2d: padding={padding!r}, expected integers, 'same' or 'valid'.")
        if padding == "same" and self.stride != (1, 1):
            raise ValueError(
                f"OrthogonalConv2d: padding='same' needs stride=1, not {self.stride}; pass padding as integers."
            )
        return padding

    @property
    def weight(self) -> Tensor:
        """The kernel, ``(out, in/groups, height, width)``; outside of `forward` each access is a new draw."""
        return self._matrix().reshape(self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = functional.pad(input, self._border(), self.padding_mode), (0, 0)
        return functional.conv2d(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _border(self) -> list[int]:
        """Return the pixels to add left, right, above and below; if odd, the larger part is right or below."""
        if self.padding == "valid":
            return [0, 0, 0, 0]
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            rows, columns = [(total // 2, total - total // 2) for total in totals]
        else:
            rows, columns = [(int(size), int(size)) for size in self.padding]
        return [*columns, *rows]

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}, "
            f"bias={'bias' in self._pyro_samples}{self._gain_option()}"
        )
