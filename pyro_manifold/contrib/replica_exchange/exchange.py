"""Replica exchange (parallel tempering): chains move between the modes of a posterior through its prior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_sample

from pyro_manifold.contrib.replica_exchange.ladder import first_ladder
from pyro_manifold.contrib.replica_exchange.prior_draws import PriorDraws
from pyro_manifold.contrib.replica_exchange.run import ReplicaRun, inverse_temperatures_of_rows
from pyro_manifold.contrib.replica_exchange.swap import BETA, Swap
from pyro_manifold.contrib.replica_exchange.tuning import LadderTuning
from pyro_manifold.density import INVERSE_TEMPERATURE, Program, WithoutLikelihood, tempered
from pyro_manifold.infer.mcmc import check_positive_integer
from pyro_manifold.infer.mcmc.adaptation import particle_tuning
from pyro_manifold.infer.mcmc.hmc import HamiltonianKernel
from pyro_manifold.infer.mcmc.transitions import Blocks, Problem
from pyro_manifold.infer.smc import likelihood_terms, posterior_of, problem_with_finite_starts

_FEWEST_WARMUP_STEPS = 20


@dataclass(frozen=True)
class ReplicaExchange:
    r"""Non-reversible parallel tempering, for ``MCMC(OHMC(model), ..., tempering=ReplicaExchange(levels=16))``.

    Each chain becomes a group of replicas, one at each level of

    $$ \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad 0 = \beta_1 < \dots < \beta_N = 1. $$

    In each iteration the kernel moves all replicas, with a step size and masses for each level. Neighbouring levels
    then swap, even and odd pairs in turn, with probability
    $\min(1, e^{(\beta_k - \beta_{k+1})(L_k - L_{k+1})})$, L minus the log likelihood. Level 1 is drawn from the
    prior itself, so that the replicas that leave it are independent draws. Warm-up sets the levels so that all swaps
    are rejected equally often. The draws of the run are those at β = 1.

    At the end of a run, descents from draws of the prior and of the posterior search for modes. Where the mass about
    these modes exceeds the estimated evidence, the reported error of the evidence covers the difference; a warning is
    issued if it is significant.

    Masses are scalar for each site on a manifold and diagonal for other sites. The kernel's ``trajectory_length`` (π/2
    if None), ``trajectory_jitter``, ``target_accept_prob`` and ``reflection_probability`` are used. An iteration
    evaluates one gradient more than its number of leapfrog steps.

    Args:
        levels: N. The optimum is about 2Λ + 1, with the barrier Λ that `MCMC.summary` reports.

    Raises:
        ValueError: if ``levels`` is not an integer of 2 or more.

    Source: Syed, Bouchard-Côté, Deligiannidis & Doucet, Non-reversible parallel tempering: a scalable highly parallel
    MCMC scheme, JRSS-B 84 (2022), arXiv 1905.02939.

    Examples:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, OHMC, ReplicaExchange
        >>> _ = pyro.set_rng_seed(0)
        >>> def model():
        ...     U = pyro.sample("U", StiefelUniform(3, 2))
        ...     pyro.factor("likelihood", 3 * U[0, 0] + 1.5 * U[1, 1])
        >>> exchange = ReplicaExchange(levels=4)
        >>> mcmc = MCMC(OHMC(model), 200, 100, num_chains=4, tempering=exchange, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["U"].shape
        torch.Size([4, 200, 3, 2])
        >>> abs(mcmc.diagnostics()["replica_exchange"]["log_evidence"] - 1.607) < 0.2
        True
    """

    levels: int = 16

    def __post_init__(self) -> None:
        check_positive_integer(levels=self.levels)
        if self.levels < 2:
            raise ValueError(f"levels={self.levels}, expected at least 2: the prior and the posterior.")

    def check(self, kernel: object, warmup_steps: int, **others: object) -> None:
        """Raise ValueError for arguments of `MCMC` that are incompatible with replicas."""
        if not isinstance(kernel, HamiltonianKernel):
            raise ValueError(
                f"tempering needs a kernel with the full likelihood, OHMC or GHMC, not {type(kernel).__name__}."
            )
        if kernel.model is None:
            raise ValueError(
                "tempering needs a prior and a likelihood, which potential_fn does not separate: pass a Pyro model."
            )
        if warmup_steps < _FEWEST_WARMUP_STEPS:
            raise ValueError(
                f"warmup_steps={warmup_steps}, expected at least {_FEWEST_WARMUP_STEPS} with tempering, as warm-up "
                "adapts the ladder."
            )
        reasons = {
            "initial_params": "replicas are initialised with draws from the prior",
            "Superchains": "replicas are initialised with draws from the prior",
            "Shards": "the replicas of a ladder swap in one process",
        }
        for name, value in others.items():
            if value is not None and value is not False:
                raise ValueError(f"{name} is not supported with tempering, as {reasons[name]}: leave it out.")

    def prepare(self, kernel: HamiltonianKernel, chains: int, warmup_steps: int, program: Program) -> ReplicaRun:
        """Return a run of all replicas.

        Args:
            kernel: kernel of a Pyro model.
            chains: number of groups of replicas.
            warmup_steps: iterations of warm-up.
            program: the model with its arguments.

        Raises:
            ValueError: if the model has no likelihood or no continuous site, if its prior cannot be sampled, or if its
                density is NaN or infinite at draws from the prior.
        """
        kernel = kernel.with_masses_of_sites()
        program = program.with_options(init_strategy=init_to_sample)
        full = posterior_of(program, "tempering")
        likelihood_terms(full, (), "tempering")
        base = program.handled(WithoutLikelihood()).target
        target = tempered(base, full)
        problem = problem_with_finite_starts(target, base, full, self.levels * chains, kernel.batched, "tempering")
        problem = problem.at(self._start(problem))
        fresh = PriorDraws(target.draw_of_base, problem.layout, problem.potential, problem.position, problem.random)
        tuned_by = partial(
            particle_tuning, kernel.plan, self.levels, problem.manifolds, kind=partial(LadderTuning, fresh=fresh)
        )
        parts: Any = kernel.composed(problem, kernel.mechanics(problem), tuned_by)
        parts.transitions = [*parts.transitions, Swap(self.levels, problem.potential)]
        configuration = {**kernel.configuration(), "levels": str(self.levels)}
        return ReplicaRun(problem, parts, warmup_steps, full, chains, configuration)

    def _start(self, problem: Problem) -> Blocks:
        """Place draws from the prior on the first ladder; within a group, by increasing likelihood."""
        position = problem.position
        _, gradient = problem.potential(position)
        negative_log_likelihood = gradient[BETA].reshape(self.levels, -1)
        groups = negative_log_likelihood.shape[1]
        order = negative_log_likelihood.argsort(0, descending=True) * groups + torch.arange(
            groups, device=negative_log_likelihood.device
        )
        ladder = first_ladder(negative_log_likelihood, self.levels)
        start = {block: x[order.flatten()] for block, x in position.items()}
        return {**start, (INVERSE_TEMPERATURE,): inverse_temperatures_of_rows(ladder, groups)}
