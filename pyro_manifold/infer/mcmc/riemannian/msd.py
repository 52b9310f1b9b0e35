"""MSD: manifold stochastic dynamics, with the model's Fisher information as position-dependent mass matrix."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Literal

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Tensor
from torch.distributions import Transform

from pyro_manifold.compiled import CompilationPolicy
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.density import Embedding, ModelTarget, Sites, Target, embedding_from_model
from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, check_share, is_a
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.riemannian.lagrangian import Point, factorise
from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField, TracedField, metric_field
from pyro_manifold.infer.mcmc.riemannian.trajectory import (
    LagrangianSettings,
    LagrangianState,
    LagrangianTrajectory,
    PotentialAndMetric,
)
from pyro_manifold.infer.mcmc.riemannian.warmup import WarmUp
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    CompiledCode,
    CompiledPart,
    Composition,
    Executable,
    Layout,
    Problem,
    Statistics,
    refuse_manifold,
)

TargetName = Literal["posterior", "jeffreys"]

LagrangianTransition = Executable[LagrangianState, LagrangianSettings]

_MOST_NATIVE_PARAMETERS = 40
"""Most parameters for native code with the Metropolis test. With 20 a step of 16 chains takes less than half the time
of the traced one, with 50 half as long again: PyTorch's matrix products are faster. Without the test it never does."""


class MSD(Kernel):
    r"""Hamiltonian dynamics with persistent momentum and a position-dependent mass matrix computed from the model.

    q is the vector of all sites in unconstrained space, f(q) the model's predictions and parameters in units of their
    standard deviations. The mass matrix is the pull-back metric $G = J^\top J$, J the Jacobian of f: Fisher
    information plus prior precision. With E the potential energy, minus the log density, one iteration is

    $$
    p \leftarrow p\cos\theta + \xi\sin\theta,\quad \xi\sim N(0, G), \qquad
    \ddot q = -G^{-1}\left(\nabla\varphi + J^\top \tfrac{d^2}{dt^2} f(q + t\dot q)\right),
    $$

    the second integrated by ``num_steps`` leapfrog steps of size ε. The stationary distribution of q is

    - ``target="posterior"``, $\varphi = E + \tfrac12\log|G|$: the posterior $e^{-E}$;
    - ``target="jeffreys"``, $\varphi = E$: $\sqrt{|G|}\,e^{-E}$, the paper's choice. That is the posterior
      under another prior, multiplied by the Jeffreys prior of the metric in unconstrained coordinates;

    up to a bias of order ε² (unadjusted), or without bias with ``metropolis=True`` (adjusted). The adjusted version
    uses the explicit Lagrangian step and includes its Jacobian in the acceptance probability. In the unadjusted
    version, a trajectory with an energy error of more than 10 plus the dissipated energy, sin²θ of the kinetic energy,
    is rejected and counts as divergent. Otherwise a step that is too long for the metric gives a wrong distribution
    without warning: compare with half the step size, or with the adjusted version.

    For l predictions a step costs O(l d²) plus d evaluations of the predictions for the Jacobian, by Jacobian-vector
    products, and O(d³) for factorisations; ``metropolis=True`` costs about four more Jacobians. If G is not positive
    definite in floating point, √precision times its mean diagonal is added, and `diagnostics` reports the number of
    such draws.

    Args:
        model: a Pyro model; `pyro_manifold.density.embedding.embedding_from_model` lists the distributions for which
            there is an automatic metric.
        potential_fn: instead of a model, the potential energy as a function of ``{site: value}``; requires ``metric``.
        step_size: ε, in the scale set by G: 1 is the standard deviation of a Gaussian posterior; the initial one if
            ``adapt_step_size``.
        persistence: cos θ, in [0, 1); 0 is a full refreshment of momenta.
        metric: in place of the automatic metric, a function of ``{site: value}`` of one chain, values as in the model.
            It returns a vector, whose pull-back metric is G, or G itself, ``(d, d)``, in unconstrained coordinates
            with the sites in alphabetical order.
        target: the stationary distribution, ``"posterior"`` or ``"jeffreys"``.
        metropolis: whether to accept or reject the end of each trajectory (adjusted version).
        num_steps: number of leapfrog steps of an iteration.
        adapt_step_size: whether warm-up adapts ε; None for True if ``metropolis``. Without the test there is no
            acceptance probability to adapt to, and ε determines the bias.
        target_accept_prob: target acceptance probability of the adaptation, not used without one. With persistent
            momentum a rejection reverses the direction of a chain, which costs more than a rejection of HMC.
        metric_scale: ``{site: factor}`` for the contribution of a site to the automatic metric, for numerical
            stability; the stationary distribution is not changed.
        transforms: as in Pyro; required for sites on manifolds.
        max_plate_nesting: as in Pyro.
        jit_compile: whether to compile the step with `torch.compile`.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: whether to suppress warnings when tracing or compiling falls back.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.

    The first half of warm-up has no Metropolis test. With ``metropolis=True`` the second half adapts ε by dual
    averaging, on all chains jointly and to at most π/2 for a trajectory, if it has ten iterations or more;
    ``kernel.step_size`` is the result. Throughout warm-up ε is reduced for single chains whose trajectories are
    rejected, such as near poor initial values. All draws use ε itself, and the test if ``metropolis=True``.
    dtype and device are those of the model's tensors. Densities are with respect to Lebesgue measure in unconstrained
    space, including the Jacobian of transforms, so that draws of the sites are draws from the posterior.

    Raises:
        ValueError: for arguments out of range; in ``MCMC.run``, for a site without an automatic metric, a site on a
            manifold without a transform, or a ``metric`` that returns something else, cannot be differentiated, or
            is not positive definite at the initial values.

    Source: Zlochin & Baram, Manifold stochastic dynamics for Bayesian learning, Neural Computation 13, 2001; for the
    adjusted version Lan, Stathopoulos, Shahbaba & Girolami, arXiv 1211.3759.

    Examples:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro_manifold.infer import MCMC, MSD
        >>> x = torch.linspace(-1.0, 1.0, 20)
        >>> def model():
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     pyro.sample("y", dist.Bernoulli(logits=w[0] + w[1] * x).to_event(1), obs=(x > 0).to(x))
        >>> mcmc = MCMC(MSD(model, step_size=0.2, metropolis=True), 10, num_chains=2, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["w"].shape
        torch.Size([20, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        step_size: float = 0.1,
        persistence: float = 0.95,
        metric: Callable[[Sites], Tensor] | None = None,
        target: TargetName = "posterior",
        metropolis: bool = False,
        num_steps: int = 1,
        *,
        adapt_step_size: bool | None = None,
        target_accept_prob: float = 0.9,
        metric_scale: Mapping[str, float] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: dict[str, Any] | None = None,
        ignore_jit_warnings: bool = False,
        init_strategy: Callable[..., Any] = init_to_uniform,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            transforms=transforms,
            max_plate_nesting=max_plate_nesting,
            init_strategy=init_strategy,
            manifolds=None if potential_fn is None else {},
            ignore_jit_warnings=ignore_jit_warnings,
        )
        check_positive(step_size=step_size, target_accept_prob=target_accept_prob)
        check_positive_integer(num_steps=num_steps)
        check_share(persistence=persistence, open_above=True)
        if not isinstance(metropolis, bool):
            raise ValueError(f"metropolis={metropolis!r}, expected True or False.")
        if not target_accept_prob < 1:
            raise ValueError(f"target_accept_prob={target_accept_prob}, expected a number between 0 and 1.")
        if not isinstance(adapt_step_size, bool | None):
            raise ValueError(f"adapt_step_size={adapt_step_size!r}, expected True, False or None.")
        if adapt_step_size and not metropolis:
            raise ValueError(
                "adapt_step_size=True, expected metropolis=True with it: without a Metropolis test there is no "
                "acceptance probability, and the step size determines the bias."
            )
        if target not in ("posterior", "jeffreys"):
            raise ValueError(f"target={target!r}, expected 'posterior' or 'jeffreys'.")
        if metric is None and model is None:
            raise ValueError("potential_fn does not define a metric: pass metric=.")
        _check_metric_arguments(metric, metric_scale)
        self._initial_step_size = float(step_size)
        self._target = float(target_accept_prob) if metropolis and adapt_step_size is not False else None
        self._persistence = float(persistence)
        self._metric = metric
        self._metric_scale = metric_scale
        self._with_volume = target == "posterior"
        self._metropolis = metropolis
        self.num_steps = int(num_steps)
        self._jit_compile = jit_compile
        self._jit_options = jit_options

    def compose(self, problem: Problem, warmup_steps: int) -> Composition[LagrangianState, LagrangianSettings]:
        """Return the parts of a run: one trajectory in the metric, whose step size warm-up adapts."""
        for name, manifold in problem.target.manifolds.items():
            refuse_manifold(name, manifold, [])
        layout, position = problem.layout, problem.position
        ((block, start),) = position.items()

        def flat_potential(position: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = problem.potential({block: position})
            return energy, gradient[block]

        field = metric_field(_flat(self._embedding(problem), layout, block), start)
        _check_metric(field, start)
        model = PotentialAndMetric(flat_potential, field)
        moves = LagrangianTrajectory(
            block, persistence=self._persistence, with_volume=self._with_volume, reversible=self._metropolis
        )
        state = moves.state_at(position, model, problem.random)
        trajectory = Executable(moves, lambda batch: model)
        self._trace(trajectory, state, model, problem)
        options = self.num_steps, self._metropolis, warmup_steps, state.energy, self._target
        tuning = WarmUp(self._initial_step_size, *options)

        def moved(state: LagrangianState, position: Blocks) -> LagrangianState:
            return state._replace(point=moves.point_at(position[block], model))

        parts = {
            "step": CompiledPart(trajectory.step.graph, trajectory.step.difference, slow=True),
            "trajectory": CompiledPart(trajectory.graph, trajectory.difference),
        }
        return Composition(
            state,
            [trajectory],
            tuning,
            moved,
            CompiledCode(parts, self._compilation(problem, trajectory, field)),
        )

    @property
    def step_size(self) -> float:
        """Current ε: the result of warm-up, or before a run the initial one."""
        if self._run is None:
            return self._initial_step_size
        tuning: Any = self._run.tuning  # set by `compose`
        return float(tuning.step_size)

    def _settings(self, state: LagrangianState, step_size: float) -> LagrangianSettings:
        return LagrangianSettings(torch.full_like(state.energy, step_size), self.num_steps, self._metropolis)

    def _trace(
        self, trajectory: LagrangianTransition, state: LagrangianState, model: PotentialAndMetric, problem: Problem
    ) -> None:
        """Replace steps by a graph, since the overhead of torch.func exceeds the arithmetic of a step."""
        failures = {"traced": "The step cannot be traced, continuing without tracing, which is slow: {reason}."}
        if self._jit_compile:
            failures["compiled"] = "jit_compile=True had no effect, continuing without compilation: {reason}."
        trajectory.step.replace(
            state,
            [self._settings(state, step_size) for step_size in (1e-2, 3e-2)],
            failures if self._warn else dict.fromkeys(failures),
            density=lambda batch: self._traced(model, state),
            contains=problem.batched.graph,
            options=self._jit_options,
        )

    def _traced(self, model: PotentialAndMetric, state: LagrangianState) -> PotentialAndMetric:
        position, velocity = state.point.position, state.velocity
        return model._replace(field=TracedField(model.field, position, velocity, self._metropolis))

    def _compilation(self, problem: Problem, trajectory: LagrangianTransition, field: MetricField) -> CompilationPolicy:
        """Return the compilation policy for trajectories as native code, or none where that is not possible."""
        one = problem.potential_of_one_chain
        if self._jit_compile or one is None or not (trajectory.step.graph.is_graph and native_code_is_allowed()):
            return CompilationPolicy(None)
        ((block, position),) = problem.position.items()
        if self._metropolis and position.shape[-1] > _MOST_NATIVE_PARAMETERS:
            return CompilationPolicy(None)

        def of_flat(position: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = one({block: position})
            return energy, gradient[block]

        def make(state: LagrangianState) -> None:
            if state.energy.device.type == "cpu":
                first = state._replace(point=Point(*[x[:1] for x in state.point]), velocity=state.velocity[:1])
                model = self._traced(PotentialAndMetric(of_flat, field), first)
                settings = [self._settings(state, self._initial_step_size / k) for k in (1, 2)]
                trajectory.compile(state, [(each, {}) for each in settings], lambda batch: model, warn=self._warn)

        return CompilationPolicy(make, trajectory.step.operators)

    def _embedding(self, problem: Problem) -> Embedding:
        """Return the function of unconstrained values that defines the metric."""
        if self._metric is not None:
            return _of_unconstrained(self._metric, problem.target)
        first = {name: value[0] for name, value in problem.initial_values.items()}
        target: ModelTarget = problem.target  # type: ignore[assignment]  # ensured by the constructor
        return embedding_from_model(target, first, self._metric_scale)

    def warn_of_draws(self, statistics: Statistics) -> None:
        """Warn if the metric was singular at draws of the unadjusted version."""
        count = int(statistics["jittered"].sum()) if "jittered" in statistics else 0
        if count and not self._metropolis:
            warnings.warn(
                f"The metric was singular at {count} draws. If its rank varies between positions, the "
                "unadjusted dynamics has a wrong stationary distribution at any step size: pass a metric that is "
                "positive definite everywhere, or metropolis=True.",
                stacklevel=2,
            )


def _of_unconstrained(metric: Callable[[Sites], Tensor], target: Target) -> Embedding:
    def of_unconstrained(sites: Sites) -> Tensor:
        return metric(target.values(sites))

    return of_unconstrained


def _flat(embedding: Embedding, layout: Layout, block: Block) -> Callable[[Tensor], Tensor]:
    def flat_embedding(position: Tensor) -> Tensor:
        return embedding({name: value[0] for name, value in layout.unpack({block: position.unsqueeze(0)}).items()})

    return flat_embedding


def _check_metric(field: MetricField, start: Tensor) -> None:
    metric, _ = field.at(start)
    faults = {
        "is not finite": ~metric.isfinite().flatten(1).all(1),
        "is not positive definite, even with jitter": ~factorise(metric)[0].isfinite().flatten(1).all(1),
    }
    for fault, chains in faults.items():
        if chains.any():
            raise ValueError(
                f"The metric {fault} at the initial values of chain {int(chains.nonzero()[0])}, which are "
                f"{start[chains][0].tolist()[:5]} in unconstrained space: check metric=, or choose other initial "
                "values."
            )


def _check_metric_arguments(metric: object, metric_scale: object) -> None:
    if metric is not None and not callable(metric):
        raise ValueError(f"metric={metric!r}, expected a function of the sites, or None for the automatic metric.")
    if metric is not None and metric_scale is not None:
        raise ValueError("metric_scale is only for the automatic metric: multiply by the factors in metric= instead.")
    if not isinstance(metric_scale, Mapping | None):
        raise ValueError(f"metric_scale={metric_scale!r}, expected a dictionary {{site: factor}}.")
    for name, factor in (metric_scale or {}).items():
        if not (is_a(Real, factor) and 0 < float(factor) < math.inf):
            raise ValueError(f"metric_scale['{name}']={factor!r}, expected a positive number.")
