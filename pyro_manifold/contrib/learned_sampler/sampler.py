"""Meta-learned sampler: two small networks, constants, and the scaling of the posteriors it was trained on."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import resources
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler.files import read, write
from pyro_manifold.contrib.learned_sampler.network import (
    CoordinateNetwork,
    JoinedNetworks,
    bounded,
    finite_differences,
)
from pyro_manifold.infer.mcmc import check_positive, check_positive_integer, is_a

Derivatives = Literal["exact", "finite differences"]

CURL_INPUTS = ("energy", "squared momentum")
FRICTION_INPUTS = ("energy", "squared momentum", "squared gradient")
_KIND = "MetaSampler"
_BLIND = 1e3
"""Energies are a few units per coordinate and datum; a scale so many times as large hides them."""
_WIDTH = {torch.float64: 1e-5, torch.float32: 1e-2}


class Scaling(NamedTuple):
    """Properties of a posterior from which the inputs of a sampler are scaled.

    Attributes:
        dimension: number of coordinates.
        data_size: number of data.
        derivatives: computation of the networks' derivatives, exact or by finite differences.
    """

    dimension: int
    data_size: int = 1
    derivatives: Derivatives = "exact"


class Coefficients(NamedTuple):
    """Values and derivatives of Q and D in each coordinate, ``(chains, d)`` each.

    Attributes:
        curl: Q.
        curl_by_energy: ∂Q/∂U, U in units of training.
        curl_by_momentum: ∂Q/∂r.
        friction: D.
        friction_by_momentum: ∂D/∂r.
    """

    curl: Tensor
    curl_by_energy: Tensor
    curl_by_momentum: Tensor
    friction: Tensor
    friction_by_momentum: Tensor


class Learned(Protocol):
    """Protocol of a sampler, as used by a learned step."""

    @property
    def hidden(self) -> int: ...

    @property
    def is_live(self) -> bool: ...

    def ratios(self, scaling: Scaling) -> tuple[float, float]: ...

    def gradient_unit(self, root_mean_square: Tensor, scaling: Scaling) -> Tensor: ...

    def coefficients(self, energy: Tensor, momentum: Tensor, gradient: Tensor, scaling: Scaling) -> Coefficients: ...


@dataclass(frozen=True)
class MetaSampler:
    r"""Learned parts of `NNSGHMC`: Q and D of each coordinate, as functions of energy, momentum and gradient.

    $$
    Q = \beta + f_Q(u, r^2), \qquad
    D = \frac{\sqrt{N/N_0}}{\varepsilon_0} \left(\alpha Q^2 + \tfrac12 \varphi(f_D(u, r^2, g^2))^2 + c\right),
    $$

    f are one-hidden-layer networks shared by all coordinates of all posteriors. φ are their bounded hidden units, so
    that f_D removes at most half of a coordinate's momentum per step. The sampler was trained with steps of ε₀ on
    posteriors with d₀ coordinates and N₀ data, and is used for d coordinates and N data. The width of posteriors
    decreases with √N, and so do step sizes, by `step_size_for`; D removes the same fraction of momentum in such a step.
    Inputs are $u = (L N_0 / N + P d_0 / d - m) / s$, with L minus the log likelihood, P minus the log prior density,
    m and s the centre and scale of the energy in training; r, the momentum in units of its standard deviation; and
    $g = \nabla U\, N_0 / (N s_g)$ with a fixed scale $s_g$, as in the paper's tests on digits, or, without one, the
    gradient divided by the root mean square of the gradients of all coordinates. r and g enter as squares, which makes
    the sampler equivariant under reflections: with r and g themselves, as in the paper, errors from long steps and
    noisy gradients bias the means of draws. Of a potential function, and by a sampler that was trained without data,
    all of U is scaled by both ratios.

    The stationary distribution is correct for any values of these parameters, as the step size goes to 0: only the
    speed of mixing is learned.

    Args:
        curl: f_Q.
        friction: f_D.
        constant_curl: β.
        curl_friction: α ≥ 0.
        constant_friction: c > 0.
        energy_centre: m.
        energy_scale: s.
        dimension: d₀.
        data_size: N₀; 1 for densities without data, in which case there is no rescaling by the number of data.
        step_size: ε₀.
        gradient_scale: $s_g$; None for the root mean square of the gradients of all coordinates. With a fixed scale,
            friction that was learned for large gradients decreases as these do, and is small in posteriors of the same
            number of data with smaller gradients. The root mean square does not depend on the units of the coordinates.
        command: command by which it was trained.

    Raises:
        ValueError: for constants out of range, or networks with other inputs.

    Examples:
        >>> sampler = MetaSampler.load("gaussian")
        >>> sampler.dimension
        10
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sampler.save(f"{folder}/copy.npz")
        ...     MetaSampler.load(f"{folder}/copy.npz").fingerprint == sampler.fingerprint
        True
    """

    curl: CoordinateNetwork
    friction: CoordinateNetwork
    constant_curl: float = 1.0
    curl_friction: float = 0.0
    constant_friction: float = 0.1
    energy_centre: float = 0.0
    energy_scale: float = 1.0
    dimension: int = 1
    data_size: int = 1
    step_size: float = 1.0
    gradient_scale: float | None = None
    command: str = ""

    def __post_init__(self) -> None:
        for name, network, inputs in (("curl", self.curl, CURL_INPUTS), ("friction", self.friction, FRICTION_INPUTS)):
            hidden = len(network.bias) if network.bias.dim() == 1 else -1
            shapes = {tuple(network.weight.shape): (hidden, len(inputs)), tuple(network.readout.shape): (hidden,)}
            if any(found != expected for found, expected in shapes.items()) or network.offset.dim():
                raise ValueError(
                    f"The network '{name}' has weights {tuple(network.weight.shape)}, biases "
                    f"{tuple(network.bias.shape)} and readout {tuple(network.readout.shape)}, expected (hidden, "
                    f"{len(inputs)}), (hidden,) and (hidden,): its inputs are {', '.join(inputs)}."
                )
        for name, value in self.tensors.items():
            if not value.is_floating_point():
                raise ValueError(f"'{name}' has dtype {value.dtype}, expected a floating-point dtype.")
            if not bool(value.isfinite().all()):
                raise ValueError(f"'{name}' has values that are not finite: train the sampler with smaller steps.")
        self._check_constants()
        for name in _CONSTANTS - {"command"}:  # numbers of NumPy or of fractions, which files do not have
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, int(value) if name in _COUNTS else float(value))

    def _check_constants(self) -> None:
        check_positive(**{name: getattr(self, name) for name in ("constant_friction", "energy_scale", "step_size")})
        if self.gradient_scale is not None:
            check_positive(gradient_scale=self.gradient_scale)
        check_positive_integer(dimension=self.dimension, data_size=self.data_size)
        for name in ("constant_curl", "energy_centre"):
            value = getattr(self, name)
            if not (is_a(Real, value) and math.isfinite(value)):
                raise ValueError(f"{name}={value!r}, expected a finite number.")
        if not isinstance(self.command, str):
            raise ValueError(f"command={self.command!r}, expected a string.")
        if not (is_a(Real, self.curl_friction) and 0 <= self.curl_friction < float("inf")):
            raise ValueError(f"curl_friction={self.curl_friction!r}, expected a number ≥ 0.")

    @classmethod
    def random(
        cls, hidden: int = 10, readout: float = 0.1, random: torch.Generator | None = None, **constants: Any
    ) -> MetaSampler:
        """Return networks with random weights; with a small readout the sampler is close to SGHMC."""
        check_positive_integer(hidden=hidden)
        curl = CoordinateNetwork.random(hidden, len(CURL_INPUTS), readout, random)
        friction = CoordinateNetwork.random(hidden, len(FRICTION_INPUTS), readout, random)
        return cls(curl, friction, **constants)

    # ---- use --------------------------------------------------------------------------------------------------------

    def step_size_for(self, data_size: int) -> float:
        """Return the step size of training, rescaled for another number of data unless it was trained without data.

        Raises:
            ValueError: if the number is not positive.
        """
        check_positive_integer(data_size=data_size)
        return self.step_size * self._data_ratio(data_size) ** 0.5

    def ratios(self, scaling: Scaling) -> tuple[float, float]:
        """Return N₀ / N and d₀ / d, the factors of L and P."""
        return self._data_ratio(scaling.data_size), self.dimension / scaling.dimension

    def gradient_unit(self, root_mean_square: Tensor, scaling: Scaling) -> Tensor:
        """Return the unit of gradients: $s_g N / N_0$, or, without a fixed scale, their root mean square."""
        if self.gradient_scale is None:
            return root_mean_square
        return torch.full_like(root_mean_square, self.gradient_scale / self._data_ratio(scaling.data_size))

    @property
    def sees_energy(self) -> bool:
        """False if the scale of energies is so large that all are alike."""
        return self.energy_scale < _BLIND * (self.dimension + self.data_size)

    def _data_ratio(self, data_size: int) -> float:
        """Return N₀ / N, or 1 for a sampler trained without data."""
        return 1.0 if self.data_size == 1 else self.data_size / data_size

    def coefficients(self, energy: Tensor, momentum: Tensor, gradient: Tensor, scaling: Scaling) -> Coefficients:
        """Compute Q, D and their derivatives.

        Args:
            energy: U in units of training, ``(chains,)``; see `ratios`.
            momentum: r, ``(chains, d)``.
            gradient: g, ``(chains, d)``; see `gradient_unit`.
            scaling: properties of the posterior.
        """
        slope = 1 / self.energy_scale
        u = energy * slope - self.energy_centre * slope
        if scaling.derivatives == "exact":
            joined = self._join() if self.is_live else self._joined
            found = joined.with_slopes(u, momentum.square(), gradient.square())
            (curl, free), (by_energy, by_square, free_by_square) = found
            twice = 2 * momentum
            by_momentum, free_by_momentum = by_square * twice, free_by_square * twice
        else:
            width, g = _WIDTH[momentum.dtype], gradient.square()
            curl, by_energy, by_momentum = finite_differences(
                lambda u, r: self.curl.value(u, r.square()), (u, momentum), (0, 1), width
            )
            free, free_by_momentum = finite_differences(
                lambda u, r: self.friction.value(u, r.square(), g), (u, momentum), (1,), width
            )
        rate = 1 / self.step_size_for(scaling.data_size)
        curl = curl + self.constant_curl
        root, root_slope = bounded(free)
        friction = torch.addcmul(root.new_tensor(rate * self.constant_friction), root, root, value=rate / 2)
        by_root = rate * root * root_slope * free_by_momentum
        if self.curl_friction:
            friction = torch.addcmul(friction, curl, curl, value=rate * self.curl_friction)
            by_root = torch.addcmul(by_root, curl, by_momentum, value=2 * rate * self.curl_friction)
        return Coefficients(curl, slope * by_energy, by_momentum, friction, by_root)

    @property
    def hidden(self) -> int:
        """Number of hidden units of both networks together."""
        return len(self.curl.bias) + len(self.friction.bias)

    @property
    def is_live(self) -> bool:
        """True if its weights are being trained."""
        return any(value.requires_grad for value in self.tensors.values())

    def _join(self) -> JoinedNetworks:
        return JoinedNetworks.of((self.curl, (0, 1)), (self.friction, (1,)))

    _joined = cached_property(_join)

    # ---- parameters -------------------------------------------------------------------------------------------------

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Weights of both networks, by name."""
        networks = {"curl": self.curl, "friction": self.friction}
        return {f"{name} {part}": value for name, net in networks.items() for part, value in net._asdict().items()}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> MetaSampler:
        """Return the same sampler with other weights."""
        return replace(self, **_networks(tensors))

    def to(self, like: Tensor) -> MetaSampler:
        """Return the sampler with weights of the dtype and on the device of a tensor."""
        return self.with_tensors({name: value.to(like) for name, value in self.tensors.items()})

    @property
    def fingerprint(self) -> str:
        """Checksum of all weights and constants."""
        content = b"".join(value.double().cpu().numpy().tobytes() for value in self.tensors.values())
        return f"{zlib.crc32(repr(sorted(self._constants.items())).encode() + content):08x}"

    @property
    def _constants(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    # ---- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the sampler to a file of tensors and JSON with a version number, which `load` reads."""
        inputs = {"curl inputs": list(CURL_INPUTS), "friction inputs": list(FRICTION_INPUTS)}
        write(path, _KIND, self.tensors, {**inputs, **self._constants})

    @classmethod
    def load(cls, name: str | Path) -> MetaSampler:
        """Load a sampler from a file, or one that is part of the package.

        Args:
            name: a path, or one of `MetaSampler.names`.

        Raises:
            ValueError: if the file is damaged, of another version, or of a sampler with other inputs.
            FileNotFoundError: if there is no such file or name.
        """
        if not isinstance(name, str | Path):
            raise ValueError(f"name={name!r}, expected a file, or one of {cls.names()}.")
        shipped = _SHIPPED / f"{name}.npz"
        path = shipped if str(name) in cls.names() else Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"There is no sampler {str(name)!r}: pass a file, or one of {cls.names()}.")
        tensors, about = read(path, _KIND)
        for key, expected in (("curl inputs", CURL_INPUTS), ("friction inputs", FRICTION_INPUTS)):
            found = about.pop(key, None)
            if found != list(expected):
                raise ValueError(f"{path} has a sampler with the {key} {found}, expected {list(expected)}.")
        expected_names = set(tensors) == _TENSORS and set(about) == _CONSTANTS
        try:
            if not expected_names:
                raise ValueError("other tensors or constants than a sampler's")
            return cls(**_networks(tensors), **about)
        except ValueError as error:
            reason = str(error).removesuffix(".")
            raise ValueError(f"{path} is damaged or not a {_KIND} ({reason}): restore it or write it again.") from error

    @staticmethod
    def names() -> list[str]:
        """Return the names of the samplers that are part of the package."""
        return sorted(path.stem for path in _SHIPPED.glob("*.npz"))


_NETWORKS = ("curl", "friction")
_TENSORS = {f"{name} {part}" for name in _NETWORKS for part in CoordinateNetwork._fields}
_CONSTANTS = {field.name for field in fields(MetaSampler)} - set(_NETWORKS)
_COUNTS = ("dimension", "data_size")
_SHIPPED = Path(str(resources.files("pyro_manifold.contrib.learned_sampler"))) / "samplers"


def _networks(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: CoordinateNetwork(**{part: tensors[f"{name} {part}"] for part in CoordinateNetwork._fields})
        for name in _NETWORKS
    }


def check_derivatives(derivatives: object) -> None:
    """Raise an error unless the argument is one of the two options."""
    if derivatives not in get_args(Derivatives):
        raise ValueError(f"derivatives={derivatives!r}, expected one of {list(get_args(Derivatives))}.")
