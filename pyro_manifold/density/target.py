"""The distribution that a kernel samples: a potential energy over sites, and the space of each site."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyro
import torch
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.density.batched import Batch, PotentialFunction, Sites
from pyro_manifold.density.minibatch import Minibatch, on_all_data
from pyro_manifold.distributions import manifold_of
from pyro_manifold.manifolds import Manifold, Stiefel


@dataclass
class Target:
    """The distribution that a kernel samples: a potential energy over sites, and the space of each site.

    Attributes:
        potential_fn: ``{site: value}`` of one chain to the scalar potential energy, minus the log density. Manifold
            sites are points on their manifold, all others are unconstrained. Validation of its distributions is off:
            trajectories may leave the support when they diverge, and the Metropolis test rejects them.
        manifolds: the manifold of each site that has one.
        transforms: for every other site, the map to unconstrained space (as in Pyro).
    """

    potential_fn: PotentialFunction
    manifolds: dict[str, Manifold]
    transforms: dict[str, Transform]

    @property
    def log_measure(self) -> float:
        """Log of the total base measure of the manifold sites: its density integrates to this over uniform points.

        It is 0 if all base measures are uniform distributions; see `log_base_measure`.
        """
        return 0.0

    @property
    def angles(self) -> tuple[str, ...]:
        """Sites without a constraint that may be angles; see `possible_angles`."""
        return ()

    @property
    def as_written(self) -> Target:
        """The target in the coordinates of the model as it is written."""
        return self

    @property
    def undifferentiated(self) -> frozenset[str]:
        """Sites that never move, and with respect to which no gradient is needed."""
        return frozenset()

    def sites(self, position: Sites) -> Sites:
        """Return the sites of the model in unconstrained space or on their manifold, from a position of chains."""
        return position

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the sites of a position from which the values of these sites follow."""
        return [*names]

    def started(self, sites: Sites) -> Sites:
        """Return the position at which chains begin that are given these sites."""
        return sites

    def values(self, sites: Sites) -> Sites:
        """Return the sites as the model has them: unconstrained ones are transformed to their support."""
        return {name: self.transforms[name].inv(x) if name in self.transforms else x for name, x in sites.items()}

    def positions(self, values: Sites) -> Sites:
        """Return positions of the chains from values of continuous sites in the model: the inverse of `values`."""
        moved = {name: values[name] for name in self.manifolds}
        return moved | {name: transform(values[name]) for name, transform in self.transforms.items()}

    @property
    def dependent(self) -> frozenset[str]:
        """The sites whose support depends on other sites, so that they are transformed together with these."""
        return frozenset()

    @property
    def is_subsampled(self) -> bool:
        """True if the density is that of a part of the data at a time."""
        return False

    def on(self, batch: Batch) -> Minibatch:
        """Return the density on batches like this one; ``{}`` is the batch of all data."""
        return on_all_data(self.potential_fn)

    def draw(self) -> Sites:
        """Return initial values of all sites of one chain.

        Raises:
            ValueError: always, as a bare potential has no initial values.
        """
        raise ValueError(
            "potential_fn needs initial values: pass MCMC(..., initial_params={site: tensor}), "
            "manifold sites on their manifold and all others unconstrained."
        )

    def check(self, initial_params: Sites) -> None:
        """Raise ValueError for initial values that do not fit the target."""

    def not_finite(self) -> dict[str, str | None]:
        """Return sites whose log density is not finite at initial values, with the parameter that is out of range."""
        return {}

    def present(self) -> Target:
        """Return the target with the current supports of the model's sites, which may depend on changed data."""
        return self


def target_from_potential(
    potential_fn: PotentialFunction,
    initial_params: Sites | None,
    manifolds: Mapping[str, Manifold | Constraint] | None,
    transforms: Mapping[str, Transform] | None,
) -> Target:
    """Return the target of a potential function, whose sites are unconstrained unless ``manifolds`` names them.

    Raises:
        ValueError: without initial values, or if ``manifolds`` names sites that they do not have.

    Warns:
        UserWarning: without ``manifolds``, if a site begins with orthonormal columns.
    """
    target = Target(partial(unchecked, potential_fn), {}, dict(transforms or {}))
    given = target.draw() if initial_params is None else initial_params
    if manifolds is None:
        _warn_of_orthonormal({name: value for name, value in given.items() if name not in target.transforms})
        manifolds = {}
    both = sorted(set(manifolds) & set(target.transforms))
    if both:
        raise ValueError(f"Sites {both} have a manifold and a transform: give each site one of the two.")
    unknown = sorted(set(manifolds) - set(given))
    if unknown:
        raise ValueError(f"manifolds names {unknown}, but initial_params has only {sorted(given)}.")
    target.manifolds = {name: _as_manifold(name, value) for name, value in sorted(manifolds.items())}
    return target


def _warn_of_orthonormal(sites: Sites) -> None:
    """Warn of initial values that seem to be on a manifold, which sampling in unconstrained space would leave."""
    for name, value in sites.items():
        if _looks_orthonormal(value):
            warnings.warn(
                f"initial_params['{name}'] has orthonormal columns, but without manifolds= all sites of potential_fn "
                f"are in unconstrained space: pass manifolds={{'{name}': Stiefel()}} to stay on the manifold, or "
                "manifolds={} to sample in unconstrained space.",
                stacklevel=2,
            )


def _looks_orthonormal(values: Tensor) -> bool:
    """Return whether all values are orthonormal matrices, except the identity, a usual initial covariance."""
    if values.dim() < 3 or not values.is_floating_point():
        return False
    n, p = values.shape[-2:]
    if n < 2 or not Stiefel().accepts_shape(n, p) or not bool(Stiefel().contains(values).all()):
        return False
    return n != p or not bool((values == torch.eye(n).to(values)).all())


def unchecked(potential_fn: PotentialFunction, sites: Sites) -> Tensor:
    """Evaluate the potential energy, a scalar, without Pyro's and torch's validation of distributions."""
    with pyro.validation_enabled(False):
        energy = potential_fn(sites)
    one_number = torch.is_tensor(energy) and energy.dim() and energy.numel() == 1  # such as shape (1,), as in Pyro
    return energy.reshape(()) if one_number else energy


def _as_manifold(name: str, value: Manifold | Constraint) -> Manifold:
    """Return a manifold; a constraint is replaced by its manifold."""
    manifold = value if isinstance(value, Manifold) else manifold_of(value)
    if not isinstance(manifold, Manifold) or isinstance(value, type):
        raise ValueError(f"manifolds['{name}'] is {value!r}, expected a manifold like Stiefel().")
    return manifold
