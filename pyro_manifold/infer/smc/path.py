"""The distributions that particles pass, from the first one to the posterior."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pyro import poutine
from torch.distributions import biject_to

from pyro_manifold.density import (
    ModelTarget,
    Program,
    Target,
    WithoutLikelihood,
    likelihood_sites,
    refuse_dependent,
)
from pyro_manifold.infer.smc.guide import is_over_unconstrained_space, target_of_guide
from pyro_manifold.infer.smc.initialisation import (
    likelihood_terms,
    posterior_of,
    warn_if_improper,
    warn_of_unnormalised,
    with_continuous_sites,
)
from pyro_manifold.infer.smc.modes import mixture_about_modes
from pyro_manifold.infer.smc.whitened import from_mixture

_TO_THE_END = 8


@dataclass(frozen=True)
class AnnealingPath:
    """The distributions of the path: the prior, a mixture about the modes or a guide, and the posterior.

    Attributes:
        program: the model with its arguments.
        init: ``"prior"``, ``"modes"`` or a guide.
        prior_factors: observed sites and factors that belong to the prior.
        num_starts: number of descents.
    """

    program: Program
    init: Any
    prior_factors: Sequence[str]
    num_starts: int

    def targets(self) -> tuple[list[Target], int]:
        """Return the distributions, and the number of evaluations of the density to find them."""
        if callable(self.init) or self.init == "modes":
            full = with_continuous_sites(self.program.target, "SMC")
            warn_if_improper(full.program, "SMC")
        else:
            full = posterior_of(self.program, "SMC")
        if callable(self.init):
            return self._guide(full), 0
        if self.init == "modes":
            warn_of_unnormalised(full)
            mixture, evaluations = mixture_about_modes(full, self.num_starts, _TO_THE_END)
            return from_mixture(mixture, full), evaluations
        likelihood = likelihood_sites(full.program)
        unknown = sorted(set(self.prior_factors) - set(likelihood))
        if unknown:
            raise ValueError(f"prior_factors names {unknown}, but the observed sites and factors are {likelihood}.")
        likelihood_terms(full, self.prior_factors, "SMC")
        keep = [[]] if not self.prior_factors else [[], self.prior_factors]
        return [*[self.program.handled(WithoutLikelihood(names)).target for names in keep], full], 0

    def _guide(self, full: ModelTarget) -> list[Target]:
        """Return the guide, and the posterior in its coordinates."""
        warn_of_unnormalised(full)
        refuse_dependent(full.dependent, "a guide as the initial distribution does not follow")
        if is_over_unconstrained_space(self.init):
            full = self._in_unconstrained_space(full, {*full.manifolds, *full.transforms})
        return [target_of_guide(self.init, full, self.program), full]

    def _in_unconstrained_space(self, full: ModelTarget, names: Collection[str]) -> ModelTarget:
        """Return the same target with these sites transformed to unconstrained space by `biject_to`."""
        if not names:
            return full
        nodes = poutine.block(poutine.trace(full.program).get_trace)().nodes
        transforms = {name: biject_to(nodes[name]["fn"].support).inv for name in names}
        return self.program.with_options(transforms=transforms).target
