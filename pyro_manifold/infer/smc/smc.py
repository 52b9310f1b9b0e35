"""SMC: posteriors with many modes, and their evidence."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from numbers import Real
from typing import Any, Literal

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor
from torch.distributions import biject_to

from pyro_manifold.infer.mcmc.arguments import check_shards
from pyro_manifold.infer.mcmc.checks import check_positive_integer, is_a
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.remarks import symmetries_of_run
from pyro_manifold.infer.mcmc.run import Run
from pyro_manifold.infer.mcmc.shards import MakeExecutor, Shards
from pyro_manifold.infer.smc.annealing import Level, Particles, Plan, anneal
from pyro_manifold.infer.smc.beginnings import check_likelihood, check_prior, refuse_likelihood
from pyro_manifold.infer.smc.guide import is_over_charts, target_of_guide
from pyro_manifold.infer.smc.modes import mixture_about_modes
from pyro_manifold.infer.smc.progress import ProgressBar
from pyro_manifold.infer.smc.report import inferencedata, text
from pyro_manifold.infer.smc.results import Result
from pyro_manifold.infer.smc.sharded import run_in_shards
from pyro_manifold.infer.smc.starts import draws_of, starts_of_chains
from pyro_manifold.infer.smc.tuning import particle_tuning
from pyro_manifold.infer.smc.whitened import from_mixture
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.initial_values import NoFiniteStartError
from pyro_manifold.target.model import ModelTarget, Target, target_from_model
from pyro_manifold.target.tempered import WithoutLikelihood, likelihood_sites, tempered

_ENDLESS = 2**62
_USUAL_LEVELS = 10
_TO_THE_END = 8
_RUNS_DIFFER = 1.0  # standard deviation of log evidences, in nats


class SMC:
    r"""Sequential Monte Carlo from the prior of a model to its posterior, and the evidence of its data.

    Particles begin as exact draws from the prior, which reach all of the posterior's modes, and follow

    .. math:: \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad 0 = \beta_0 < \beta_1 < \dots < 1,

    each β as far from the last as their effective sample size allows. In between they are drawn anew by their weights
    and moved by the kernel, whose step size and masses come from the particles. Each mode keeps the share of particles
    that its mass earns on the way, where single chains stay in the mode that they met first. The weights give the
    evidence :math:`p(y) = \int p(y \mid x)\,p(x)\,dx`: of two models, the one with the larger evidence predicted the
    data better (Bayes factor).

    The likelihood is what observed sites and `pyro.factor` say. Stiefel sites, discrete sites (summed out), plates and
    everything else that `OHMC` takes are as there; minibatches are not.

    Args:
        kernel: `OHMC` or `GHMC` of a model: it moves the particles. Its ``trajectory_length`` (π/2 if None),
            ``trajectory_jitter``, ``target_accept_prob`` and ``reflection_probability`` are used; masses are one for
            each site on a manifold and diagonal for other sites.
        num_particles: N, of each run.
        num_runs: independent runs, side by side.
        states_per_chain: N/M: so many states of a chain become particles at each level; M chains are moved.
        last_states: as many of each chain at the last level, for more draws from the posterior; ``states_per_chain`` if
            None.
        ess_share: the effective sample size, as a share of N, that a step of β must leave.
        max_levels: after so many values of β it gives up.
        prior_factors: observed sites and factors that belong to the prior, such as a factor that orders scales. A first
            pass then brings the particles to this prior, and the evidence is with respect to it.
        init: ``"prior"``, or ``"modes"``: from a mixture of Gaussians about the ends of descents from draws of the
            prior, for modes that have no particle while β is small. The evidence is then that of the modes found.
            Or a fitted guide of the model, from which the way is shorter: `AutoNormal`, `AutoMultivariateNormal`, the
            low-rank guides of this package, or a function that samples the same sites. The evidence is the model's,
            as far as the guide reaches: what it does not cover, no particle finds.
        num_starts: of descents, for ``init="modes"``.
        disable_progbar: no progress bar.
        executor: a `concurrent.futures.Executor` for runs in other processes, or a function that makes one, as for
            `MCMC`; see ``docs/runs.md``.
        shards: into how many parts ``num_runs`` are split. Particles depend on it, and not on the number of workers.
        threads_per_shard: of each of them.

    Attributes:
        log_evidence: log p(y) by all runs: the logarithm of their mean evidence.
        log_evidence_error: its standard error: the larger one of what runs differ (jackknife) and of what the chains of
            each run differ, by which there is one of a single run too.
        log_evidences: of each run, ``(num_runs,)``.
        levels: what happened at each β, one `Level` after the other; after an interrupt, those that were reached.
        evaluations: of the density, to find modes.

    An interrupt (Ctrl-C) is raised: particles on the way are not draws of the posterior.

    Raises:
        ValueError: for arguments out of range, a kernel of another kind, or by `run` a model that observes nothing, or
            whose prior or likelihood no particle can begin with.
        RuntimeError: by `run`, if β = 1 is not reached.

    Source: waste-free SMC, Dau & Chopin, JRSS-B 84 (2022), arXiv 2011.02328, algorithm 2; tempering, Del Moral, Doucet
    & Jasra, JRSS-B 68 (2006).

    Example:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import OHMC
        >>> _ = pyro.set_rng_seed(0)
        >>> def model():
        ...     U = pyro.sample("U", StiefelUniform(3, 2))
        ...     pyro.factor("likelihood", 3 * U[0, 0] + 1.5 * U[1, 1])
        >>> smc = SMC(OHMC(model), num_particles=256, num_runs=4, disable_progbar=True)
        >>> smc.run()
        >>> abs(smc.log_evidence - 1.607) < 0.2
        True
        >>> smc.get_samples()["U"].shape
        torch.Size([1024, 3, 2])
    """

    def __init__(
        self,
        kernel: HamiltonianKernel,
        num_particles: int = 1024,
        num_runs: int = 4,
        *,
        states_per_chain: int = 16,
        last_states: int | None = None,
        ess_share: float = 0.5,
        max_levels: int = 1000,
        prior_factors: Sequence[str] = (),
        init: Literal["prior", "modes"] | Callable[..., Any] = "prior",
        num_starts: int = 64,
        disable_progbar: bool = False,
        executor: Executor | MakeExecutor | None = None,
        shards: int = 1,
        threads_per_shard: int = 1,
    ) -> None:
        if not isinstance(kernel, HamiltonianKernel):
            raise ValueError(f"SMC: kernel is {kernel!r}, expected OHMC(model) or GHMC(model).")
        if kernel.model is None:
            raise ValueError("SMC needs a prior and a likelihood, which potential_fn does not tell: give a Pyro model.")
        check_positive_integer(
            num_particles=num_particles, num_runs=num_runs, states_per_chain=states_per_chain, max_levels=max_levels
        )
        last_states = states_per_chain if last_states is None else last_states
        check_positive_integer(last_states=last_states)
        if states_per_chain < 2 or num_particles % states_per_chain or num_particles < 2 * states_per_chain:
            states = max(states_per_chain, 2)
            raise ValueError(
                f"num_particles={num_particles}, states_per_chain={states_per_chain}: expected chains of 2 or more "
                "states, and a number of particles that is a multiple of that and at least twice it, such as "
                f"num_particles={states * max(2, -(-num_particles // states))}."
            )
        if not (is_a(Real, ess_share) and 0 < ess_share < 1):
            raise ValueError(f"ess_share={ess_share!r}, expected a number between 0 and 1.")
        if isinstance(prior_factors, str) or not isinstance(prior_factors, Collection):
            raise ValueError(f"prior_factors={prior_factors!r}, expected a list of names.")
        if not (callable(init) or init in ("prior", "modes")):
            raise ValueError(f"init={init!r}, expected 'prior', 'modes' or a guide.")
        check_positive_integer(num_starts=num_starts)
        if init != "prior" and prior_factors:
            raise ValueError("prior_factors is for init='prior'.")
        self.kernel, self._model = kernel.with_masses_of_sites(), kernel.model
        self._plan = Plan(
            num_runs, num_particles // states_per_chain, states_per_chain, last_states, float(ess_share), max_levels
        )
        self._prior_factors = list(prior_factors)
        self._init, self._num_starts = init, num_starts
        self._disable_progbar = disable_progbar
        self._shards = None if executor is None else Shards(executor, shards, threads_per_shard)
        check_shards(self._shards, shards, threads_per_shard, {"num_runs": num_runs})
        self._options = {
            "num_particles": num_particles,
            "states_per_chain": states_per_chain,
            "last_states": last_states,
            "ess_share": ess_share,
            "max_levels": max_levels,
            "prior_factors": prior_factors,
            "init": init,
            "num_starts": num_starts,
        }
        self.num_chains, self.num_samples = num_runs, self._plan.chains * last_states
        self._result: Result | None = None
        self._reached: list[Level] = []

    def run(self, *args: Any, **kwargs: Any) -> None:
        """All runs, from the prior to the posterior; arguments are those of the model. Warns if runs disagree."""
        self._args, self._kwargs = args, kwargs
        self._result, self._reached = None, []
        if self._shards is None:
            self._result = self._run_here()
        else:
            self._result = run_in_shards(
                self._shards, self.kernel, self.num_chains, self._options, args, kwargs, self._disable_progbar
            )
        self._warn_of_differences(self._result)

    @property
    def result(self) -> Result:
        """All that was found.

        Raises:
            ValueError: before `run`.
        """
        return self._found("result")

    @property
    def log_evidence(self) -> float:
        """Logarithm of the mean evidence of all runs."""
        return self._found("log_evidence").log_evidence

    @property
    def log_evidence_error(self) -> float:
        """Standard error of `log_evidence`."""
        return self._found("log_evidence_error").error

    @property
    def log_evidences(self) -> Tensor:
        """Of each run, ``(num_runs,)``."""
        return self._found("log_evidences").log_evidences

    @property
    def levels(self) -> list[Level]:
        """What happened at each β."""
        return self._reached if self._result is None else self._result.levels

    @property
    def evaluations(self) -> int:
        """Of the density, to find modes."""
        return sum(self._found("evaluations").evaluations)

    def get_samples(self, group_by_chain: bool = False) -> Sites:
        """The particles at β = 1, which are draws from the posterior: ``{site: (runs · particles, ...)}``.

        Args:
            group_by_chain: ``{site: (runs, particles, ...)}``; the states of one chain follow each other.
        """
        samples = self._found("get_samples").samples
        return dict(samples) if group_by_chain else {name: x.flatten(0, 1) for name, x in samples.items()}

    def initial_params(self, num_chains: int = 1) -> Sites:
        """Particles at random as starts of chains: ``MCMC(..., num_chains=8, initial_params=smc.initial_params(8))``.

        Sites on a manifold are on it, all others unconstrained. For ``num_chains=1`` there is no dimension of chains.
        """
        samples = self._found("initial_params").samples
        return starts_of_chains(samples, num_chains, self._target(self._model))

    def summary(self, prob: float = 0.9) -> None:
        """Print the table of `MCMC.summary`, runs in place of chains, and the log evidence.

        Of sites that are known only up to signs, order or rotations of columns, on which runs disagree without harm, it
        says so, and how well runs agree on what is known of them.
        """
        result = self._found("summary")
        symmetries = symmetries_of_run(self.kernel, None, self._args, self._kwargs, result.samples)
        print(text(result, symmetries, prob))

    def to_inferencedata(self, **options: Any) -> Any:
        """The particles for ArviZ, runs in place of chains; options as `pyro_manifold.diagnostics.to_inferencedata`.

        ``sample_stats`` has ``lp`` of each particle, ``inverse_temperature``, ``log_evidence_so_far`` and
        ``acceptance_rate`` of each level, and among its attributes ``log_evidence`` and ``log_evidence_error``.
        """
        return inferencedata(self, self._found("to_inferencedata"), **options)

    @property
    def _samples(self) -> Sites | None:
        """For `to_inferencedata`, as Pyro's MCMC has them."""
        return None if self._result is None else self._result.samples

    @property
    def _diagnostics(self) -> list[dict[str, Any]]:
        return [{"sample stats": {"lp": density}} for density in self.result.log_density]

    def _found(self, method: str) -> Result:
        if self._result is None:
            raise ValueError(f"SMC.{method}: there are no particles yet, call smc.run(...) first.")
        return self._result

    def _warn_of_differences(self, result: Result) -> None:
        spread = float(result.log_evidences.std()) if self.num_chains > 1 else 0.0
        if spread > _RUNS_DIFFER:
            warnings.warn(
                f"The log evidences of {self.num_chains} runs differ with a standard deviation of {spread:.2g}: some "
                "runs have missed modes, or given them the wrong share. Take more num_particles, or states_per_chain.",
                stacklevel=3,
            )

    # ---- the way from the prior to the posterior ----------------------------------------------------------------

    def _run_here(self) -> Result:
        """All runs in this process."""
        particles: Particles | None = None
        targets, evaluations = self._targets()
        with ProgressBar(self._disable_progbar, self._reached) as bar, pyro.validation_enabled(False):
            try:
                for base, full in itertools.pairwise(targets):
                    particles, shared_variance = self._leg(base, full, particles, bar)
            except KeyboardInterrupt as interrupt:
                interrupt.add_note(f"{bar.reached()} smc.levels has what was reached.")
                raise
        assert particles is not None
        return Result(
            {name: x.flatten(1, 2) for name, x in targets[-1].values(particles.sites).items()},
            -particles.energy,
            particles.evidence.log,
            particles.evidence.variance.clamp(min=0),  # covariances of few chains can be anything
            torch.tensor([shared_variance]),
            particles.levels,
            [evaluations],
        )

    def _targets(self) -> tuple[list[Target], int]:
        """The distributions on the way, and how often the density was evaluated to find them."""
        if not callable(self._init):
            check_prior(partial(self._model, *self._args, **self._kwargs))
        full = self._target(self._model)
        if not {*full.manifolds, *full.transforms}:
            raise ValueError("SMC: the model samples no continuous site.")
        if callable(self._init):
            return self._guide(full), 0
        if self._init == "modes":
            return self._modes(full)
        likelihood = likelihood_sites(full.program)
        unknown = sorted(set(self._prior_factors) - set(likelihood))
        if unknown:
            raise ValueError(f"prior_factors names {unknown}, but the observed sites and factors are {likelihood}.")
        if not set(likelihood) - set(self._prior_factors):
            raise ValueError("SMC: the model has no likelihood: nothing is observed, and there is no factor.")
        keep = [[]] if not self._prior_factors else [[], self._prior_factors]
        return [*[self._target(WithoutLikelihood(names)(self._model)) for names in keep], full], 0

    def _guide(self, full: ModelTarget) -> list[Target]:
        """The guide, and the posterior in its coordinates."""
        guide: Any = self._init
        options = {"max_plate_nesting": self.kernel.model_options["max_plate_nesting"]}
        if is_over_charts(guide):
            full = self._in_charts(full, {*full.manifolds, *full.transforms}, {})
        return [target_of_guide(guide, full, self._args, self._kwargs, **options), full]

    def _modes(self, full: ModelTarget) -> tuple[list[Target], int]:
        """A mixture of Gaussians about the modes, and the posterior."""
        mixture, evaluations = mixture_about_modes(full, self._num_starts, _TO_THE_END)
        return from_mixture(mixture, full), evaluations

    def _in_charts(self, full: ModelTarget, names: Collection[str], others: Mapping[str, Any]) -> ModelTarget:
        """The same target, with these sites in the coordinates that `biject_to` has for them."""
        if not names:
            return full
        nodes = poutine.block(poutine.trace(full.program).get_trace)().nodes
        charts = {name: biject_to(nodes[name]["fn"].support).inv for name in names}
        return self._target(self._model, transforms={**charts, **others})

    def _target(self, model: Any, **changed: Any) -> ModelTarget:
        options = {**self.kernel.model_options, "init_strategy": init_to_sample, **changed}
        return target_from_model(model, self._args, self._kwargs, **options)

    def _leg(self, base: Target, full: Target, start: Particles | None, bar: ProgressBar) -> tuple[Particles, float]:
        """From one distribution to the next; and the variance of the share of the prior that counts."""
        plan = self._plan
        target = tempered(base, full, None if start is None else draws_of(start))
        chains = plan.runs * plan.chains
        try:
            problem = Problem.build(target, chains, None, batched=self.kernel.batched)
        except NoFiniteStartError:
            refuse_likelihood(base.draw, full, target.drawn)
        if target.drawn > chains:
            check_likelihood(base.draw, full)
        tuned_by = partial(particle_tuning, self.kernel.plan, plan.runs, problem.manifolds)
        parts = self.kernel.composed(problem, self.kernel.mechanics(problem), tuned_by)
        run: Run[Any, Any] = Run(problem, parts, _ENDLESS)
        run.haste.planned = _USUAL_LEVELS * (plan.states - 1)
        tuning: Any = parts.tuning  # what `particle_tuning` made
        particles = anneal(run, tuning, plan, bar)
        # Where the likelihood is zero there is no particle, which is a share of the prior.
        share = chains / target.drawn
        particles.evidence = particles.evidence._replace(log=particles.evidence.log + math.log(share))
        return particles, (1 - share) / chains
