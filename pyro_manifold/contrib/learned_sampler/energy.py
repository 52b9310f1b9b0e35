r"""Energy as an input of a learned sampler, in units of its training.

$$ \tilde U = \frac{N_0}{N} L + \frac{d_0}{d} P, $$

with L minus the log likelihood of N data and P minus the log prior density of d coordinates: what grows with the data
is divided by their number, and what grows with the coordinates by theirs (Gong, Li & Hernández-Lobato, ICLR 2019,
equation 15, times N₀). If all of U were scaled by both ratios, a larger network would appear to fit its data long
before it does.
"""

from __future__ import annotations

from torch import Tensor

from pyro_manifold.infer.mcmc.sgmcmc import StochasticState
from pyro_manifold.infer.mcmc.transitions import Blocks, Potential


class EnergyInput:
    """Function from a state to its energy and gradient in units of training.

    Args:
        of_data: N₀ / N, the factor of L.
        of_prior: d₀ / d, the factor of P.
        prior: P and its gradient; None to scale all of U by both ratios.
    """

    def __init__(self, of_data: float = 1.0, of_prior: float = 1.0, prior: Potential | None = None) -> None:
        self._of_data, self._of_prior = (of_data * of_prior, 1.0) if prior is None else (of_data, of_prior)
        self._prior = prior

    def __call__(self, state: StochasticState) -> tuple[Tensor, Blocks]:
        """Return the energy ``(chains,)`` and its gradient by blocks, on the batch of the last step."""
        data = self._of_data
        if self._prior is not None:
            prior, slopes = self._prior(state.position)
            share = self._of_prior - data
            mixed = {block: data * g + share * slopes[block] for block, g in state.gradient.items()}
            return data * state.energy + share * prior, mixed
        if data == 1.0:
            return state.energy, state.gradient
        return data * state.energy, {block: data * g for block, g in state.gradient.items()}
