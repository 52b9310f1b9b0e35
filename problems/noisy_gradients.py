"""Noise of known size on the gradient of a model, as an ordinary plate that subsamples."""

from functools import cache

import pyro
import torch

POPULATION = 4096


@cache
def _population(shape, dtype):
    """Vectors whose mean is 0 and whose variance is 1 in each entry, to the last digit."""
    noise = torch.randn(POPULATION, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    noise = noise - noise.mean(0)
    return (noise / noise.square().mean(0).sqrt()).to(dtype)


def gradient_noise(name, value, scale):
    """Noise of standard deviation ``scale`` on each entry of the gradient with respect to a site, a new one a step.

    A plate of vectors zᵢ that draws one of them: its estimate of Σᵢ zᵢ·value, which is 0, has the gradient N zᵢ.
    """
    with pyro.plate(f"{name} noise", POPULATION, subsample_size=1) as one:
        noise = _population(value.shape, value.dtype)[one]
        pyro.factor(f"{name} noise factor", scale / POPULATION * (noise * value).reshape(1, -1).sum(1))
