"""MSD: manifold stochastic dynamics, in the geometry of the model."""

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

from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, check_share, is_a
from pyro_manifold.infer.mcmc.haste import Haste
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.layout import Layout, refuse_manifold
from pyro_manifold.infer.mcmc.native import allowed as native_code_is_allowed
from pyro_manifold.infer.mcmc.problem import Problem
from pyro_manifold.infer.mcmc.riemannian.caution import CautiousSteps
from pyro_manifold.infer.mcmc.riemannian.lagrangian import factorise
from pyro_manifold.infer.mcmc.riemannian.metric_field import MetricField, metric_field
from pyro_manifold.infer.mcmc.riemannian.step import LagrangianStep
from pyro_manifold.infer.mcmc.riemannian.trajectory import LagrangianSettings, LagrangianState, LagrangianTrajectory
from pyro_manifold.infer.mcmc.run import Parts
from pyro_manifold.infer.mcmc.states import Block, Statistics
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.embedding import Embedding, embedding_from_model
from pyro_manifold.target.model import ModelTarget

TargetName = Literal["posterior", "jeffreys"]


class MSD(Kernel):
    r"""Hamiltonian dynamics with persistent momentum, in a mass matrix that follows the model from point to point.

    q holds all sites in unconstrained space, f(q) the model's predictions and parameters, in units of their standard
    deviations. The position-dependent mass matrix is the metric :math:`G = J^\top J` that f pulls back, J the Jacobian
    of f: Fisher information plus prior precision. With E the potential energy, minus the log density, one iteration is

    .. math::
        p \leftarrow p\cos\theta + \xi\sin\theta,\quad \xi\sim N(0, G), \qquad
        \ddot q = -G^{-1}\left(\nabla\varphi + J^\top \tfrac{d^2}{dt^2} f(q + t\dot q)\right),

    the second for ``num_steps`` leapfrog steps of size ε. The draws of q follow

    - ``target="posterior"``, :math:`\varphi = E + \tfrac12\log|G|`: the posterior :math:`e^{-E}`;
    - ``target="jeffreys"``, :math:`\varphi = E`: :math:`\sqrt{|G|}\,e^{-E}`, the paper's choice. That is the
      posterior under another prior: times the Jeffreys prior of the metric, in which q is unconstrained;

    up to a bias of order ε² (unadjusted), or without bias with ``metropolis=True`` (adjusted), where the step is the
    explicit Lagrangian one and its end is accepted or rejected with the step's Jacobian. Unadjusted, a trajectory whose
    energy error exceeds 10 and what friction takes away, sin²θ of the kinetic energy, is not followed and counts as
    divergent. A step that is too long for the metric gives a wrong distribution in silence otherwise: compare with
    half the step, or with the adjusted version.

    A step costs O(l d²) for l predictions plus d of them for the Jacobian, O(d³) for factorisations, all by products
    of Jacobians with vectors; ``metropolis=True`` costs about four Jacobians more. Where G is not positive
    definite in floating point, √precision times its mean diagonal is added, and `diagnostics` counts the draws.

    Args:
        model: a Pyro model; `pyro_manifold.target.embedding.embedding_from_model` has the distributions with an
            automatic metric.
        potential_fn: instead of a model, the potential energy of ``{site: value}``; needs ``metric``.
        step_size: ε; G sets the scale, so that 1 is the scale of a Gaussian posterior.
        persistence: cos θ, in [0, 1); 0 draws fresh momenta.
        metric: in place of the automatic metric, a function of ``{site: value}`` of one chain, values as in the model.
            It returns a vector, whose pull-back is G, or G itself, ``(d, d)``, in unconstrained coordinates with
            the sites in alphabetical order.
        target: which distribution the draws follow.
        metropolis: accept or reject.
        num_steps: leapfrog steps of an iteration.
        metric_scale: ``{site: factor}`` for the share of a site in the automatic metric, for numerical
            stability; the distribution of the draws stays the posterior.
        transforms: as in Pyro; a site on a manifold needs one.
        max_plate_nesting: as in Pyro.
        jit_compile: compile the step with `torch.compile`.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: do not warn when tracing or compiling falls back.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.

    The step size is not adapted. During warm-up a chain whose step goes wrong takes shorter ones until it is over the
    rough ground of its initial values, and in the first half of it there is no Metropolis test. All draws are made with
    ε itself, and with the test if ``metropolis=True``.
    dtype and device are those of the model's tensors. Densities are with respect to Lebesgue measure in unconstrained
    space, so that draws of the sites follow the posterior.

    Raises:
        ValueError: for arguments out of range; by ``MCMC.run`` for a site without an automatic metric, a site on a
            manifold without a transform, or a ``metric`` that returns something else, cannot be differentiated, or
            is not positive definite at the initial values.

    Source: Zlochin & Baram, Manifold stochastic dynamics for Bayesian learning, Neural Computation 13, 2001; for the
    adjusted version Lan, Stathopoulos, Shahbaba & Girolami, arXiv 1211.3759.

    Example:
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
        check_positive(step_size=step_size)
        check_positive_integer(num_steps=num_steps)
        check_share(persistence=persistence, open_above=True)
        if not isinstance(metropolis, bool):
            raise ValueError(f"metropolis={metropolis!r}, expected True or False.")
        if target not in ("posterior", "jeffreys"):
            raise ValueError(f"target={target!r}, expected 'posterior' or 'jeffreys'.")
        if metric is None and model is None:
            raise ValueError("potential_fn tells nothing of a metric: pass metric=.")
        _check_metric_arguments(metric, metric_scale)
        self.step_size = float(step_size)
        self._persistence = float(persistence)
        self._metric = metric
        self._metric_scale = metric_scale
        self._with_volume = target == "posterior"
        self._metropolis = metropolis
        self.num_steps = int(num_steps)
        self._jit_compile = jit_compile
        self._jit_options = jit_options

    def compose(self, problem: Problem, warmup_steps: int) -> Parts[LagrangianState, LagrangianSettings]:
        """One trajectory in the metric, with steps that are careful during warm-up."""
        for name, manifold in problem.target.manifolds.items():
            refuse_manifold(name, manifold, [])
        layout, position = problem.layout, problem.position
        ((block, start),) = position.items()

        def flat_potential(position: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = problem.potential({block: position})
            return energy, gradient[block]

        field = metric_field(_flat(self._embedding(problem), layout, block), start)
        _check_metric(field, start)
        step = LagrangianStep(flat_potential, field, with_volume=self._with_volume, reversible=self._metropolis)
        trajectory = LagrangianTrajectory(
            step, block, num_steps=self.num_steps, persistence=self._persistence, adjusted=self._metropolis
        )
        state = trajectory.state_at(position, problem.random)
        density, options = problem.batched.graph, self._jit_options
        step.trace(state.point, density, compile=self._jit_compile, options=options, warn=self._warn)
        tuning = CautiousSteps(self.step_size, self._metropolis, warmup_steps, state.energy)
        graphs = {"step": step.graph, "trajectory": trajectory.native.graph}
        return Parts(state, [trajectory], tuning, trajectory.moved, graphs, haste=self._haste(problem, trajectory))

    def _haste(self, problem: Problem, trajectory: LagrangianTrajectory) -> Haste:
        """Native code for trajectories, where there can be."""
        one, step = problem.potential_of_one_chain, trajectory.step.graph
        if self._jit_compile or one is None or not (step.is_graph and native_code_is_allowed()):
            return Haste(None)

        def of_flat(position: Tensor) -> tuple[Tensor, Tensor]:
            ((block, _),) = problem.position.items()
            energy, gradient = one({block: position})
            return energy, gradient[block]

        def make(state: LagrangianState) -> None:
            if state.energy.device.type == "cpu":
                trajectory.compile(state, torch.full_like(state.energy, self.step_size), of_flat, warn=self._warn)

        return Haste(make, trajectory.step.operators)

    def _embedding(self, problem: Problem) -> Embedding:
        """The metric's function of unconstrained values."""
        if self._metric is not None:
            return _of_unconstrained(self._metric, problem.target.transforms)
        first = {name: value[0] for name, value in problem.initial_values.items()}
        target: ModelTarget = problem.target  # type: ignore[assignment]  # the constructor saw to it
        return embedding_from_model(target, first, self._metric_scale)

    def reports(self, statistics: Statistics, chains: int) -> list[dict[str, Any]]:
        """What to tell of each chain; with the number of draws whose metric needed a jitter.

        Warns of draws that may be wrong since their metric was singular.
        """
        reports = super().reports(statistics, chains)
        if not statistics:
            return reports
        counts = statistics["jittered"].sum(1).tolist()
        if any(counts) and not self._metropolis:
            warnings.warn(
                f"The metric was singular at {sum(counts)} draws. Where it turns singular from one place to "
                "another the unadjusted dynamics has a wrong distribution at any step size: give a metric that is not, "
                "or pass metropolis=True.",
                stacklevel=2,
            )
        return [{**report, "jittered metrics": count} for report, count in zip(reports, counts, strict=True)]


def _of_unconstrained(metric: Callable[[Sites], Tensor], transforms: Mapping[str, Transform]) -> Embedding:
    def of_unconstrained(sites: Sites) -> Tensor:
        return metric({name: transforms[name].inv(z) if name in transforms else z for name, z in sites.items()})

    return of_unconstrained


def _flat(embedding: Embedding, layout: Layout, block: Block) -> Callable[[Tensor], Tensor]:
    def flat_embedding(position: Tensor) -> Tensor:
        return embedding({name: value[0] for name, value in layout.unpack({block: position.unsqueeze(0)}).items()})

    return flat_embedding


def _check_metric(field: MetricField, start: Tensor) -> None:
    metric, _ = field.at(start)
    faults = {
        "is not finite": ~metric.isfinite().flatten(1).all(1),
        "is not positive definite, nor with a jitter": ~factorise(metric)[0].isfinite().flatten(1).all(1),
    }
    for fault, chains in faults.items():
        if chains.any():
            raise ValueError(
                f"The metric {fault} at the start of chain {int(chains.nonzero()[0])}, where unconstrained values are "
                f"{start[chains][0].tolist()[:5]}: check metric=, or start elsewhere."
            )


def _check_metric_arguments(metric: object, metric_scale: object) -> None:
    if metric is not None and not callable(metric):
        raise ValueError(f"metric={metric!r}, expected a function of the sites, or None for the automatic metric.")
    if metric is not None and metric_scale is not None:
        raise ValueError("metric_scale is for the automatic metric: put the factors into metric= instead.")
    if not isinstance(metric_scale, Mapping | None):
        raise ValueError(f"metric_scale={metric_scale!r}, expected a dictionary {{site: factor}}.")
    for name, factor in (metric_scale or {}).items():
        if not (is_a(Real, factor) and 0 < float(factor) < math.inf):
            raise ValueError(f"metric_scale['{name}']={factor!r}, expected a positive number.")
