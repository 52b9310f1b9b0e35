"""Replica exchange: chains that pass between the modes of a posterior by way of its prior."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_sample

from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.exchange.ladder import first_ladder
from pyro_manifold.infer.mcmc.exchange.prior_draws import PriorDraws
from pyro_manifold.infer.mcmc.exchange.run import ReplicaRun, inverse_temperatures_of_rows
from pyro_manifold.infer.mcmc.exchange.swap import BETA, Swap
from pyro_manifold.infer.mcmc.exchange.tuning import LadderTuning
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.states import Blocks
from pyro_manifold.infer.smc.beginnings import check_likelihood, check_prior, refuse_likelihood
from pyro_manifold.infer.smc.tuning import particle_tuning
from pyro_manifold.target.initial_values import NoFiniteStartError
from pyro_manifold.target.model import target_from_model
from pyro_manifold.target.tempered import INVERSE_TEMPERATURE, WithoutLikelihood, likelihood_sites, tempered

_FEWEST_WARMUP_STEPS = 20


@dataclass(frozen=True)
class ReplicaExchange:
    r"""Non-reversible parallel tempering, for ``MCMC(OHMC(model), ..., tempering=ReplicaExchange(levels=16))``.

    Each chain becomes a group of replicas, one at each level of

    .. math:: \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad 0 = \beta_1 < \dots < \beta_N = 1.

    An iteration moves all of them by the kernel, with a step size and masses of each level; then neighbours swap
    places, even and odd pairs in turn, with probability :math:`\min(1, e^{(\beta_k - \beta_{k+1})(L_k - L_{k+1})})`, L
    minus the log likelihood. Level 1 is drawn from the prior itself, so that what comes from there is new. Warm-up
    sets the levels so that all swaps are rejected equally often. Draws are those at β = 1.

    The kernel's masses are one for each site on a manifold and diagonal for others; its ``trajectory_length`` (π/2 if
    None), ``trajectory_jitter``, ``target_accept_prob`` and ``reflection_probability`` are used. An iteration takes a
    gradient more than its leapfrog steps.

    Args:
        levels: N. About twice the barrier Λ that `MCMC.summary` tells, and one more, is best.

    Raises:
        ValueError: if that is not an integer from 2.

    Source: Syed, Bouchard-Côté, Deligiannidis & Doucet, Non-reversible parallel tempering: a scalable highly parallel
    MCMC scheme, JRSS-B 84 (2022), arXiv 1905.02939.

    Example:
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
        >>> abs(mcmc.diagnostics()["replica exchange"]["log evidence"] - 1.607) < 0.2
        True
    """

    levels: int = 16

    def __post_init__(self) -> None:
        check_positive_integer(levels=self.levels)
        if self.levels < 2:
            raise ValueError(f"levels={self.levels}, expected 2 or more: the prior and the posterior.")

    def prepare(
        self, kernel: HamiltonianKernel, chains: int, warmup_steps: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ReplicaRun:
        """A run of all replicas.

        Args:
            kernel: of a model.
            chains: groups of replicas.
            warmup_steps: iterations that adapt.
            args: arguments of the model.
            kwargs: arguments of the model.

        Raises:
            ValueError: if the model observes nothing, has nothing to move, cannot be drawn from, or has a density that
                is NaN or infinite at draws from the prior.
        """
        kernel = kernel.with_masses_of_sites()
        options = {**kernel.model_options, "init_strategy": init_to_sample}
        check_prior(partial(kernel.model, *args, **kwargs), "tempering")  # type: ignore[misc,arg-type]
        full = target_from_model(kernel.model, args, kwargs, **options)  # type: ignore[arg-type]
        if not {*full.manifolds, *full.transforms}:
            raise ValueError("tempering: the model samples no continuous site.")
        if not likelihood_sites(full.program):
            raise ValueError("tempering: the model has no likelihood: nothing is observed, and there is no factor.")
        base = target_from_model(WithoutLikelihood()(kernel.model), args, kwargs, **options)
        target = tempered(base, full)
        try:
            problem = Problem.build(target, self.levels * chains, None, batched=kernel.batched)
        except NoFiniteStartError:
            refuse_likelihood(base.draw, full, target.drawn, "tempering")
        if target.drawn > self.levels * chains:
            check_likelihood(base.draw, full, "tempering")
        start = self._start(problem)
        fresh = PriorDraws(target.draw_of_base, problem.layout, problem.potential, start, problem.random)
        tuned_by = partial(
            particle_tuning, kernel.plan, self.levels, problem.manifolds, kind=partial(LadderTuning, fresh=fresh)
        )
        parts: Any = kernel.composed(problem, kernel.mechanics(problem), tuned_by, start)
        parts.transitions = [*parts.transitions, Swap(self.levels, problem.potential)]
        configuration = {**kernel._configuration(), "levels": str(self.levels)}
        return ReplicaRun(problem, parts, warmup_steps, full, chains, configuration)

    def _start(self, problem: Problem) -> Blocks:
        """Draws from the prior on the first ladder; of each group those that fit the data best where β is largest."""
        position = problem.position
        _, gradient = problem.potential(position)
        misfit = gradient[BETA].reshape(self.levels, -1)
        groups = misfit.shape[1]
        order = misfit.argsort(0, descending=True) * groups + torch.arange(groups, device=misfit.device)
        ladder = first_ladder(misfit, self.levels)
        start = {block: x[order.flatten()] for block, x in position.items()}
        return {**start, (INVERSE_TEMPERATURE,): inverse_temperatures_of_rows(ladder, groups)}


def as_tempering(tempering: bool | ReplicaExchange | None) -> ReplicaExchange | None:
    """What the user said of tempering, checked."""
    if tempering is None or tempering is False:
        return None
    if tempering is True:
        return ReplicaExchange()
    if not isinstance(tempering, ReplicaExchange):
        raise ValueError(f"tempering={tempering!r}, expected True, False or ReplicaExchange(levels=...).")
    return tempering


def check_tempering(kernel: object, warmup_steps: int, **others: object) -> None:
    """Raise a sentence for what replicas cannot do; ``others`` are None or False if not asked for."""
    if not isinstance(kernel, HamiltonianKernel):
        raise ValueError(
            f"tempering is for OHMC and GHMC, which see the whole likelihood, not for {type(kernel).__name__}."
        )
    if kernel.model is None:
        raise ValueError(
            "tempering needs a prior and a likelihood, which potential_fn does not tell: give a Pyro model."
        )
    if warmup_steps < _FEWEST_WARMUP_STEPS:
        raise ValueError(
            f"warmup_steps={warmup_steps}: with tempering warm-up sets the ladder; take {_FEWEST_WARMUP_STEPS} or more."
        )
    reasons = {
        "initial_params": "replicas begin with draws from the prior",
        "num_superchains": "replicas begin with draws from the prior",
        "executor": "the replicas of a ladder swap in one process",
    }
    for name, value in others.items():
        if value is not None and value is not False:
            raise ValueError(f"{name} does not go with tempering, as {reasons[name]}: leave it out.")
