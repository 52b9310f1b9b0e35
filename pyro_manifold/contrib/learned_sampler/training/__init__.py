"""Training of meta-learned samplers."""

from pyro_manifold.contrib.learned_sampler.training.losses import divergence
from pyro_manifold.contrib.learned_sampler.training.settings import MetaTask, TrainingSettings
from pyro_manifold.contrib.learned_sampler.training.stein import stein_scores
from pyro_manifold.contrib.learned_sampler.training.training import MetaTraining, train_meta_sampler
from pyro_manifold.contrib.learned_sampler.training.unrolled import PartlyLive, Unrolled

__all__ = ["MetaTask", "MetaTraining", "TrainingSettings", "stein_scores", "train_meta_sampler"]
