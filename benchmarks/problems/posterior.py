"""A model without arguments, and functionals of its draws that chains agree on."""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Posterior(NamedTuple):
    """A model, and ``{name: (chains, draws)}`` of its draws ``{site: (chains, draws, ...)}`` as tensors."""

    model: Callable
    functionals: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def entries(name, values):
    """Every number of ``(chains, draws, ...)`` by itself."""
    flat = values.reshape(*values.shape[:2], -1)
    return {f"{name}[{k}]": flat[..., k] for k in range(flat.shape[-1])}


def all_entries(draws):
    return {name: value for site, values in draws.items() for name, value in entries(site, values).items()}


def some_entries(draws):
    """Every number of each site, of a site of more than 40 numbers the first 20."""
    flat = {site: values.reshape(*values.shape[:2], -1) for site, values in draws.items()}
    return all_entries({site: x if x.shape[-1] <= 40 else x[..., :20] for site, x in flat.items()})
