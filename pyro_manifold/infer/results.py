"""Results of a run of `MCMC`: draws, statistics, a table, diagnostics and export to ArviZ."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyro.infer
from pyro.infer.mcmc.util import select_samples
from torch import Tensor

from pyro_manifold.density import Program, Sites, one_thread_at_a_time
from pyro_manifold.diagnostics import (
    Diagnostics,
    Notes,
    Posterior,
    Symmetry,
    check_flag,
    deterministic_by_chain,
    diagnose,
    in_html,
    of_pyro,
    summarise,
    to_inferencedata,
)
from pyro_manifold.infer.mcmc import check_counts
from pyro_manifold.infer.mcmc.running import Run, Sampling, ShardedDraws
from pyro_manifold.infer.mcmc.transitions import Statistics
from pyro_manifold.infer.predictive_groups import with_draws


class Results(pyro.infer.MCMC):
    """Part of `MCMC` that reads what a run has drawn."""

    _sampling: Sampling | ShardedDraws | None
    _num_superchains: int | None
    _vectorised: bool
    program: Program | None
    stopped: str | None
    _posterior: Posterior | None = None

    @property
    def posterior(self) -> Posterior:
        """Draws and statistics of the run with its model, as one value; see `pyro_manifold.diagnostics.Posterior`.

        Raises:
            ValueError: before `run`.
        """
        self._check_there_are_draws("posterior")
        if self._posterior is None:
            self._posterior = self._as_posterior()
        return self._posterior

    def _as_posterior(self) -> Posterior:
        if self._sampling is None:
            found = of_pyro(self)
            notes = replace(found.notes, num_superchains=self._num_superchains)
            return replace(found, program=self.program, notes=notes)
        density = self.kernel.target(None, self._initial_params) if self.program is None else None
        lines = [*self._sampling.summary_lines(), *([] if self.stopped is None else [self.stopped])]
        notes = Notes(self._sampling.diagnostics_entries(), lines, self._num_superchains)
        return Posterior(self._samples, self._sampling.statistics(), self.program, notes, density=density)

    @property
    def _run_here(self) -> Run[Any, Any] | None:
        return self._sampling.run if isinstance(self._sampling, Sampling) else None

    @one_thread_at_a_time
    def get_samples(
        self,
        num_samples: int | None = None,
        group_by_chain: bool = False,
        *,
        deterministic: bool = False,
        align: bool = False,
    ) -> Sites:
        """Return the draws of each site, as in Pyro.

        Args:
            num_samples: number of draws to select at random with replacement; None for all draws.
            group_by_chain: ``{site: (chains, draws, ...)}`` instead of ``{site: (chains · draws, ...)}``.
            deterministic: whether to add sites of `pyro.deterministic`, computed for each draw; those that depend on
                discrete sites which were summed out are left out, with a warning. Do not pass the result to
                `Predictive`, which would use these values instead of recomputing them.
            align: whether to align the draws by the `symmetries` of the posterior, as `summary` does: each draw is
                replaced by the one of the same density, with other signs, order or rotations of columns, that is
                nearest to a common reference (`pyro_manifold.diagnostics.align_draws`). Deterministic sites are those
                of the aligned draws.

        Raises:
            ValueError: if there are no draws, or for deterministic sites, no draws of some site; for ``align`` if the
                density of the kernel cannot be evaluated.
        """
        self._check_there_are_draws("get_samples")
        check_flag(align=align)
        if num_samples is not None:
            check_counts(num_samples=num_samples)
        draws = self.posterior.aligned().draws if align else self._samples
        samples = _selected(draws, num_samples, group_by_chain)
        if not deterministic:
            return samples
        program = self.posterior.program
        if program is None:
            raise ValueError("deterministic=True needs a model, but the kernel was given potential_fn")
        return {**samples, **deterministic_by_chain(program, samples, 2 if group_by_chain else 1)}

    def get_extra_fields(self, group_by_chain: bool = False) -> Statistics:
        """Return the statistics of each draw: log density, energy, step size and others recorded by the kernel.

        Args:
            group_by_chain: ``{name: (chains, draws)}`` instead of ``{name: (chains · draws,)}``.

        Returns:
            Statistics by ArviZ's names; empty for kernels without statistics.

        Raises:
            ValueError: before `run`.
        """
        self._check_there_are_draws("get_extra_fields")
        grouped = dict(self.posterior.statistics)
        return grouped if group_by_chain else {name: value.flatten() for name, value in grouped.items()}

    @one_thread_at_a_time
    def summary(self, prob: float = 0.9, *, align: bool = True, max_rows: int | None = None) -> None:
        """Print a table of the draws, aligned where sites are identified only up to signs, order or rotations.

        Draws of such sites are those of ``get_samples(align=True)``. A line below the table describes the alignment,
        with the largest R-hat and the smallest effective sample size of invariants, the quantities that no change of
        signs, order or rotation alters (`pyro_manifold.diagnostics.invariants`). If chains disagree on these, on sites
        without a symmetry or on the log density, with an R-hat above 1.05, a warning with a remedy precedes the table.

        The table is Pyro's, with the limits of the shortest interval (``hdi90_lb`` and ``hdi90_ub``, of the highest
        density, no quantiles), with bulk and tail effective sample sizes and rank-normalised R-hat by ArviZ
        (`pyro_manifold.diagnostics.convergence`), and nested R-hat where ``num_superchains`` is given.

        Args:
            prob: probability of the interval, between 0 and 1.
            align: whether to align draws. False prints all rows of the draws as they were sampled, with their
                invariants below the table.
            max_rows: largest number of rows of a site. For a site with more entries, the ten with the largest R-hat and
                the number of the others are shown; None is 20 with ``align``, and no limit without.

        Raises:
            ValueError: before `run`, for fewer than 4 draws of each chain, or another ``prob`` or ``max_rows``.
        """
        check_flag(align=align)
        self._check_there_are_draws("summary", fewest=4)
        print(summarise(self.posterior, prob, align=align, max_rows=max_rows))

    @one_thread_at_a_time
    def symmetries(self) -> list[Symmetry]:
        """Find sites that the posterior identifies only up to signs, order or rotations of their columns.

        They are found once per run, for kernels of this package, by evaluating the log density at some draws with
        changed columns.
        """
        self._check_there_are_draws("symmetries")
        return list(self.posterior.symmetries or [])

    def _check_there_are_draws(self, method: str, fewest: int = 1) -> None:
        if self._samples is None or not self.num_samples:
            raise ValueError(f"MCMC.{method}: there are no draws yet, call mcmc.run(...) first.")
        if self._samples and self.num_samples < fewest:
            raise ValueError(
                f"MCMC.{method} needs at least {fewest} draws of each chain for effective sample sizes and R-hat, "
                f"and there are {self.num_samples}: increase num_samples."
            )

    @one_thread_at_a_time
    def diagnostics(self) -> Diagnostics:
        """Return effective sample sizes and R-hat of each site, diagnostics of the kernel, and disagreeing chains.

        The result is a dictionary with a short ``repr``. Keys are the names of sites and identifiers, such
        as ``"acceptance_rate"``, for which Pyro's ``"acceptance rate"`` is accepted too.

        Entries of each site, computed by ArviZ from the draws as they were sampled: ``"n_eff"`` (for the mean),
        ``"ess_bulk"``, ``"ess_tail"`` and the rank-normalised ``"r_hat"``; ``"nested_r_hat"`` where ``num_superchains``
        is given.

        ``"disagreeing_chains"`` names, for each site whose largest split R-hat is above 1.05, that R-hat and the chain
        furthest from the others: it may be in another mode, or not have converged yet. It also names the chains that
        never moved. This R-hat is computed from values, not from ranks: where chains are far apart it is larger than
        ``"r_hat"``. For a single chain, its two halves are compared. Sites that are identified only up to signs, order
        or rotations of columns, or up to whole turns, are replaced by functions that these do not change, as in the
        first line of `summary`: ``"U, row products"`` in place of ``"U"``. ``"log_density"`` is the last entry.

        ``"modes"`` groups the chains by mode (`pyro_manifold.diagnostics.modes`), as far as the draws distinguish them,
        if there are at least 20 draws.

        With ``tempering``, ``"replica_exchange"`` contains the ladder, the rejection rates of swaps between neighbours
        and their sum, the barrier Λ, the round trips of each chain's replicas and their expected number, and the log
        evidence with its standard error.
        """
        self._check_there_are_draws("diagnostics", fewest=4)
        return diagnose(self.posterior)

    @one_thread_at_a_time
    def to_inferencedata(self, **options: Any) -> Any:
        """Export the run to ArviZ; options and groups are those of `pyro_manifold.diagnostics.to_inferencedata`.

        In addition ``prior`` may be a number of draws, and ``posterior_predictive`` True. They are drawn from the model
        with its arguments in the run, without its data. All groups in one call:
        ``mcmc.to_inferencedata(prior=500, posterior_predictive=True)``.

        Raises:
            ValueError: as `pyro_manifold.diagnostics.to_inferencedata`, and if draws are asked for and the model takes
                its data in minibatches, ``save_params`` leaves out a site, or the kernel has no model.
        """
        self._check_there_are_draws("to_inferencedata")
        return to_inferencedata(self.posterior, **with_draws(self.posterior, options))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: sites with R-hat and effective sample sizes, and the number of divergences."""
        there_are_draws = self._samples is not None and self.num_samples
        return in_html(self.posterior if there_are_draws else None, f"MCMC by {type(self.kernel).__name__}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling: results and settings, without graphs, and without the run that made them."""
        state = self.__dict__.copy()
        if not self._vectorised:
            return state
        kernel, sampler = self.kernel.without_run(), copy.copy(self.sampler)
        sampler.kernel = kernel
        there_are_draws = self._samples is not None and self.num_samples
        made = self.posterior if there_are_draws else None
        return state | {"kernel": kernel, "sampler": sampler, "_sampling": None, "_posterior": made}


def _selected(samples: Mapping[str, Tensor], num_samples: int | None, group_by_chain: bool) -> Sites:
    """Select draws as Pyro does, also for sites without elements, which Pyro cannot reshape."""
    full = {name: value for name, value in samples.items() if value.numel()}
    selected: Sites = dict(select_samples(full, num_samples, group_by_chain))
    for name, value in samples.items():
        if not value.numel():
            draws = num_samples or value.shape[1] * (1 if group_by_chain else len(value))
            selected[name] = value.new_empty(*value.shape[: int(group_by_chain)], draws, *value.shape[2:])
    return {name: selected[name] for name in samples}
