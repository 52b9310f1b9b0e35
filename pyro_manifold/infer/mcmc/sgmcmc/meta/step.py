r"""One step of the learned dynamics.

With z = (θ, r), :math:`H = U + \tfrac12\|r\|^2`, the complete recipe (Ma, Chen & Fox 2015) with a diagonal curl Q and a
diagonal friction D on the momenta is

.. math::
    d\theta = (Q r + \Gamma_\theta)\,dt, \qquad
    dr = (-Q\nabla U - D r + \Gamma_r)\,dt + \sqrt{2D}\,dW, \qquad
    \Gamma_\theta = -\partial_r Q, \quad \Gamma_r = \partial_U Q\,\nabla U + \partial_r D,

each of them in its own coordinate. Without Γ the chains draw from another distribution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.hmc.leapfrog import BlockMechanics, Metrics
from pyro_manifold.infer.mcmc.hmc.mechanics import EuclideanMechanics
from pyro_manifold.infer.mcmc.sgmcmc.meta.opening import Columns, Opening
from pyro_manifold.infer.mcmc.sgmcmc.steps import Gradient, StepSettings, StochasticState, euler_friction
from pyro_manifold.infer.mcmc.states import Blocks, normal_like

_TINY = 1e-30
MEMORY = 10.0
"""The running scale of gradients forgets its first steps with the MEMORY-th power of time."""


def learned_step(
    state: StochasticState,
    gradient: Gradient,
    settings: StepSettings,
    *,
    mechanics: BlockMechanics,
    metrics: Metrics,
    random: torch.Generator,
    opening: Opening,
) -> StochasticState:
    r"""A drift, then a kick with friction and noise, both with Q and D of where the step begins.

    .. math::
        \theta \leftarrow \theta + \varepsilon (Q r - \tau\,\partial_r Q), \qquad
        r \leftarrow (1 - \varepsilon D) r - \varepsilon Q \nabla U'
            + \varepsilon\tau (\partial_U Q\,\nabla U + \partial_r D) + N(0, 2 (\varepsilon D - \hat\beta) \tau).

    U and ∇U are those of the last step's batch, ∇U' is that at the new position on the next batch. So Q, which sees a
    noisy U, and the force that it multiplies have noise of different batches: the mean of their product is the product
    of their means, and Γ is that of the mean of Q. Taken from one batch, their correlation would be a bias that does
    not vanish with ε. With constant Q and D this is the step of SGHMC by Euler's scheme. A manifold site moves as in
    OSGHMC by Euler's scheme, with the friction of ``settings``.

    Source: Gong, Li & Hernández-Lobato, ICLR 2019, section 3; there Q is evaluated twice a step, on the force's batch.
    """
    ε = settings.step_size
    position, momentum, curl, squares = {}, {}, {}, {}
    for block, move in mechanics.items():
        x, r, metric = state.position[block], state.momentum[block], metrics[block]
        if isinstance(move, EuclideanMechanics):
            noise = normal_like(x, random)
            scale = metric.inverse_mass.sqrt()  # of a site; the networks see it as if it had mass 1
            squares[block] = _running_mean(state.squares[block], state.gradient[block] * scale, state.steps)
            unit = squares[block].clamp(min=_TINY).sqrt()
            found = opening(Columns(x, r, state.gradient[block], noise, scale), state.energy, unit, settings)
            position[block], momentum[block], curl[block] = found
        else:
            position[block], r = move.drift(x, r, metric, ε)
            momentum[block] = euler_friction(move, position[block], r, metric, settings, random)
    energy, slopes = gradient(position)
    for block, move in mechanics.items():
        if block in curl:
            momentum[block] = torch.addcmul(momentum[block], curl[block], slopes[block], value=-ε)
        else:
            momentum[block] = move.kick(position[block], momentum[block], slopes[block], ε)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=slopes, squares=squares)


def _running_mean(mean: Tensor, gradient: Tensor, steps: int) -> Tensor:
    """Of squared gradients, all chains and coordinates together; it changes less and less, so that the law is kept."""
    return torch.lerp(mean, gradient.square().mean(), min(1.0, MEMORY / (steps + MEMORY)))


def first_squares(gradient: Blocks, mechanics: BlockMechanics, metrics: Metrics) -> Blocks:
    """The running scale to begin with, ``(1,)`` a block."""
    return {
        block: (gradient[block].square() * metrics[block].inverse_mass).mean().reshape(1)
        for block, move in mechanics.items()
        if isinstance(move, EuclideanMechanics)
    }
