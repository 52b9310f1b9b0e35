"""All of a learned step but the force: in each coordinate by itself, and so in one pass over them as native code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from pyro_manifold.graphs.agreement import FlatFunction
from pyro_manifold.graphs.folding import folded_graph
from pyro_manifold.graphs.native.decompositions import decompositions
from pyro_manifold.graphs.native.emit import Loop
from pyro_manifold.graphs.native.loop import NativeLoop
from pyro_manifold.graphs.trusted import Trusted
from pyro_manifold.infer.mcmc.native import allowed as native_code_is_allowed
from pyro_manifold.infer.mcmc.sgmcmc.meta.sampler import Learned, Scaling
from pyro_manifold.infer.mcmc.sgmcmc.steps import StepSettings

ELEMENTS_AT_ONCE = 2**17
"""Hidden units that fit a processor's cache."""
_LEAST_TO_COMPILE = 2**13
"""Coordinates of all chains from which on native code pays, which takes a second to make."""
_COMPARED = 256
"""Coordinates at which native code is compared with torch: a vector and more, of the same instructions."""
_FAILURE = (
    "No native code for the learned step, which costs time and nothing else: {reason}. PYRO_MANIFOLD_NATIVE=0 in the "
    "environment asks for none."
)


class Columns(NamedTuple):
    """What differs from coordinate to coordinate, ``(chains, d)`` each.

    Attributes:
        position: θ.
        momentum: r.
        gradient: ∇U on the last step's batch.
        noise: standard normal numbers.
        scale: of the site, ``(1,)`` or ``(1, d)``.
    """

    position: Tensor
    momentum: Tensor
    gradient: Tensor
    noise: Tensor
    scale: Tensor


class Opening:
    """Position, momentum and Q of a step, from where the last one ended.

    Args:
        sampler: the networks, in the dtype and on the device of the posterior.
        scaling: the posterior.
    """

    def __init__(self, sampler: Learned, scaling: Scaling) -> None:
        self._sampler, self._scaling = sampler, scaling
        self._native: dict[int, NativeLoop] = {}

    def __call__(
        self, columns: Columns, energy: Tensor, unit: Tensor, settings: StepSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The three, ``(chains, d)`` each.

        Args:
            columns: position, momentum and so on.
            energy: U, ``(chains,)``.
            unit: of gradients, ``(1,)``.
            settings: step size, temperature and what noise there is already.
        """
        x, r = columns.position, columns.momentum
        chosen = settings.step_size, settings.temperature, settings.noise_estimate
        native = self._native.get(x.numel())
        if native is not None:
            found = native(0, *_one_below_the_other(columns, energy, unit, chosen))
            position, momentum, curl = (value.view_as(x) for value in found)
            return position, momentum, curl
        function = partial(self._function, energy=energy, unit=unit, settings=chosen)
        derived = x.requires_grad or r.requires_grad or self._sampler.is_live
        with torch.set_grad_enabled(derived and torch.is_grad_enabled()):
            position, momentum, curl = in_parts(function, ELEMENTS_AT_ONCE // self._sampler.hidden, *columns)
        return position, momentum, curl

    def compile(self, like: Tensor, warn: bool = True) -> None:
        """Use native code for positions like this, without derivatives, where that can and may be made and pays.

        Args:
            like: ``(chains, d)``.
            warn: whether to say so if it fails.
        """
        count = like.numel()
        if count < _LEAST_TO_COMPILE or like.device.type != "cpu" or not native_code_is_allowed():
            return
        random = torch.Generator().manual_seed(0)
        points = [_anywhere(_COMPARED, like.dtype, random) for _ in range(2)]
        loops: list[Loop] = []

        def below(*values: Tensor) -> tuple[Tensor, ...]:
            energy, unit, *settings = values[5:]
            return self._function(*values[:5], energy=energy[:, 0], unit=unit, settings=settings)

        def build(_: FlatFunction) -> FlatFunction:
            loops.append(_without_steps(below, points[0]))
            native = NativeLoop(loops[0], points[0], _COMPARED)
            return lambda *values: tuple(native(0, *values))

        with torch.no_grad():
            if Trusted(below, "torch").attempt("native", build, points, failure=_FAILURE if warn else None):
                self._native[count] = NativeLoop(loops[0], points[0], count)

    def is_native(self, like: Tensor) -> bool:
        """Whether positions like this go through native code."""
        return like.numel() in self._native

    def _function(
        self,
        x: Tensor,
        r: Tensor,
        gradient: Tensor,
        noise: Tensor,
        scale: Tensor,
        *,
        energy: Tensor,
        unit: Tensor,
        settings: Sequence[Any],
    ) -> tuple[Tensor, ...]:
        ε, τ, β = settings
        r, g = r * scale, gradient * scale
        found = self._sampler.coefficients(energy, r.detach(), g / unit, self._scaling)
        drift = found.curl * r - τ * found.curl_by_momentum
        correction = found.friction_by_momentum + found.curl_by_energy * g
        variance = (2 * τ * (ε * found.friction - β)).clamp(min=0)
        momentum = r - ε * found.friction * r + (ε * τ) * correction + variance.sqrt() * noise
        return x + ε * scale * drift, momentum / scale, found.curl


def _without_steps(function: FlatFunction, example: list[Tensor]) -> Loop:
    """A function as a loop that takes no steps."""
    lane = [value[:1].clone() for value in example]
    state = lane[0].clone()
    first = _graph(lambda *values: [values[0].clone()], *lane)
    step = _graph(lambda *values: [values[-1].clone()], *lane, state)
    return Loop(first, step, _graph(lambda *values: list(function(*values[:-1])), *lane, state), 1)


def _graph(function: Callable[..., list[Tensor]], *example: Tensor) -> fx.GraphModule:
    return folded_graph(function, *example, decompositions=decompositions())


def _one_below_the_other(columns: Columns, energy: Tensor, unit: Tensor, settings: tuple[float, ...]) -> list[Tensor]:
    """All coordinates of all chains one below the other, ``(chains d, 1)``, and what they share, ``(1, 1)``."""
    shape = columns.position.shape
    *four, scale = columns
    wide = scale.reshape(1, 1) if scale.numel() == 1 else scale.expand(shape).reshape(-1, 1)
    each = [value.reshape(-1, 1) for value in (*four, energy.unsqueeze(1).expand(shape))]
    numbers = [torch.full((1, 1), value, dtype=energy.dtype) for value in settings]
    return [*each[:4], wide, each[4], unit.reshape(1, 1), *numbers]


def _anywhere(count: int, dtype: torch.dtype, random: torch.Generator) -> list[Tensor]:
    """Inputs to trace and to compare at."""
    columns = [torch.randn(count, 1, generator=random, dtype=dtype) for _ in range(6)]
    numbers = [torch.rand(1, 1, generator=random, dtype=dtype) for _ in range(4)]
    return [*columns[:4], columns[4].abs() + 0.1, columns[5], *numbers]


def in_parts(function: Callable[..., tuple[Tensor, ...]], width: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """A function of each coordinate, by so many coordinates as fit a processor's cache; whole if it is derived."""
    chains, d = columns[0].shape
    width = max(width // chains, 1)
    if torch.is_grad_enabled() or width >= d:
        return function(*columns)
    found: list[Tensor] = []
    for start in range(0, d, width):
        part = slice(start, start + width)
        pieces = function(*[x[..., part] if x.shape[-1] == d else x for x in columns])
        found = found or [torch.empty_like(columns[0]) for _ in pieces]
        for whole, piece in zip(found, pieces, strict=True):
            whole[:, part] = piece
    return tuple(found)
