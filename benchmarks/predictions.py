"""Predictions by the draws of a run: means and R-hat while chains run, without keeping weights."""

import pyro
import torch

from pyro_manifold.compiled import trace, vmapped


class Predictions:
    """Mean and variance of predictions over the draws of each chain, a consumer of `MCMC`.

    The model is traced at the first draw, and vectorised over chains. It must not draw random numbers.

    Args:
        model: a model or its network, with sites of the names of those that are sampled.
        args: its arguments.
        statistic: function from what it returns to a tensor.

    Attributes:
        draws: number of draws of each chain so far.
        chain_means: mean over the draws of each chain, ``(chains, ...)``.
    """

    def __init__(self, model, *args, statistic=lambda returned: returned):
        self._model, self._args, self._statistic, self._of_all_chains = model, args, statistic, None
        self.draws, self.chain_means, self._squares = 0, 0.0, 0.0

    def __call__(self, iteration):
        if not iteration.kept:
            return
        # Contiguous, because a graph is of one memory layout.
        values = {name: value.contiguous() for name, value in iteration.values.items()}
        with torch.no_grad(), pyro.validation_enabled(False):
            if self._of_all_chains is None:
                self._of_all_chains = self._traced(values)
            (found,) = self._of_all_chains(*values.values())
        self.draws, change = self.draws + 1, found - self.chain_means
        self.chain_means = self.chain_means + change / self.draws  # by Welford's recursion
        self._squares = self._squares + change * (found - self.chain_means)

    def _traced(self, values):
        """Trace the model for one chain, and that for all chains, so that vectorising costs nothing at each draw."""

        def of_one_chain(*columns):
            conditioned = pyro.condition(self._model, data=dict(zip(values, columns, strict=True)))
            return (self._statistic(conditioned(*self._args)),)

        graph = trace(of_one_chain, *[value[0].clone() for value in values.values()])
        return trace(vmapped(graph), *[value.clone() for value in values.values()])

    @property
    def mean(self):
        """Mean over chains and draws."""
        return self.chain_means.mean(0)

    @property
    def r_hat(self):
        """R-hat of each prediction, √((t − 1)/t + B/W) after t draws; 1 where all draws are equal."""
        within, chains = (self._squares / (self.draws - 1)).mean(0), len(self.chain_means)
        between = self.chain_means.var(0, correction=0) * chains / (chains - 1)
        r_hat = ((self.draws - 1) / self.draws + between / within).sqrt()
        return torch.where((within == 0) & (between == 0), 1.0, r_hat)
