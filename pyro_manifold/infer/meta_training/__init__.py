"""Training of meta-learned samplers."""

from pyro_manifold.infer.meta_training.losses import divergence
from pyro_manifold.infer.meta_training.unrolled import PartlyLive, Unrolled
