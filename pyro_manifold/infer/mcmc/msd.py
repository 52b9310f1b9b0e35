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

from pyro_manifold.embedding import Embedding, embedding_from_model
from pyro_manifold.infer.mcmc.compiled import WITHOUT_TRACING
from pyro_manifold.infer.mcmc.kernel import HamiltonianKernel
from pyro_manifold.infer.mcmc.lagrangian import factorise
from pyro_manifold.infer.mcmc.lagrangian_system import LagrangianState, LagrangianSystem
from pyro_manifold.infer.mcmc.leapfrog import ChainState
from pyro_manifold.infer.mcmc.metric_field import MetricField, metric_field
from pyro_manifold.infer.mcmc.metropolis import TransitionInfo
from pyro_manifold.log_density import Target
from pyro_manifold.potential import BatchedPotential, Sites

TargetName = Literal["posterior", "jeffreys"]

_STUCK = 0.05  # of iterations


class MSD(HamiltonianKernel):
    r"""Dynamics with persistent momentum in a metric that follows the model from point to point.

    q holds all sites in unconstrained space, f(q) the model's predictions and parameters, whitened. The metric is
    the pull-back :math:`G = J^\top J`, J the Jacobian of f: Fisher information plus prior precision. One
    iteration is

    .. math::
        p \leftarrow p\cos\theta + \xi\sin\theta,\quad \xi\sim N(0, G), \qquad
        \ddot q = -G^{-1}\left(\nabla\varphi + J^\top \tfrac{d^2}{dt^2} f(q + t\dot q)\right),

    the second for ``num_steps`` leapfrog steps of size ε. The draws of q follow

    - ``target="posterior"``, :math:`\varphi = E + \tfrac12\log|G|`: the posterior :math:`e^{-E}`;
    - ``target="jeffreys"``, :math:`\varphi = E`: :math:`\sqrt{|G|}\,e^{-E}`, the paper's choice. That is the
      posterior under another prior: times the Jeffreys prior of the metric, in which q is unconstrained;

    up to a bias of order ε², or exactly with ``metropolis=True``, where the step is the explicit Lagrangian one and
    its end is accepted or rejected with the step's Jacobian. Without it, a trajectory whose energy error exceeds 10
    and what friction takes away, sin²θ of the kinetic energy, is not followed and counts as divergent. A step that
    is too long for the metric gives a wrong law in silence otherwise: compare with half the step, or with the exact
    version.

    A step costs O(l d²) for l predictions plus d of them for the Jacobian, O(d³) for factorisations, all by products
    of Jacobians with vectors; ``metropolis=True`` costs about four Jacobians more. Where G is not positive
    definite in floating point, √precision times its mean diagonal is added, and `diagnostics` counts the draws.

    Args:
        model: a Pyro model; `pyro_manifold.embedding.embedding_from_model` has the laws with an automatic metric.
        step_size: ε; G sets the scale, so that 1 is the scale of a Gaussian posterior.
        persistence: cos θ, in [0, 1); 0 draws fresh momenta.
        metric: in place of the automatic metric, a function of ``{site: value}`` of one chain, values as in the model.
            It returns a vector, whose pull-back is G, or G itself, ``(d, d)``, in unconstrained coordinates with
            the sites in alphabetical order.
        target: which law the draws follow.
        metropolis: accept or reject.
        num_steps: leapfrog steps of an iteration.
        metric_scale: ``{site: factor}`` for the share of a site in the automatic metric, for numerical
            stability; the law of the draws stays the posterior.
        potential_fn: instead of a model, the potential energy of ``{site: value}``; needs ``metric``.
        transforms: as in Pyro; a site on a manifold needs one.
        max_plate_nesting: as in Pyro.
        jit_compile: compile the step with `torch.compile`.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: do not warn when tracing or compiling falls back.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.

    The step size is not adapted. During warm-up a chain whose step goes wrong takes shorter ones until it is over the
    rough ground of its start, and in the first half of it there is no Metropolis test. All draws are made with ε
    itself, and with the test if ``metropolis=True``.
    dtype and device are those of the model's tensors. Densities are with respect to Lebesgue measure in unconstrained
    space, so that draws of the sites follow the posterior.

    Raises:
        ValueError: for arguments out of range; by ``MCMC.run`` for a site without an automatic metric, a site on a
            manifold without a transform, or a ``metric`` that returns something else, cannot be differentiated, or
            is not positive definite where chains start.

    Source: Zlochin & Baram, Manifold stochastic dynamics for Bayesian learning, Neural Computation 13, 2001; for the
    exact version Lan, Stathopoulos, Shahbaba & Girolami, arXiv 1211.3759.

    Example:
        >>> import pyro, pyro.distributions as dist, torch
        >>> from pyro_manifold.infer import MCMC, MSD
        >>> x = torch.linspace(-1.0, 1.0, 20)
        >>> def model():
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     pyro.sample("y", dist.Bernoulli(logits=w[0] + w[1] * x).to_event(1), obs=(x > 0).to(x))
        >>> mcmc = MCMC(MSD(model, 0.2, metropolis=True), 10, num_chains=2, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["w"].shape
        torch.Size([20, 2])
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        step_size: float = 0.1,
        persistence: float = 0.95,
        metric: Callable[[Sites], Tensor] | None = None,
        target: TargetName = "posterior",
        metropolis: bool = False,
        num_steps: int = 1,
        *,
        metric_scale: Mapping[str, float] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: dict[str, Any] | None = None,
        ignore_jit_warnings: bool = False,
        init_strategy: Callable[..., Any] = init_to_uniform,
    ) -> None:
        _check_arguments(step_size, persistence, target, metropolis, num_steps, metric, metric_scale)
        if metric is None and potential_fn is not None:
            raise ValueError("potential_fn tells nothing of a metric: pass metric=.")
        super().__init__(
            model,
            potential_fn,
            step_size,
            num_steps=num_steps,
            adapt_step_size=False,
            adapt_mass_matrix=False,
            transforms=transforms,
            max_plate_nesting=max_plate_nesting,
            jit_compile=jit_compile,
            jit_options=jit_options,
            ignore_jit_warnings=ignore_jit_warnings,
            init_strategy=init_strategy,
            manifolds=None if potential_fn is None else {},
        )
        self._persistence = float(persistence)
        self._metric = metric
        self._metric_scale = metric_scale
        self._law: TargetName = target
        self._metropolis = metropolis

    def _reset(self) -> None:
        super()._reset()
        self._jittered: Tensor | int = 0

    def chain_diagnostics(self) -> list[dict[str, Any]]:
        """What `diagnostics` reports, for each chain; with the number of draws whose metric needed a jitter.

        Warns of chains that stood still, and of draws that may be wrong since their metric was singular.
        """
        reports = super().chain_diagnostics()
        counts = torch.as_tensor(self._jittered).expand(len(reports))
        stuck = [chain for chain, report in enumerate(reports) if report["acceptance rate"] < _STUCK]
        if stuck and self._iteration > self._warmup_steps:
            warnings.warn(
                f"Of {len(reports)} chains {len(stuck)} moved in fewer than one iteration of twenty, such as chain "
                f"{stuck[0]}: take a shorter step_size, more warm-up, or another start.",
                stacklevel=2,
            )
        if counts.any() and not self._metropolis:
            warnings.warn(
                f"The metric was singular at {int(counts.sum())} draws. Where it turns singular from one place to "
                "another the uncorrected dynamics has a wrong law at any step size: give a metric that is not, or pass "
                "metropolis=True.",
                stacklevel=2,
            )
        return [{**report, "jittered metrics": int(count)} for report, count in zip(reports, counts, strict=True)]

    def _learn_and_record(
        self, before: ChainState, state: ChainState, info: TransitionInfo, reflected: Tensor | None
    ) -> None:
        super()._learn_and_record(before, state, info, reflected)
        assert isinstance(state, LagrangianState)
        if self._iteration > self._warmup_steps:
            self._jittered = self._jittered + (state.point.jitter > 0)
        elif self._iteration < self._warmup_steps:
            self._state = state.with_caution(info, arriving=2 * self._iteration < self._warmup_steps)
        else:
            self._state = state.without_caution()

    # ---- construction ---------------------------------------------------------------------------------------

    def _build_target(self, initial_params: Sites | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        self._model_arguments = args, kwargs
        return super()._build_target(initial_params, args, kwargs)

    def _build_system(self, potential: BatchedPotential) -> LagrangianSystem:
        assert self._starts is not None
        self._potential = potential
        layout = self._layout
        (block,) = layout.groups

        def flat_potential(position: Tensor) -> tuple[Tensor, Tensor]:
            energy, gradient = potential(layout.unpack({block: position}))
            return energy, layout.pack(gradient)[block]

        embedding = self._embedding_of_sites()

        def flat_embedding(position: Tensor) -> Tensor:
            return embedding(layout.unpack_chain({block: position.unsqueeze(0)}, 0))

        start = layout.pack(self._starts)[block]
        field = metric_field(flat_embedding, start)
        _check_metric(field, start)
        system = LagrangianSystem(
            flat_potential,
            field,
            block,
            persistence=self._persistence,
            with_volume=self._law == "posterior",
            exact=self._metropolis,
        )
        if self._can_be_traced(potential, WITHOUT_TRACING):
            warn = not self._ignore_jit_warnings
            system.trace(start, compile=self._jit_compile, options=self._jit_options, warn=warn)
        return system

    def _embedding_of_sites(self) -> Embedding:
        if self._metric is None:
            assert self.model is not None
            start = self.initial_params or {}
            return embedding_from_model(self.model, *self._model_arguments, self._target, start, self._metric_scale)
        metric, transforms = self._metric, self._target.transforms

        def of_unconstrained(sites: Sites) -> Tensor:
            return metric({name: transforms[name].inv(z) if name in transforms else z for name, z in sites.items()})

        return of_unconstrained


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


def _check_arguments(
    step_size: object,
    persistence: Any,
    target: object,
    metropolis: object,
    num_steps: object,
    metric: object,
    metric_scale: object,
) -> None:
    if not (isinstance(persistence, Real) and 0 <= float(persistence) < 1):
        raise ValueError(f"persistence={persistence!r}, expected a number in [0, 1).")
    for name, value in {"step_size": step_size, "num_steps": num_steps}.items():
        if value is None or isinstance(value, bool):
            raise ValueError(f"{name}={value!r}, expected a positive number.")
    if not isinstance(metropolis, bool):
        raise ValueError(f"metropolis={metropolis!r}, expected True or False.")
    if target not in ("posterior", "jeffreys"):
        raise ValueError(f"target={target!r}, expected 'posterior' or 'jeffreys'.")
    if metric is not None and not callable(metric):
        raise ValueError(f"metric={metric!r}, expected a function of the sites, or None for the automatic metric.")
    if metric is not None and metric_scale is not None:
        raise ValueError("metric_scale is for the automatic metric: put the factors into metric= instead.")
    if not isinstance(metric_scale, Mapping | None):
        raise ValueError(f"metric_scale={metric_scale!r}, expected a dictionary {{site: factor}}.")
    for name, factor in (metric_scale or {}).items():
        if not (isinstance(factor, Real) and 0 < float(factor) < math.inf):
            raise ValueError(f"metric_scale['{name}']={factor!r}, expected a positive number.")
