"""Stochastic-gradient Hamiltonian Monte Carlo on orthonormal matrices and in flat space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, get_args

from pyro_manifold.infer.mcmc.checks import is_a
from pyro_manifold.infer.mcmc.hmc.mechanics import CayleyMechanics, GeodesicMechanics, Mechanics
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sgmcmc.schedules import Schedule
from pyro_manifold.infer.mcmc.sgmcmc.steps import euler_step, splitting_step
from pyro_manifold.infer.mcmc.sgmcmc.transition import Integrator, Plan, Step
from pyro_manifold.manifolds import Manifold, Sphere, Stiefel


class SGHMC(StochasticGradientKernel):
    """Stochastic-gradient Hamiltonian Monte Carlo (draft)."""

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {}

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[..., Any] | None = None,
        *,
        step_size: float | Schedule,
        friction: float = 0.1,
        noise_estimate: float = 0.0,
        resample_momentum: bool = False,
        integrator: Integrator = "splitting",
        **options: Any,
    ) -> None:
        super().__init__(model, potential_fn, step_size=step_size, **options)
        if integrator not in get_args(Integrator):
            raise ValueError(f"integrator={integrator!r}, expected one of {list(get_args(Integrator))}.")
        if not is_a(float, friction) or not friction > 0:
            raise ValueError(f"friction={friction!r}, expected a number > 0.")
        if not 0 <= noise_estimate < friction:
            raise ValueError(f"noise_estimate={noise_estimate!r}, expected a number ≥ 0 and below friction={friction}.")
        self._friction, self._noise_estimate = friction, noise_estimate
        self._resample_momentum, self._integrator = resample_momentum, integrator

    def step(self) -> Step:
        return splitting_step if self._integrator == "splitting" else euler_step

    def plan(self) -> Plan:
        return Plan(
            self._step_size,
            self._temperature,
            self._num_steps,
            self._friction,
            self._noise_estimate,
            self._resample_momentum,
        )


class OSGHMC(SGHMC):
    """The same with orthonormal matrices, which move by rotations (draft)."""

    manifold_mechanics: ClassVar[Mapping[type[Manifold], Mechanics]] = {
        Stiefel: CayleyMechanics(),
        Sphere: GeodesicMechanics(Sphere()),
    }
