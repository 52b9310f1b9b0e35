"""Sequential Monte Carlo for multimodal posteriors and their evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from numbers import Real
from typing import Any, Literal

import pyro
import torch
from pyro.infer.autoguide.initialization import init_to_sample
from torch import Tensor

from pyro_manifold.density import Program, Sites, Target, one_thread_at_a_time, split, tempered
from pyro_manifold.diagnostics import Posterior, Symmetry, check_flag, in_html, summarise, to_inferencedata
from pyro_manifold.infer.mcmc import check_positive_integer, check_shards, is_a
from pyro_manifold.infer.mcmc.adaptation import particle_tuning
from pyro_manifold.infer.mcmc.hmc import HamiltonianKernel
from pyro_manifold.infer.mcmc.running import Run, Shards
from pyro_manifold.infer.predictive_groups import with_draws
from pyro_manifold.infer.smc.annealing import AnnealingSettings, Level, Particles, anneal
from pyro_manifold.infer.smc.bound import Bound, bound_of_particles, energies_of_posterior
from pyro_manifold.infer.smc.edges import NumericalProblems, nan_near, tied_at_an_end
from pyro_manifold.infer.smc.end_of_run import warn
from pyro_manifold.infer.smc.initialisation import (
    problem_with_finite_starts,
)
from pyro_manifold.infer.smc.path import AnnealingPath
from pyro_manifold.infer.smc.progress import ProgressBar
from pyro_manifold.infer.smc.report import as_posterior
from pyro_manifold.infer.smc.results import Result
from pyro_manifold.infer.smc.sharded import run_in_shards
from pyro_manifold.infer.smc.starts import draws_of, starts_of_chains
from pyro_manifold.infer.smc.weights import log_mean_weight

_ENDLESS = 2**62
_USUAL_LEVELS = 10


class SMC:
    r"""Sequential Monte Carlo from the prior of a model to its posterior, with an estimate of the evidence.

    Particles start as exact draws from the prior, which cover all modes of the posterior, and follow

    $$ \pi_\beta(x) \propto p(x)\,p(y \mid x)^\beta, \qquad 0 = \beta_0 < \beta_1 < \dots < 1, $$

    with steps of β as large as the effective sample size allows. Between steps they are resampled by their weights and
    moved by the kernel, whose step size and masses are adapted to the particles. Each mode keeps a share of particles
    in proportion to its mass, whereas single chains stay in the first mode they reach. The weights give the evidence
    $p(y) = \int p(y \mid x)\,p(x)\,dx$: of two models, the one with the larger evidence predicted the data better
    (Bayes factor).

    The likelihood consists of observed sites and `pyro.factor`. Stiefel sites, discrete sites (summed out), plates and
    all other features of `OHMC` are supported; minibatches are not.

    Args:
        kernel: `OHMC` or `GHMC` of a model, which moves the particles. Its ``trajectory_length`` (π/2 if None),
            ``trajectory_jitter``, ``target_accept_prob`` and ``reflection_probability`` are used; masses are scalar for
            each site on a manifold and diagonal for other sites.
        num_particles: N, number of particles of each run.
        num_runs: number of independent runs, which are vectorised.
        chain_length: N/M, the number of states of each chain that become particles at a level; M chains are moved.
        last_states: number of states of each chain at the last level, for more draws from the posterior;
            ``chain_length`` if None.
        ess_threshold: smallest effective sample size after a step of β, as a share of N.
        max_levels: largest number of values of β before an error is raised.
        prior_factors: observed sites and factors that belong to the prior, such as a factor that orders scales. A first
            pass then brings the particles to this prior, and the evidence is with respect to it.
        init: ``"prior"``, or ``"modes"``: from a mixture of Gaussians about the ends of descents from draws of the
            prior, for modes that have no particle while β is small. The evidence is then that of the modes found.
            Or a fitted guide of the model, which shortens the path: `AutoNormal`, `AutoMultivariateNormal`, the
            low-rank guides of this package, or a function that samples the same sites. The evidence is that of the
            model, except for regions that the guide does not cover, which no particle reaches.
        num_starts: number of descents, for ``init="modes"``.
        disable_progbar: whether to hide the progress bar.
        shards: `Shards`, to distribute the runs over other processes.

    Attributes:
        log_evidence: estimate of log p(y) from all runs: the logarithm of their mean evidence.
        log_evidence_error: its standard error, the larger of that from differences between runs (jackknife) and that
            from differences between the chains of each run, which is available for a single run too. If the mass about
            the modes that descents from the particles find exceeds ``log_evidence`` by more, it is this difference;
            ``run`` warns if the difference is significant.
        log_evidences: log evidence of each run, ``(num_runs,)``.
        levels: statistics at each β, a list of `Level`; after an interrupt, of the levels reached.
        evaluations: number of evaluations of the density to find modes.
        program: the model with the arguments of `run`.

    dtype and device are those of the model's tensors. An interrupt (Ctrl-C) is raised, since intermediate particles are
    not draws from the posterior.

    Raises:
        ValueError: for arguments out of range or a kernel of another kind; in `run`, for a model without a likelihood,
            or with a prior or likelihood for which there are no initial particles.
        RuntimeError: in `run`, if β = 1 is not reached.

    Source: waste-free SMC, Dau & Chopin, JRSS-B 84 (2022), arXiv 2011.02328, algorithm 2; tempering, Del Moral, Doucet
    & Jasra, JRSS-B 68 (2006).

    Examples:
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

    program: Program

    def __init__(
        self,
        kernel: HamiltonianKernel,
        num_particles: int = 1024,
        num_runs: int = 4,
        *,
        chain_length: int = 16,
        last_states: int | None = None,
        ess_threshold: float = 0.5,
        max_levels: int = 1000,
        prior_factors: Sequence[str] = (),
        init: Literal["prior", "modes"] | Callable[..., Any] = "prior",
        num_starts: int = 64,
        disable_progbar: bool = False,
        shards: Shards | None = None,
    ) -> None:
        if not isinstance(kernel, HamiltonianKernel):
            raise ValueError(f"SMC: kernel is {kernel!r}, expected OHMC(model) or GHMC(model).")
        if kernel.model is None:
            raise ValueError(
                "SMC needs a prior and a likelihood, which potential_fn does not separate: pass a Pyro model."
            )
        check_positive_integer(
            num_particles=num_particles, num_runs=num_runs, chain_length=chain_length, max_levels=max_levels
        )
        last_states = chain_length if last_states is None else last_states
        check_positive_integer(last_states=last_states)
        if chain_length < 2 or num_particles % chain_length or num_particles < 2 * chain_length:
            states = max(chain_length, 2)
            raise ValueError(
                f"num_particles={num_particles}, chain_length={chain_length}: expected chain_length of "
                "at least 2, and num_particles a multiple of it and at least twice as large, such as "
                f"num_particles={states * max(2, -(-num_particles // states))}."
            )
        if not (is_a(Real, ess_threshold) and 0 < ess_threshold < 1):
            raise ValueError(f"ess_threshold={ess_threshold!r}, expected a number between 0 and 1.")
        if isinstance(prior_factors, str) or not isinstance(prior_factors, Collection):
            raise ValueError(f"prior_factors={prior_factors!r}, expected a list of names.")
        if not (callable(init) or init in ("prior", "modes")):
            raise ValueError(f"init={init!r}, expected 'prior', 'modes' or a guide.")
        check_positive_integer(num_starts=num_starts)
        if init != "prior" and prior_factors:
            raise ValueError("prior_factors needs init='prior'.")
        self.kernel = kernel.with_masses_of_sites()
        self._plan = AnnealingSettings(
            num_runs, num_particles // chain_length, chain_length, last_states, float(ess_threshold), max_levels
        )
        self._prior_factors = list(prior_factors)
        self._init, self._num_starts = init, num_starts
        self.last_states, self.init = last_states, init
        self._disable_progbar = disable_progbar
        if shards is not None and not isinstance(shards, Shards):
            raise ValueError(f"shards={shards!r}, expected Shards(executor, count).")
        check_shards(shards, {"num_runs": num_runs})
        self._shards = shards
        self._options = {
            "num_particles": num_particles,
            "chain_length": chain_length,
            "last_states": last_states,
            "ess_threshold": ess_threshold,
            "max_levels": max_levels,
            "prior_factors": prior_factors,
            "init": init,
            "num_starts": num_starts,
        }
        self.num_chains, self.num_samples = num_runs, self._plan.chains * last_states
        self._result: Result | None = None
        self._reached: list[Level] = []
        self._posterior: Posterior | None = None

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run from the prior to the posterior; arguments are those of the model. Warn if runs disagree."""
        program: Any = self.kernel.program(args, kwargs)  # not None, as its model is not
        result = self.run_program(program)
        warn(result, self._plan, self._num_starts)

    def run_program(self, program: Program) -> Result:
        """Run as `run` does, but without warnings about the results; these require the results of all shards."""
        self.program = program.with_options(init_strategy=init_to_sample)
        self._result, self._posterior, self._reached = None, None, []
        if self._shards is None:
            self._result = self._run_here()
        else:
            self._result = run_in_shards(
                self._shards, SMC, self.kernel, self.num_chains, self._options, program, self._disable_progbar
            )
        return self._result

    @property
    def result(self) -> Result:
        """Result of all runs.

        Raises:
            ValueError: before `run`.
        """
        return self._found("result")

    @property
    def posterior(self) -> Posterior:
        """Particles at β = 1 with the model, as one value; see `pyro_manifold.diagnostics.Posterior`.

        Raises:
            ValueError: before `run`.
        """
        result = self._found("posterior")
        if self._posterior is None:
            self._posterior = as_posterior(result, self.program, self.last_states, self.init == "prior")
        return self._posterior

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
        """Log evidence of each run, ``(num_runs,)``."""
        return self._found("log_evidences").log_evidences

    @property
    def levels(self) -> list[Level]:
        """Statistics at each β."""
        return self._reached if self._result is None else self._result.levels

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the density to find modes."""
        return sum(self._found("evaluations").evaluations)

    def get_samples(self, group_by_chain: bool = False, *, align: bool = False) -> Sites:
        """Return the particles at β = 1, which are draws from the posterior: ``{site: (runs · particles, ...)}``.

        Args:
            group_by_chain: whether to return ``{site: (runs, particles, ...)}``, with the states of a chain in
                succession.
            align: as in `MCMC.get_samples`.
        """
        check_flag(align=align)
        self._found("get_samples")
        samples = (self.posterior.aligned() if align else self.posterior).draws
        return dict(samples) if group_by_chain else {name: x.flatten(0, 1) for name, x in samples.items()}

    def initial_params(self, num_chains: int = 1) -> Sites:
        """Return random particles as initial values of chains.

        Example of use: ``MCMC(..., num_chains=8, initial_params=smc.initial_params(8))``.

        Sites on manifolds are on their manifold, all others in unconstrained space. For ``num_chains=1`` there is no
        chain dimension.
        """
        samples = self._found("initial_params").samples
        return starts_of_chains(samples, num_chains, self.program.target)

    def summary(self, prob: float = 0.9, *, align: bool = True, max_rows: int | None = None) -> None:
        """Print the table of `MCMC.summary`, with runs in place of chains, and the log evidence.

        If runs disagree on what the posterior identifies, a sentence above the table reports it, with the remedy.
        """
        check_flag(align=align)
        self._found("summary")
        print(summarise(self.posterior, prob, align=align, max_rows=max_rows))

    def symmetries(self) -> list[Symmetry]:
        """Find sites that the posterior identifies only up to signs, order or rotations of their columns."""
        self._found("symmetries")
        return list(self.posterior.symmetries or [])

    def to_inferencedata(self, **options: Any) -> Any:
        """Export the particles to ArviZ, with runs as chains; options of `pyro_manifold.diagnostics.to_inferencedata`.

        ``sample_stats`` contains ``lp`` of each particle, ``inverse_temperature``, ``log_evidence_so_far`` and
        ``acceptance_rate`` of each level; its attributes include ``log_evidence`` and ``log_evidence_error``.
        """
        self._found("to_inferencedata")
        return to_inferencedata(self.posterior, **with_draws(self.posterior, options))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: log evidence, and sites with R-hat and effective sample sizes."""
        if self._result is None:
            return in_html(None, "SMC")
        return in_html(self.posterior, f"SMC, log evidence {self.log_evidence:.2f} ± {self.log_evidence_error:.2f}")

    def _found(self, method: str) -> Result:
        if self._result is None:
            raise ValueError(f"SMC.{method}: there are no particles yet, call smc.run(...) first.")
        return self._result

    # ---- annealing from the prior to the posterior --------------------------------------------------------------

    @one_thread_at_a_time
    def _run_here(self) -> Result:
        """Run all runs in this process."""
        particles: Particles | None = None
        bound, edges, before, tied = Bound(), NumericalProblems(), 0.0, 0
        targets, evaluations = self._targets()
        with ProgressBar(self._disable_progbar, self._reached) as bar, pyro.validation_enabled(False):
            try:
                for base, full in itertools.pairwise(targets):
                    before += 0.0 if particles is None else float(log_mean_weight(particles.evidence.log))
                    particles, shared_variance, tied_here, run = self._leg(base, full, particles, bar)
                    tied = max(tied, tied_here)
                if particles is not None and self._init != "modes":  # particles start about the modes in that case
                    bound = bound_of_particles(targets[-1], run.problem, particles, before)
                    nan = nan_near(energies_of_posterior(run.problem, particles), particles.states, full.manifolds)
                    edges = NumericalProblems(*nan, tied, self._plan.runs * self._plan.chains)
            except KeyboardInterrupt as interrupt:
                interrupt.add_note(f"{bar.reached()} smc.levels has the levels so far.")
                raise
        assert particles is not None
        return Result(
            {name: x.flatten(1, 2) for name, x in targets[-1].values(particles.sites).items()},
            -particles.energy,
            particles.evidence.log,
            particles.evidence.variance.clamp(min=0),  # estimates from few chains can be negative
            torch.tensor([shared_variance]),
            particles.levels,
            [evaluations],
            [bound],
            [edges],
        )

    def _targets(self) -> tuple[list[Target], int]:
        """Return the distributions of the path, and the number of evaluations of the density to find them."""
        return AnnealingPath(self.program, self._init, self._prior_factors, self._num_starts).targets()

    def _leg(
        self, base: Target, full: Target, start: Particles | None, bar: ProgressBar
    ) -> tuple[Particles, float, int, Run[Any, Any]]:
        """Anneal to the next distribution of the path.

        Returns:
            The particles, the relative variance of the probability of a nonzero likelihood, the number of tied draws,
            and the run.
        """
        plan = self._plan
        target = tempered(base, full, None if start is None else draws_of(start))
        chains = plan.runs * plan.chains
        problem = problem_with_finite_starts(target, base, full, chains, self.kernel.batched, "SMC")
        tuned_by = partial(particle_tuning, self.kernel.plan, plan.runs, problem.manifolds)
        parts = self.kernel.composed(problem, self.kernel.mechanics(problem), tuned_by)
        run: Run[Any, Any] = Run(problem, parts, _ENDLESS)
        run.policy.planned = _USUAL_LEVELS * (plan.states - 1)
        tuning: Any = parts.tuning  # created by `particle_tuning`
        tied = tied_at_an_end(split(run.sites)[1], full.manifolds.keys()) if start is None else 0
        particles = anneal(run, tuning, plan, bar)
        run.code.at_the_end()
        # Correct the evidence for the probability under the prior that the likelihood is zero.
        share = chains / target.drawn
        particles.evidence = particles.evidence._replace(log=particles.evidence.log + math.log(share))
        return particles, (1 - share) / chains, tied, run
