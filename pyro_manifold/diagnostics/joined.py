"""Parts of a posterior joined: programs, notes, sites and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pyro_manifold.density import Program


def common_program(programs: Sequence[Program | None]) -> Program | None:
    """Return the program of the parts, None if none has one; raise ValueError if they have several."""
    first = next((program for program in programs if program is not None), None)
    for other in programs:
        if first is None or other is None:
            continue
        if other.model is not first.model or (other is not first and other.fingerprints() != first.fingerprints()):
            raise ValueError("Posterior.concat: the parts are of different models or data, expected the same for all.")
    return first


def common_names(parts: Sequence[Mapping[str, Tensor]]) -> list[str]:
    """Return the sites of the parts; raise ValueError if they have different ones."""
    names = [sorted(part) for part in parts]
    if any(each != names[0] for each in names):
        raise ValueError(f"Posterior.concat: the parts have the sites {names}, expected the same for all.")
    return list(parts[0])


def joined_values(name: str, parts: Sequence[Mapping[str, Tensor]], length: int) -> Tensor:
    """Return the last values of each part, chain by chain."""
    values = [part[name][:, part[name].shape[1] - length :] for part in parts]
    if len({value.shape[2:] for value in values}) > 1:
        shapes = [tuple(value.shape[2:]) for value in values]
        raise ValueError(f"Posterior.concat: '{name}' has the shapes {shapes}, expected the same for all parts.")
    return torch.cat(values)
