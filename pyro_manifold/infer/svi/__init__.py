"""Stochastic variational inference by traced gradients."""

from pyro_manifold.infer.svi.schedule import Course, StepSizes
from pyro_manifold.infer.svi.updates import torch_optimizer
