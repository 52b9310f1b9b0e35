"""SMC: posteriors with many modes, and their evidence."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from pyro.infer.autoguide.initialization import init_to_sample
from pyro.infer.mcmc.util import print_summary
from tqdm.auto import tqdm

from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.infer.mcmc.checks import check_positive_integer
from pyro_manifold.infer.mcmc.hmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.run import Run
from pyro_manifold.infer.smc.annealing import Level, Particles, Plan, anneal
from pyro_manifold.infer.smc.modes import mixture_about_modes
from pyro_manifold.infer.smc.tuning import particle_tuning
from pyro_manifold.infer.smc.weights import log_mean_weight
from pyro_manifold.infer.smc.whitened import from_mixture
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import ModelTarget, Target, target_from_model
from pyro_manifold.target.tempered import WithoutLikelihood, likelihood_sites, tempered

_ENDLESS = 2**62
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
        num_runs: independent runs, side by side; their differences are the standard error.
        states_per_chain: N/M: so many states of a chain become particles at each level; M chains are moved.
        last_states: as many of each chain at the last level, for more draws from the posterior; ``states_per_chain`` if
            None.
        ess_share: the effective sample size, as a share of N, that a step of β must leave.
        max_levels: after so many values of β it gives up.
        prior_factors: observed sites and factors that belong to the prior, such as a factor that orders scales. A first
            pass then brings the particles to this prior, and the evidence is with respect to it.
        init: ``"prior"``, or ``"modes"``: from a mixture of Gaussians about the ends of descents from draws of the
            prior, for modes that have no particle while β is small. The evidence is then that of the modes found.
        num_starts: of descents, for ``init="modes"``.
        disable_progbar: no progress bar.

    Attributes:
        log_evidence: log p(y) by all runs: the logarithm of their mean evidence.
        log_evidence_error: its standard error, from the differences between runs (jackknife); NaN for one run.
        log_evidences: of each run, ``(num_runs,)``.
        levels: what happened at each β, one `Level` after the other.
        evaluations: of the density, to find modes.

    Raises:
        ValueError: for arguments out of range, a kernel of another kind, or by `run` a model that observes nothing.
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
        init: Literal["prior", "modes"] = "prior",
        num_starts: int = 64,
        disable_progbar: bool = False,
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
            raise ValueError(
                f"num_particles={num_particles}, states_per_chain={states_per_chain}: expected chains of 2 or more "
                "states, and a number of particles that is 2 or more times that."
            )
        if not 0 < ess_share < 1:
            raise ValueError(f"ess_share={ess_share!r}, expected a number between 0 and 1.")
        if isinstance(prior_factors, str):
            raise ValueError(f"prior_factors={prior_factors!r}, expected a list of names.")
        self.kernel = kernel.with_masses_of_sites()
        self._plan = Plan(
            num_runs, num_particles // states_per_chain, states_per_chain, last_states, float(ess_share), max_levels
        )
        if init not in ("prior", "modes"):
            raise ValueError(f"init={init!r}, expected 'prior' or 'modes'.")
        check_positive_integer(num_starts=num_starts)
        if init == "modes" and prior_factors:
            raise ValueError("prior_factors is for init='prior'.")
        self._prior_factors = list(prior_factors)
        self._init, self._num_starts = init, num_starts
        self._disable_progbar = disable_progbar
        self.num_chains, self.num_samples = num_runs, self._plan.chains * last_states
        self.evaluations = 0
        self._samples: Sites | None = None
        self._diagnostics: list[dict[str, Any]] = [{} for _ in range(num_runs)]

    def run(self, *args: Any, **kwargs: Any) -> None:
        """All runs, from the prior to the posterior; arguments are those of the model. Warns if runs disagree."""
        self._args, self._kwargs = args, kwargs
        particles: Particles | None = None
        targets = self._targets() if self._init == "prior" else self._modes()
        with _Bar(self._disable_progbar) as bar:
            for base, full in itertools.pairwise(targets):
                particles = self._leg(base, full, particles, bar)
        assert particles is not None
        self._samples = {name: x.flatten(1, 2) for name, x in targets[-1].values(particles.sites).items()}
        self.log_evidences, self.levels = particles.log_evidence, particles.levels
        self._warn_of_differences()

    @property
    def log_evidence(self) -> float:
        """Logarithm of the mean evidence of all runs."""
        self._check_there_are_draws("log_evidence")
        return float(log_mean_weight(self.log_evidences))

    @property
    def log_evidence_error(self) -> float:
        """Standard error of `log_evidence`: jackknife over runs."""
        self._check_there_are_draws("log_evidence_error")
        runs = len(self.log_evidences)
        if runs < 2:
            return math.nan
        others = self.log_evidences.expand(runs, runs)[~torch.eye(runs, dtype=torch.bool)].reshape(runs, runs - 1)
        return float((runs - 1) ** 0.5 * log_mean_weight(others).std(correction=0))

    def get_samples(self, group_by_chain: bool = False) -> Sites:
        """The particles at β = 1, which are draws from the posterior: ``{site: (runs · particles, ...)}``.

        Args:
            group_by_chain: ``{site: (runs, particles, ...)}``; the states of one chain follow each other.
        """
        samples = self._check_there_are_draws("get_samples")
        return dict(samples) if group_by_chain else {name: x.flatten(0, 1) for name, x in samples.items()}

    def summary(self, prob: float = 0.9) -> None:
        """Print a table of the particles as Pyro's MCMC does, runs in place of chains, and the log evidence."""
        print_summary(self._check_there_are_draws("summary"), prob=prob)
        print(f"log evidence {self.log_evidence:.3f} ± {self.log_evidence_error:.3f} ({self.num_chains} runs)")

    def to_inferencedata(self, **options: Any) -> Any:
        """The particles for ArviZ, runs in place of chains; options as `pyro_manifold.diagnostics.to_inferencedata`."""
        return to_inferencedata(self, **options)

    # ---- the way from the prior to the posterior ----------------------------------------------------------------

    def _targets(self) -> list[Target]:
        """The distributions on the way: the prior, the prior with its factors, the posterior."""
        full = self._target(self.kernel.model)
        likelihood = likelihood_sites(full.program)
        unknown = sorted(set(self._prior_factors) - set(likelihood))
        if unknown:
            raise ValueError(f"prior_factors names {unknown}, but the observed sites and factors are {likelihood}.")
        if not set(likelihood) - set(self._prior_factors):
            raise ValueError("SMC: the model has no likelihood: nothing is observed, and there is no factor.")
        keep = [[]] if not self._prior_factors else [[], self._prior_factors]
        return [*[self._target(WithoutLikelihood(names)(self.kernel.model)) for names in keep], full]

    def _modes(self) -> list[Target]:
        """A mixture of Gaussians about the modes, and the posterior."""
        full = self._target(self.kernel.model)
        mixture, self.evaluations = mixture_about_modes(full, self._num_starts, _TO_THE_END)
        return from_mixture(mixture, full)

    def _target(self, model: Any, **changed: Any) -> ModelTarget:
        options = {**self.kernel.model_options, "init_strategy": init_to_sample, **changed}
        return target_from_model(model, self._args, self._kwargs, **options)

    def _leg(self, base: Target, full: Target, start: Particles | None, bar: _Bar) -> Particles:
        """From one distribution to the next."""
        plan = self._plan
        target = tempered(base, full, None if start is None else _draws_of(start))
        chains = plan.runs * plan.chains
        problem = Problem.build(target, chains, None, batched=self.kernel.batched)
        tuned_by = partial(particle_tuning, self.kernel.plan, plan.runs, problem.manifolds)
        parts = self.kernel.composed(problem, self.kernel.mechanics(problem), tuned_by)
        run: Run[Any, Any] = Run(problem, parts, _ENDLESS)
        tuning: Any = parts.tuning  # what `particle_tuning` made
        particles = anneal(run, tuning, plan, bar)
        # Where the likelihood is zero there is no particle, which is a share of the prior.
        particles.log_evidence = particles.log_evidence + math.log(chains / target.drawn)
        return particles

    def _check_there_are_draws(self, method: str) -> Sites:
        if self._samples is None:
            raise ValueError(f"SMC.{method}: there are no particles yet, call smc.run(...) first.")
        return self._samples

    def _warn_of_differences(self) -> None:
        spread = float(self.log_evidences.std()) if self.num_chains > 1 else 0.0
        if spread > _RUNS_DIFFER:
            warnings.warn(
                f"The log evidences of {self.num_chains} runs differ with a standard deviation of {spread:.2g}: some "
                "runs have missed modes, or given them the wrong share. Take more num_particles, or states_per_chain.",
                stacklevel=3,
            )


def _draws_of(particles: Particles) -> Callable[[], Sites]:
    """Draws that go through the runs as chains do, the first of each chain's at random."""
    runs, chains = next(iter(particles.sites.values())).shape[:2]
    flat = {name: x.flatten(0, 1) for name, x in particles.sites.items()}
    places = itertools.cycle(range(runs * chains))

    def draw() -> Sites:
        place = next(places)
        return {name: x[place, int(torch.randint(x.shape[1], ()))] for name, x in flat.items()}

    return draw


class _Bar:
    """A progress bar with β."""

    def __init__(self, disable: bool) -> None:
        self._bar = tqdm(unit="level", disable=disable)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, level: Level) -> None:
        self._bar.update()
        if not self._bar.disable:
            self._bar.set_postfix(
                {
                    "β": f"{float(level.inverse_temperature.min()):.2e}",
                    "log evidence": f"{float(level.log_evidence.mean()):.2f}",
                    "acc. prob": f"{float(level.acceptance.mean()):.2f}",
                    "steps": level.steps,
                }
            )
