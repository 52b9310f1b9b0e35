"""Scalar quantities of a posterior whose ranks are tested."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.contrib.calibration.simulation import Conditioned
from pyro_manifold.density import Program, Target
from pyro_manifold.diagnostics import (
    Symmetry,
    Values,
    known_quantities,
    over_draws,
    pointwise_log_likelihood,
    symmetries,
    varies,
)

_DATA = "data of "
_POINTS = 3
_MOST_NUMBERS = 2**24  # of all inputs of a vectorised evaluation


@dataclass(frozen=True)
class Quantities:
    """Function from draws and a data set to the ranked quantities.

    These are entries of sites, of invariants for sites that have a symmetry, the log likelihood and the log density.

    Attributes:
        model: the fitted model.
        args: its arguments.
        kwargs: its keyword arguments.
        symmetries: symmetries of the posterior.
        most_entries: largest number of entries of a site or invariant; of larger ones equally spaced entries are taken.
        summed_out: whether the model has discrete sites that are summed out.
    """

    model: Conditioned
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    symmetries: tuple[Symmetry, ...]
    most_entries: int
    summed_out: bool

    def __call__(self, points: Values, data: Values) -> dict[str, Tensor]:
        """Return ``{quantity: (data sets, points)}``.

        Args:
            points: true values and draws of each data set, ``{site: (data sets, points, ...)}``.
            data: ``{observed site: (data sets, ...)}``.
        """
        found_each = [self.of_sites({name: x[k] for name, x in points.items()}) for k in range(_count(points))]
        found = {name: torch.stack([each[name] for each in found_each]) for name in found_each[0]}
        return {name: x.cpu().double() for name, x in {**found, **self._densities(points, data)}.items()}

    def of_sites(self, points: Values) -> dict[str, Tensor]:
        """Return the quantities of sites in one data set, ``{quantity: (points,)}``.

        Invariants choose rows by means over all points. These means do not depend on which point is the true value,
        so that ranks remain uniform.
        """
        known = known_quantities({name: x.unsqueeze(0) for name, x in points.items()}, self.symmetries)
        found = {}
        for name, values in known.items():
            flat = values[0].detach().flatten(1) if values.dim() > 2 else values[0].detach().unsqueeze(1)
            constant = ~varies(flat.unsqueeze(0))  # up to rounding: a tie
            flat = torch.where(constant, flat[:1], flat)
            for place in _spaced(flat.shape[1], self.most_entries):
                indices = np.unravel_index(place, tuple(values.shape[2:])) if values.dim() > 2 else ()
                label = f"[{','.join(str(int(index)) for index in indices)}]" if indices else ""
                found[f"{name}{label}"] = flat[:, place]
        return found

    def _densities(self, points: Values, data: Values) -> dict[str, Tensor]:
        if self.summed_out:
            each = [
                self._summed_out({name: x[k] for name, x in points.items()}, {name: x[k] for name, x in data.items()})
                for k in range(_count(points))
            ]
            return {"log likelihood": torch.stack(each)}
        sets, length = next(iter(points.values())).shape[:2]
        of_data = {_DATA + name: x.unsqueeze(1).expand(sets, length, *x.shape[1:]) for name, x in data.items()}
        rows = {name: x.flatten(0, 1) for name, x in {**points, **of_data}.items()}
        numbers = sum(x[0].numel() for x in rows.values())
        found = over_draws(self._of_one_row, rows, at_a_time=max(256, _MOST_NUMBERS // max(1, numbers)))
        return {name: x.reshape(sets, length) for name, x in found.items()}

    def _of_one_row(self, values: Values) -> Values:
        own = {name.removeprefix(_DATA): x for name, x in values.items() if name.startswith(_DATA)}
        before, self.model.data = self.model.data, own
        try:
            sites = {name: x for name, x in values.items() if not name.startswith(_DATA)}
            trace = Program(self.model, self.args, self.kwargs).trace(sites)
        finally:
            self.model.data = before
        density = trace.log_prob_sum()
        return {"log likelihood": sum(trace.nodes[name]["log_prob_sum"] for name in own), "log density": density}

    def _summed_out(self, points: Values, data: Values) -> Tensor:
        model = Conditioned(self.model.__wrapped__, data)
        found = pointwise_log_likelihood(Program(model, self.args, self.kwargs), points)
        return torch.stack([x.flatten(1).sum(1) if x.dim() > 1 else x for x in found.values()]).sum(0)


def _count(points: Mapping[str, Tensor]) -> int:
    return len(next(iter(points.values())))


def _spaced(size: int, most: int) -> list[int]:
    return [k * size // min(size, most) for k in range(min(size, most))]


def latent_values(target: Target, count: int) -> Values:
    """Return initial values of the latent sites of a model, ``{site: (count, ...)}``."""
    drawn = [target.draw() for _ in range(count)]
    return target.values({name: torch.stack([each[name] for each in drawn]) for name in drawn[0]})


def symmetries_of(target: Target) -> tuple[Symmetry, ...]:
    """Return the symmetries of the posterior of a data set, found at initial values of chains."""
    with suppress(Exception):  # a model can fail in any way; entries of sites are then ranked as they are
        return tuple(symmetries(target, latent_values(target, _POINTS)))
    return ()
