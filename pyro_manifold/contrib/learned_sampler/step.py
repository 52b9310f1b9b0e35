r"""Integrator step of the learned dynamics.

With z = (θ, r), $H = U + \tfrac12\|r\|^2$, the complete recipe (Ma, Chen & Fox 2015) with a diagonal curl Q and a
diagonal friction D on the momenta is

$$
d\theta = (Q r + \Gamma_\theta)\,dt, \qquad
dr = (-Q\nabla U - D r + \Gamma_r)\,dt + \sqrt{2D}\,dW, \qquad
\Gamma_\theta = -\partial_r Q, \quad \Gamma_r = \partial_U Q\,\nabla U + \partial_r D,
$$

separately in each coordinate. Without Γ the stationary distribution would be wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.contrib.learned_sampler.coordinate_update import Columns, CoordinateUpdate
from pyro_manifold.contrib.learned_sampler.energy import EnergyInput
from pyro_manifold.infer.mcmc.mechanics import EuclideanMechanics, Metrics, ProductMechanics
from pyro_manifold.infer.mcmc.sgmcmc import StepSettings, StochasticState, euler_variance
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential

_TINY = 1e-30
MEMORY = 10.0
"""Decay exponent: the weight of early steps in the running scale of gradients decays as time to minus this power."""


def learned_step(
    state: StochasticState,
    settings: StepSettings,
    noise: Blocks,
    potential: Potential,
    *,
    mechanics: ProductMechanics,
    metrics: Metrics,
    coordinate_update: CoordinateUpdate,
    energy_input: EnergyInput,
) -> StochasticState:
    r"""Take one learned step: a drift, then a kick with friction and noise, with Q and D at the start of the step.

    $$
    \theta \leftarrow \theta + \varepsilon (Q r - \tau\,\partial_r Q), \qquad
    r \leftarrow (1 - \varepsilon D) r - \varepsilon Q \nabla U'
    + \varepsilon\tau (\partial_U Q\,\nabla U + \partial_r D) + N(0, 2 (\varepsilon D \tau - \hat\beta)).
    $$

    U and ∇U are those of the last step's batch, ∇U' is evaluated at the new position on the next batch. Thus Q, which
    depends on a noisy U, and the force that it multiplies have independent noise: the mean of their product is the
    product of their means, and Γ is that of the mean of Q. If both were computed on one batch, their correlation would
    cause a bias that does not vanish with ε. With constant Q and D this is the step of SGHMC with Euler's scheme. A
    manifold site moves as in OSGHMC with Euler's scheme, with the friction of ``settings``.

    Source: Gong, Li & Hernández-Lobato, ICLR 2019, section 3, where Q is evaluated twice per step, on the force's
    batch.
    """
    ε = settings.step_size
    position, momentum, curl, squares = {}, {}, {}, {}
    energy, slopes = energy_input(state)
    for block, move in mechanics.items():
        x, r, metric = state.position[block], state.momentum[block], metrics[block]
        if isinstance(move, EuclideanMechanics):
            scale = metric.inverse_mass.sqrt()  # scale of the site; inputs of the networks are rescaled to unit mass
            squares[block] = _running_mean(state.memory[block], state.gradient[block] * scale, state.steps)
            unit = coordinate_update.gradient_unit(squares[block].clamp(min=_TINY).sqrt())
            columns = Columns(x, r, state.gradient[block], slopes[block], noise[block], scale)
            position[block], momentum[block], curl[block] = coordinate_update(columns, energy, unit, settings)
        else:
            position[block], r = move.drift(x, r, metric, ε)
            fresh = move.momentum_from(noise[block], position[block], metric.at(euler_variance(settings)))
            momentum[block] = fresh.add_(r, alpha=1 - settings.friction)
    energy, slopes = potential(position)
    for block, move in mechanics.items():
        if block in curl:
            momentum[block] = torch.addcmul(momentum[block], curl[block], slopes[block], value=-ε)
        else:
            momentum[block] = move.kick(position[block], momentum[block], slopes[block], ε)
    return state._replace(position=position, momentum=momentum, energy=energy, gradient=slopes, memory=squares)


def _running_mean(mean: Tensor, gradient: Tensor, steps: int) -> Tensor:
    """Update the running mean of squared gradients; its adaptation vanishes, so that the posterior stays stationary."""
    return torch.lerp(mean, gradient.square().mean(), min(1.0, MEMORY / (steps + MEMORY)))


def first_squares(gradient: Blocks, mechanics: ProductMechanics, metrics: Metrics) -> Blocks:
    """Return the initial running mean of squared gradients, ``(1,)`` for each block."""
    return {
        block: (gradient[block].square() * metrics[block].inverse_mass).mean().reshape(1)
        for block, move in mechanics.items()
        if isinstance(move, EuclideanMechanics)
    }
