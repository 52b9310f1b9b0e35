"""Stochastic variational inference by traced gradients."""

from pyro_manifold.infer.svi.schedule import LearningRateSchedule, StepSizes
from pyro_manifold.infer.svi.updates import torch_optimizer
