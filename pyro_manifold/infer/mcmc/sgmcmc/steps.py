r"""One step of stochastic-gradient dynamics over all blocks, as pure functions.

Friction α and noise follow the Ornstein–Uhlenbeck process :math:`dr = -\gamma r\,dt + \sqrt{2\gamma\tau}\,dW` on the
momenta, whose noise has the covariance of the momenta themselves (that of the kinetic energy at temperature τ): on a
Stiefel site anything else draws from another distribution. Over a step of size ε, γε = α.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics
from pyro_manifold.infer.mcmc.hmc.mechanics import Mechanics, Metric
from pyro_manifold.infer.mcmc.states import Blocks

Gradient = Callable[[Blocks], tuple[Tensor, Blocks]]
"""Energy and Euclidean gradient of positions on the batch of this step."""


class StochasticState(NamedTuple):
    """A position and a momentum of every chain, with energy and gradient there on the batch of the last step.

    Attributes:
        steps: how many steps have led here.
        squares: of PSGLD and NNSGHMC, a running mean of squared gradients; else empty.
    """

    position: Blocks
    momentum: Blocks
    energy: Tensor
    gradient: Blocks
    steps: int
    squares: Blocks


class StepSettings(NamedTuple):
    """What a step needs to know beside where it starts.

    Attributes:
        step_size: ε.
        temperature: τ; 1 for the posterior, 0 for descent without noise.
        friction: α in one step, of dynamics with momenta.
        noise_estimate: β̂ in one step, in the unit of α: what the noise of the gradient already adds.
    """

    step_size: float
    temperature: float
    friction: float = 0.0
    noise_estimate: float = 0.0


def splitting_step(
    state: StochasticState,
    gradient: Gradient,
    settings: StepSettings,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    random: torch.Generator,
) -> StochasticState:
    """Half a kick, half a drift, friction and noise for a whole step, half a drift, half a kick.

    Symmetric, so that the bias is of second order in ε, and none for a Gaussian; the half kicks at either side of a
    position use one gradient, that of the batch it was reached with.

    Source: Leimkuhler & Matthews 2013 (BAOAB), with Cayley's rotation for the drift of an orthonormal matrix.
    """
    half = settings.step_size / 2
    position, momentum = {}, {}
    for block, move in mechanics.items():
        kicked = move.kick(state.position[block], state.momentum[block], state.gradient[block], half)
        x, r = move.drift(state.position[block], kicked, metrics[block], half)
        keep = math.exp(-settings.friction)
        share = 1 - settings.noise_estimate / settings.friction if settings.friction else 0.0
        noise = move.draw_momentum(x, metrics[block].at(settings.temperature * (1 - keep**2) * share), random)
        position[block], momentum[block] = move.drift(x, noise.add_(r, alpha=keep), metrics[block], half)
    energy, slopes = gradient(position)
    for block, move in mechanics.items():
        momentum[block] = move.kick(position[block], momentum[block], slopes[block], half)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=slopes)


def euler_step(
    state: StochasticState,
    gradient: Gradient,
    settings: StepSettings,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    random: torch.Generator,
) -> StochasticState:
    r"""A drift, then :math:`r \leftarrow (1-\alpha) r - \varepsilon\nabla U + \sqrt{2(\alpha - \hat\beta)\tau}\,\xi`.

    ξ a fresh draw of momenta.

    Source: Chen, Fox & Guestrin 2014, equation 15; on orthonormal matrices Yanush & Kropotov, arXiv 1901.08045.
    """
    drifted = {
        block: move.drift(state.position[block], state.momentum[block], metrics[block], settings.step_size)
        for block, move in mechanics.items()
    }
    position = {block: x for block, (x, _) in drifted.items()}
    energy, slopes = gradient(position)
    momentum = {}
    for block, move in mechanics.items():
        x, r = drifted[block]
        slowed = euler_friction(move, x, r, metrics[block], settings, random)
        momentum[block] = move.kick(x, slowed, slopes[block], settings.step_size)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=slopes)


def euler_friction(
    move: Mechanics, x: Tensor, r: Tensor, metric: Metric, settings: StepSettings, random: torch.Generator
) -> Tensor:
    r""":math:`(1-\alpha) r + \sqrt{2(\alpha - \hat\beta)\tau}\,\xi`, ξ a fresh draw of momenta at x."""
    temperature = 2 * (settings.friction - settings.noise_estimate) * settings.temperature
    return move.draw_momentum(x, metric.at(temperature), random).add_(r, alpha=1 - settings.friction)


def langevin_step(
    state: StochasticState,
    gradient: Gradient,
    settings: StepSettings,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    random: torch.Generator,
) -> StochasticState:
    r"""A fresh momentum, half a kick, a drift for the time :math:`h = \sqrt\varepsilon`.

    In flat space :math:`x \leftarrow x - \tfrac\varepsilon2 M^{-1}\nabla U + \sqrt{\varepsilon\tau}\,M^{-1/2} z`. On a
    manifold it is one step of Hamiltonian dynamics without the closing kick: the drift keeps volume, and so no
    correction of the drift is left to add.

    Source: Welling & Teh 2011, equation 4, in flat space.
    """
    time = math.sqrt(settings.step_size)
    position, momentum = {}, {}
    for block, move in mechanics.items():
        x = state.position[block]
        fresh = move.draw_momentum(x, metrics[block].at(settings.temperature), random)
        kicked = move.kick(x, fresh, state.gradient[block], time / 2)
        position[block], momentum[block] = move.drift(x, kicked, metrics[block], time)
    energy, slopes = gradient(position)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=slopes)


def preconditioned_step(
    state: StochasticState,
    gradient: Gradient,
    settings: StepSettings,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    random: torch.Generator,
    decay: float,
    damping: float,
) -> StochasticState:
    r"""`langevin_step` with inverse masses :math:`1 / (\lambda + \sqrt v)`, v a mean of squared gradients.

    A manifold site has one mass, of the mean of its squares: masses of its entries would not keep its geometry.

    Source: Li, Chen, Carlson & Carin, AAAI 2016, algorithm 1, without the Γ of its equation 5.
    """
    squares = {block: decay * v + (1 - decay) * _square(state.gradient[block], v) for block, v in state.squares.items()}
    masses = {block: Metric.from_inverse_mass(1 / (damping + v.sqrt())) for block, v in squares.items()}
    moved = langevin_step(state, gradient, settings, mechanics=mechanics, metrics=masses, random=random)
    return moved._replace(squares=squares)


def _square(gradient: Tensor, like: Tensor) -> Tensor:
    """Of each entry, or their mean where there is one mass for all."""
    return gradient.square() if like.dim() == gradient.dim() else gradient.square().flatten(1).mean(1)
