"""Charts: maps from unconstrained space that let Pyro's own inference see a manifold site.

Importing this package registers each chart with `biject_to` and `transform_to`.
"""

from torch.distributions import biject_to, transform_to

from pyro_manifold.distributions.constraints import HouseholderStiefelConstraint, StiefelConstraint
from pyro_manifold.distributions.transforms.householder import HouseholderTransform
from pyro_manifold.distributions.transforms.polar import PolarTransform

__all__ = ["HouseholderTransform", "PolarTransform"]


@biject_to.register(StiefelConstraint)
@transform_to.register(StiefelConstraint)
def _polar_chart(constraint: StiefelConstraint) -> PolarTransform:
    return PolarTransform()


@biject_to.register(HouseholderStiefelConstraint)
@transform_to.register(HouseholderStiefelConstraint)
def _householder_chart(constraint: HouseholderStiefelConstraint) -> HouseholderTransform:
    return HouseholderTransform(constraint.n, constraint.p)
