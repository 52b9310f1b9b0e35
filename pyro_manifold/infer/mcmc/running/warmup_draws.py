"""Consumer that keeps the draws of warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.diagnostics import Posterior
from pyro_manifold.infer.mcmc.running.loop import Iteration, Iterations
from pyro_manifold.infer.mcmc.running.record import Record


class WarmupDraws:
    """Consumer that keeps the iterations of warm-up, to see how chains arrived and what was adapted.

    Pass it as one of the ``consumers`` of `MCMC`, and then to ``to_inferencedata(warmup=...)``, which adds the groups
    ``warmup_posterior`` and ``warmup_sample_stats``. Draws of warm-up are not draws of the posterior. They are in
    memory, on the device of the model; a run that is resumed from a store has those made since. ``lp`` and ``energy``
    are those of the coordinates in which the chains moved at the time, which warm-up may change (``adapt_centring``).

    Attributes:
        posterior: draws ``{site: (chains, iterations, ...)}`` and statistics ``{name: (chains, iterations)}``, as a
            `pyro_manifold.diagnostics.Posterior`.

    Examples:
        >>> import pyro
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> warmup = WarmupDraws()
        >>> kernel = OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2)))
        >>> mcmc = MCMC(kernel, 10, 25, num_chains=2, consumers=[warmup], disable_progbar=True)
        >>> mcmc.run()
        >>> warmup.posterior.draws["U"].shape
        torch.Size([2, 25, 4, 2])
        >>> mcmc.to_inferencedata(warmup=warmup).warmup_sample_stats["step_size"].sizes["draw"]
        25
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._values: list[dict[str, Tensor]] = []
        self._record = Record()

    def __call__(self, iteration: Iteration) -> None:
        if iteration.stage == "Sample":
            return
        if iteration.index == 0:
            self._begin()
        # Values now, since warm-up can change the coordinates in which chains move.
        self._values.append({name: value.detach().clone() for name, value in iteration.values.items()})
        self._record.add({name: value.detach().clone() for name, value in iteration.statistics.items()})

    def several(self, iterations: Iterations) -> None:
        """Do nothing: several iterations are made together only after warm-up."""

    @property
    def posterior(self) -> Posterior:
        if not self._values:
            raise ValueError(
                "WarmupDraws: there is no iteration of warm-up; pass it to MCMC(..., warmup_steps=500, "
                "consumers=[warmup]) and call mcmc.run(...) first."
            )
        draws = {name: torch.stack([each[name] for each in self._values], 1) for name in self._values[0]}
        return Posterior(draws, self._record.statistics())
