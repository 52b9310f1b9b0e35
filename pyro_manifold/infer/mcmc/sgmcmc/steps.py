r"""States, settings and transitions shared by all stochastic-gradient kernels.

Friction α and noise follow the Ornstein–Uhlenbeck process $dr = -\gamma r\,dt + \sqrt{2\gamma\tau}\,dW$ on the
momenta. Its noise has the covariance of the momenta themselves, given by the kinetic energy at temperature τ; on a
Stiefel site any other covariance gives a wrong stationary distribution. Over a step of size ε, γε = α.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.mechanics import Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.transitions import Blocks, Noise, Potential, Statistics


class StochasticState(NamedTuple):
    """Position and momentum of every chain, with energy and gradient on the batch of the last step.

    Attributes:
        steps: number of steps so far.
        memory: further state of some kernels: a running mean of squared gradients in PSGLD and NNSGHMC, thermostats in
            SGNHT; else empty.
        heat: sums of temperatures, see `KineticTemperature.added_to`; empty if temperatures are not measured.
        hottest: part with the highest temperature in earlier iterations; see `temperature`.
    """

    position: Blocks
    momentum: Blocks
    energy: Tensor
    gradient: Blocks
    steps: int
    memory: Blocks
    heat: Blocks
    hottest: int


class StepSettings(NamedTuple):
    """Settings of a stochastic-gradient step.

    Attributes:
        step_size: ε.
        temperature: τ; 1 for the posterior, 0 for descent without noise.
        friction: α per step, for dynamics with momenta.
        noise_estimate: β̂ per step, in the unit of α: the contribution of gradient noise.
        num_steps: 1.
        metrics: masses of the blocks, which are inputs of native code; None for those of the transition, which are
            constants in native code.
    """

    step_size: float
    temperature: float
    friction: float = 0.0
    noise_estimate: float = 0.0
    num_steps: int = 1
    metrics: Metrics | None = None


Step = Callable[..., StochasticState]
"""Function of state, settings, noise ``{block: (chains, ...)}`` and potential on a batch that returns the next state.

The mechanics and metrics of blocks are keyword arguments.
"""


class StochasticStep:
    """Transition of a single stochastic-gradient step.

    Args:
        step: step of a kernel.
        mechanics: mechanics of the blocks.
        metrics: masses of the blocks.
    """

    def __init__(self, step: Step, mechanics: ProductMechanics, metrics: Metrics) -> None:
        self._step, self._mechanics, self._metrics = step, mechanics, metrics

    def prepared(self, settings: StepSettings, state: StochasticState) -> StepSettings:
        """Return the settings unchanged: they are constants in native code."""
        return settings

    def noise(self, state: StochasticState, random: torch.Generator) -> Noise:
        """Draw the standard normal noise of the momenta."""
        return Noise(self._mechanics.noise(state.position, random))

    def begin(
        self, state: StochasticState, settings: StepSettings, noise: Noise, potential: Potential
    ) -> tuple[StochasticState, tuple[()]]:
        """Return the state unchanged."""
        return state, ()

    def step(
        self, state: StochasticState, settings: StepSettings, noise: Noise, potential: Potential
    ) -> StochasticState:
        """Take the step."""
        metrics = self._metrics if settings.metrics is None else settings.metrics
        return self._step(state, settings, noise.normal, potential, mechanics=self._mechanics, metrics=metrics)

    def finish(
        self, state: StochasticState, kept: tuple[()], settings: StepSettings, noise: Noise
    ) -> tuple[StochasticState, Statistics]:
        """Return the state with accumulated rounding errors removed."""
        position = self._mechanics.restore(state.position)
        momentum = self._mechanics.restore_momentum(position, state.momentum)
        return state._replace(position=position, momentum=momentum), {}
