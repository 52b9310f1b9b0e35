"""First part of a learned step, without the force: acts on each coordinate separately, optionally as native code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.compiled import Verified
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.contrib.learned_sampler.sampler import Learned, Scaling
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings
from pyro_manifold.infer.mcmc.transitions import Block, Blocks, Executable, Noise, Statistics, normal_like

ELEMENTS_AT_ONCE = 2**17
"""Number of hidden units that fit into a processor's cache."""
_LEAST_TO_COMPILE = 2**13
"""Number of coordinates of all chains from which native code, which takes a second to compile, is worthwhile."""
_COMPARED = 256
"""Number of coordinates at which native code is compared with torch."""
_ROW: Block = ("coordinate",)


class Columns(NamedTuple):
    """Inputs of a learned step for each coordinate, ``(chains, d)`` each.

    Attributes:
        position: θ.
        momentum: r.
        gradient: ∇U on the last step's batch.
        slope: gradient of the energy in units of training.
        noise: standard normal noise.
        scale: scale of the site, ``(1,)`` or ``(1, d)``.
    """

    position: Tensor
    momentum: Tensor
    gradient: Tensor
    slope: Tensor
    noise: Tensor
    scale: Tensor


class Rows(NamedTuple):
    """State with all coordinates of all chains as rows, ``(chains d, 1)`` each, in the role of chains."""

    position: Blocks
    momentum: Blocks

    @property
    def gradient(self) -> Blocks:
        """Empty, as the gradient is not part of this state."""
        return {}

    @property
    def energy(self) -> Tensor:
        """Placeholder with one number per row, used for shape and dtype."""
        return self.position[_ROW][:, 0]


class RowSettings(NamedTuple):
    """Settings of rows, ``(chains d, 1)``, or ``(1, 1)`` for values shared by all.

    Attributes:
        gradient: ∇U on the last step's batch.
        slope: gradient of the energy in units of training.
        scale: scale of the site.
        energy: energy in units of training.
        unit: unit of gradients.
        step_size: ε.
        temperature: τ.
        noise_estimate: β̂ per step.
        num_steps: 0, as this transition has no steps.
    """

    gradient: Tensor
    slope: Tensor
    scale: Tensor
    energy: Tensor
    unit: Tensor
    step_size: Tensor
    temperature: Tensor
    noise_estimate: Tensor
    num_steps: int


class CoordinateUpdateOfRows:
    """First part of a learned step, as a transition without steps.

    Args:
        function: function of position, momentum, gradient, slope, noise and scale, with keyword arguments energy, unit
            and settings, that returns position, momentum and Q.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self._function = function

    def prepared(self, settings: RowSettings, rows: Rows) -> RowSettings:
        """Return the settings unchanged."""
        return settings

    def noise(self, rows: Rows, random: torch.Generator) -> Noise:
        """Draw the standard normal noise of the momenta."""
        return Noise({_ROW: normal_like(rows.position[_ROW], random)})

    def begin(
        self, rows: Rows, settings: RowSettings, noise: Noise, density: Any
    ) -> tuple[tuple[Tensor, ...], tuple[()]]:
        """Compute position, momentum and Q."""
        columns = (
            rows.position[_ROW],
            rows.momentum[_ROW],
            settings.gradient,
            settings.slope,
            noise.normal[_ROW],
            settings.scale,
        )
        numbers = settings.step_size, settings.temperature, settings.noise_estimate
        found = self._function(*columns, energy=settings.energy[:, 0], unit=settings.unit, settings=numbers)
        return found, ()

    def step(self, found: tuple[Tensor, ...], settings: RowSettings, noise: Noise, density: Any) -> tuple[Tensor, ...]:
        """Return copies of the results, as there is nothing further to compute."""
        return tuple(value.clone() for value in found)

    def finish(
        self, found: tuple[Tensor, ...], kept: tuple[()], settings: RowSettings, noise: Noise
    ) -> tuple[Rows, Statistics]:
        """Return position and momentum as the state, and Q as a statistic."""
        position, momentum, curl = found
        return Rows({_ROW: position}, {_ROW: momentum}), {"Q": curl}


class CoordinateUpdate:
    """First part of a learned step: computes position, momentum and Q from the end of the last step.

    Args:
        sampler: the networks, in the dtype and on the device of the posterior.
        scaling: properties of the posterior for scaling inputs.
    """

    def __init__(self, sampler: Learned, scaling: Scaling) -> None:
        self._sampler, self._scaling = sampler, scaling
        self._native: dict[int, Executable[Rows, RowSettings]] = {}
        self._last: dict[int, tuple[Rows, RowSettings]] = {}

    def __call__(
        self, columns: Columns, energy: Tensor, unit: Tensor, settings: StepSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute position, momentum and Q, ``(chains, d)`` each.

        Args:
            columns: inputs for each coordinate.
            energy: energy in units of training, ``(chains,)``.
            unit: unit of gradients, ``(1,)``.
            settings: step size, temperature and noise estimate.
        """
        x, r = columns.position, columns.momentum
        if self.is_native(x):
            rows, of_rows = self._last[x.numel()] = _below(columns, energy, unit, settings)
            noise = Noise({_ROW: columns.noise.reshape(-1, 1)})
            after, statistics = self._native[x.numel()].with_noise(rows, of_rows, noise)
            return after.position[_ROW].view_as(x), after.momentum[_ROW].view_as(x), statistics["Q"].view_as(x)
        numbers = settings.step_size, settings.temperature, settings.noise_estimate
        derived = x.requires_grad or r.requires_grad or self._sampler.is_live
        with torch.set_grad_enabled(derived and torch.is_grad_enabled()):
            function = partial(self._function, energy=energy, unit=unit, settings=numbers)
            position, momentum, curl = in_parts(function, ELEMENTS_AT_ONCE // self._sampler.hidden, *columns)
        return position, momentum, curl

    def gradient_unit(self, root_mean_square: Tensor) -> Tensor:
        """Return the unit of gradients as `MetaSampler.gradient_unit` does."""
        return self._sampler.gradient_unit(root_mean_square, self._scaling)

    def compile(self, like: Tensor, warn: bool = True) -> None:
        """Compile native code for positions of this shape, if that is possible, allowed and worthwhile.

        Args:
            like: example positions, ``(chains, d)``.
            warn: whether to issue a warning if it fails.
        """
        count = like.numel()
        if count < _LEAST_TO_COMPILE or like.device.type != "cpu" or not native_code_is_allowed():
            return
        random = torch.Generator().manual_seed(0)
        settings = StepSettings(0.3, 0.7, noise_estimate=0.05)
        columns = Columns(*(torch.randn(like.shape, generator=random, dtype=like.dtype) for _ in range(6)))
        columns = columns._replace(scale=columns.scale.abs() + 0.1)
        energy, unit = columns.noise[:, 0], like.new_ones(1)
        points = [_below(columns, scale * energy, unit, settings) for scale in (1.0, 2.0)]
        native = Executable(CoordinateUpdateOfRows(self._function), lambda batch: None)
        with torch.no_grad():
            native.compile(
                points[0][0],
                [(each, {}) for _, each in points],
                lambda batch: None,
                rows=_some(count),
                name="the learned step",
                warn=warn,
            )
        self._native[count] = native

    def is_native(self, like: Tensor) -> bool:
        """Return whether native code is used for positions of this size."""
        return like.numel() in self._native and self._native[like.numel()].graph.is_graph

    @property
    def graphs(self) -> dict[int, Verified]:
        """Verified functions by number of coordinates, where native code has been compiled."""
        return {count: native.graph for count, native in self._native.items()}

    def difference(self, count: int, random: torch.Generator) -> str | None:
        """Describe the difference between native code and torch at the last step; None if they agree."""
        if count not in self._last:
            return None
        with torch.no_grad():
            return self._native[count].difference(*self._last[count], random, rows=_some(count))

    def _function(
        self,
        x: Tensor,
        r: Tensor,
        gradient: Tensor,
        slope: Tensor,
        noise: Tensor,
        scale: Tensor,
        *,
        energy: Tensor,
        unit: Tensor,
        settings: tuple[Any, ...],
    ) -> tuple[Tensor, ...]:
        ε, τ, β = settings
        r, g = r * scale, gradient * scale
        found = self._sampler.coefficients(energy, r.detach(), g / unit, self._scaling)
        drift = found.curl * r - τ * found.curl_by_momentum
        correction = found.friction_by_momentum + found.curl_by_energy * slope * scale
        variance = (2 * (τ * ε * found.friction - β)).clamp(min=0)
        momentum = r - ε * found.friction * r + (ε * τ) * correction + variance.sqrt() * noise
        return x + ε * scale * drift, momentum / scale, found.curl


def _some(count: int) -> list[int]:
    """Return evenly spaced rows for comparison."""
    return sorted({k * count // _COMPARED for k in range(_COMPARED)})


def _below(columns: Columns, energy: Tensor, unit: Tensor, settings: StepSettings) -> tuple[Rows, RowSettings]:
    """Reshape the coordinates of all chains to rows, with the settings of these."""
    shape, scale = columns.position.shape, columns.scale
    numbers = settings.step_size, settings.temperature, settings.noise_estimate
    ε, τ, β = (torch.full((1, 1), value, dtype=energy.dtype) for value in numbers)
    rows = Rows({_ROW: columns.position.reshape(-1, 1)}, {_ROW: columns.momentum.reshape(-1, 1)})
    return rows, RowSettings(
        columns.gradient.reshape(-1, 1),
        columns.slope.reshape(-1, 1),
        scale.reshape(1, 1) if scale.numel() == 1 else scale.expand(shape).reshape(-1, 1),
        energy.unsqueeze(1).expand(shape).reshape(-1, 1),
        unit.reshape(1, 1),
        ε,
        τ,
        β,
        num_steps=0,
    )


def in_parts(function: Callable[..., tuple[Tensor, ...]], width: int, *columns: Tensor) -> tuple[Tensor, ...]:
    """Evaluate a coordinate-wise function in parts that fit into a processor's cache, unless it is differentiated."""
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
