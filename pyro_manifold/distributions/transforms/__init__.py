"""Pyro transforms from unconstrained space to manifolds, and one to decreasing vectors.

Pyro's own inference uses them for sites on a manifold. Importing this package registers each with `biject_to` and
`transform_to`.
"""

from pyro.distributions import constraints as pyro_constraints
from torch.distributions import Transform, biject_to, transform_to
from torch.distributions.constraints import Constraint

from pyro_manifold.distributions.constraints import (
    GrassmannConstraint,
    HouseholderStiefelConstraint,
    PositiveDecreasingVector,
    SpecialOrthogonalConstraint,
    StiefelConstraint,
    UniformSphereConstraint,
)
from pyro_manifold.distributions.transforms.decreasing import DecreasingTransform
from pyro_manifold.distributions.transforms.householder import HouseholderTransform
from pyro_manifold.distributions.transforms.polar import PolarTransform
from pyro_manifold.distributions.transforms.rotation import PolarRotationTransform, RotationTransform
from pyro_manifold.distributions.transforms.sphere import SphereTransform

__all__ = [
    "DecreasingTransform",
    "HouseholderTransform",
    "PolarRotationTransform",
    "PolarTransform",
    "RotationTransform",
    "SphereTransform",
]


@biject_to.register(StiefelConstraint)
@transform_to.register(StiefelConstraint)
@biject_to.register(GrassmannConstraint)
@transform_to.register(GrassmannConstraint)
def _polar_transform(constraint: StiefelConstraint) -> PolarTransform:
    return PolarTransform(constraint)


@biject_to.register(HouseholderStiefelConstraint)
@transform_to.register(HouseholderStiefelConstraint)
def _householder_transform(constraint: HouseholderStiefelConstraint) -> HouseholderTransform:
    return HouseholderTransform(constraint.n, constraint.p)


@biject_to.register(SpecialOrthogonalConstraint)
def _rotation_transform(constraint: Constraint) -> RotationTransform:
    return RotationTransform()


@transform_to.register(SpecialOrthogonalConstraint)
def _polar_rotation_transform(constraint: StiefelConstraint) -> PolarRotationTransform:
    return PolarRotationTransform(constraint)


@biject_to.register(UniformSphereConstraint)
@biject_to.register(pyro_constraints.sphere)  # Pyro has a transform_to for it, but none for HMC and guides
def _sphere_transform(constraint: Constraint) -> SphereTransform:
    return SphereTransform(constraint)


@transform_to.register(UniformSphereConstraint)
def _normalise(constraint: Constraint) -> Transform:
    return transform_to(pyro_constraints.sphere)


@biject_to.register(PositiveDecreasingVector)
@transform_to.register(PositiveDecreasingVector)
def _decreasing_transform(constraint: Constraint) -> DecreasingTransform:
    return DecreasingTransform()
