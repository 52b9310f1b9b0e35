r"""Coordinates of location-scale sites between the model as written and its non-centred form.

A site $x \sim F(\mathrm{loc}, \mathrm{scale})$ whose location or scale depends on other sites moves as $x'$, with a
centredness c in [0, 1] of each element,

$$ x = \mathrm{loc} + \mathrm{scale}^{1-c}\,(x' - c\,\mathrm{loc}), \qquad
   \log p(x', \dots) = \log p(x, \dots) + (1 - c) \log \mathrm{scale}. $$

c = 1 is the model as written, and c = 0 the non-centred form, in which x' is independent of its location and scale
under the prior (Papaspiliopoulos, Roberts & Sköld, Statistical Science 22, 2007; Gorinova, Moore & Hoffman, ICML 2020).
Of a `LogNormal`, x is the logarithm of the value.

c is a site that does not move (`pyro_manifold.manifolds.Constant`), so that it is an input of the traced density.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Transform

from pyro_manifold.compiled import FlatFunction, Verified, vectorise
from pyro_manifold.density.batched import Sites
from pyro_manifold.density.location_scale import is_exponential, location_and_scale, location_scale_sites
from pyro_manifold.density.model import ModelTarget
from pyro_manifold.density.target import Target
from pyro_manifold.manifolds import Constant

CENTREDNESS = "centredness of sites"
"""The name of the site c, ``(chains, elements)``; it contains spaces, so that it is unlikely to be a user's name."""

_MOST_SITES = 32  # more are series written as loops, whose graph would no longer be a loop of equal steps
_ROWS_AT_A_TIME = 1024


def centred(target: ModelTarget, first: Mapping[str, Tensor] | None = None) -> CentredTarget | None:
    """Return the target in coordinates that can be centred; None for a model without a site to centre.

    Models with sites that are summed out, with supports that depend on other sites, or with subsampled data are left as
    they are written, and so are those with more than 32 such sites.

    Args:
        target: the target of a model.
        first: c of sites at which chains begin; 1 for others, the model as written.

    Raises:
        ValueError: for a site in ``first`` that cannot be centred, or another shape.
    """
    found = {} if target.joint is not None or target.is_subsampled else location_scale_sites(target)
    found = found if len(found) <= _MOST_SITES else {}
    for name, value in (first or {}).items():
        if name not in found or value.shape != found[name]:
            shapes = {name: tuple(shape) for name, shape in found.items()}
            raise ValueError(
                f"centredness names '{name}' with the shape {tuple(value.shape)}, but the sites that can be centred "
                f"are {shapes}: pass the tuning of a run of the same model."
            )
    return CentredTarget.of(target, found, first or {}) if found else None


@dataclass
class CentredTarget(Target):
    """The target of a model in coordinates of which some are centred, with the site `CENTREDNESS`.

    Attributes:
        full: the target as the model is written.
        shapes: shapes of the sites that are centred, in the order of their elements in `CENTREDNESS`.
        first: c of sites at which chains begin; 1 for others.
    """

    full: ModelTarget
    shapes: dict[str, torch.Size]
    first: Mapping[str, Tensor] = field(default_factory=dict)
    _functions: dict[Any, Verified] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, full: ModelTarget, shapes: dict[str, torch.Size], first: Mapping[str, Tensor]) -> CentredTarget:
        """Return the target of a model in which these sites are centred."""
        manifolds = {**full.manifolds, CENTREDNESS: Constant()}
        target = cls(full.potential_fn, manifolds, full.transforms, full, shapes, first)
        target.potential_fn = target._potential
        return target

    # ---- the density ----------------------------------------------------------------------------------------------

    def _potential(self, sites: Sites) -> Tensor:
        if CENTREDNESS not in sites:
            return self.full.potential_fn(sites)
        sites, centredness = self._split(sites)
        with _Centring(centredness, self.transforms) as found:
            return self.full.potential_fn(sites) - found.log_factor - found.log_jacobian

    def _split(self, sites: Mapping[str, Tensor]) -> tuple[Sites, Sites]:
        """Return the sites of the model, and the centredness of those that are centred."""
        return _without(sites), self.by_site(sites[CENTREDNESS])

    def by_site(self, elements: Tensor) -> Sites:
        """Return numbers of all elements, ``(..., elements)``, by site."""
        parts = elements.split([shape.numel() for shape in self.shapes.values()], -1)
        leading = elements.shape[:-1]
        return {
            name: part.reshape((*leading, *shape))
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def together(self, of_sites: Mapping[str, Tensor]) -> Tensor:
        """Return numbers by site as those of all elements, ``(..., elements)``: the inverse of `by_site`."""
        each = [of_sites[name].reshape((*self._leading(of_sites, name), -1)) for name in self.shapes]
        return torch.cat(each, -1)

    def _leading(self, sites: Mapping[str, Tensor], name: str) -> torch.Size:
        """Return the dimensions of a site before its own."""
        return sites[name].shape[: sites[name].dim() - len(self.shapes[name])]

    # ---- coordinates ----------------------------------------------------------------------------------------------

    def sites(self, position: Sites) -> Sites:
        """Return the coordinates of the model as written, ``{site: (..., shape)}``, without `CENTREDNESS`."""
        if CENTREDNESS not in position or bool((position[CENTREDNESS] == 1).all()):
            return _without(position)
        return _without(position) | {name: part.x for name, part in self._parts(position).items()}

    def at(self, sites: Sites, centredness: Tensor) -> Sites:
        """Return the position of sites as written in the coordinates of a centredness ``(..., elements)``."""
        c = self.by_site(centredness)
        moved = {
            name: c[name] * loc + (sites[name] - loc) * scale ** (c[name] - 1)
            for name, (loc, scale) in self.locations_and_scales(sites).items()
        }
        return {**sites, **moved, CENTREDNESS: centredness}

    def moved(self, position: Sites, centredness: Tensor) -> Sites:
        """Return a position of chains in the coordinates of another centredness, ``(elements,)``, once."""
        sites = self.sites({name: x.unsqueeze(0) for name, x in position.items()})
        found = self.at(sites, centredness.expand(1, len(position[CENTREDNESS]), -1))
        return {name: x.squeeze(0).contiguous() for name, x in found.items()}

    def locations_and_scales(self, sites: Sites) -> dict[str, tuple[Tensor, Tensor]]:
        """Return location and scale of each element of the sites that are centred, at sites as written."""
        as_written = {**sites, CENTREDNESS: self.together({name: torch.ones_like(sites[name]) for name in self.shapes})}
        return {name: (part.loc, part.scale) for name, part in self._parts(as_written).items()}

    def log_factor(self, position: Sites) -> Tensor:
        """Return the log density of positions beyond that of the model as written, of chains and draws."""
        scales = self.together({name: part.scale for name, part in self._parts(position).items()})
        return ((1 - position[CENTREDNESS]) * scales.log()).sum(-1)

    def values(self, sites: Sites) -> Sites:
        return self.full.values(self.sites(sites))

    def positions(self, values: Sites) -> Sites:
        return self.started(self.full.positions(values))

    def needed(self, names: Sequence[str]) -> list[str]:
        return sorted({*self.full.manifolds, *self.transforms})

    def started(self, sites: Sites) -> Sites:
        if CENTREDNESS in sites:
            return sites
        ones = {name: torch.ones_like(sites[name]) for name in self.shapes}
        first = {name: c.to(ones[name]).expand_as(ones[name]) for name, c in self.first.items()}
        centredness = self.together({**ones, **first})
        return self.at(sites, centredness) if first else {**sites, CENTREDNESS: centredness}

    # ---- the rest of the interface of a target ----------------------------------------------------------------------

    @property
    def log_measure(self) -> float:
        return self.full.log_measure

    @property
    def angles(self) -> tuple[str, ...]:
        return self.full.angles

    @property
    def as_written(self) -> Target:
        return self.full

    @property
    def undifferentiated(self) -> frozenset[str]:
        return frozenset({CENTREDNESS})

    def draw(self) -> Sites:
        found = self.started(self.full.draw())
        return {name: found[name] for name in sorted(found)}

    def check(self, initial_params: Sites) -> None:
        self.full.check(_without(initial_params))

    def not_finite(self) -> dict[str, str | None]:
        return self.full.not_finite()

    def present(self) -> Target:
        full: Any = self.full.present()
        return CentredTarget.of(full, self.shapes, self.first)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_functions": {}}  # graphs are made again

    # ---- functions of one chain, for many ---------------------------------------------------------------------------

    def _parts_of_one(self, position: Sites) -> dict[str, _Part]:
        """Run the model at a position of one chain."""
        others, centredness = self._split(position)
        with poutine.block(), pyro.validation_enabled(False), _Centring(centredness, self.transforms) as found:
            poutine.condition(self.full.program, self.full.values(others))()
        return found.parts

    def _parts(self, position: Sites) -> dict[str, _Part]:
        """Return coordinates, locations and scales of the sites that are centred, of any number of chains and draws.

        For chains alone, whose sites may be needed in each iteration, there is a graph for their number.
        """
        leading = self._leading(position, next(iter(self.shapes)))
        if not leading:
            return self._parts_of_one(position)
        names = sorted(position)
        columns = [position[name].flatten(0, len(leading) - 1) for name in names]

        def flat(*columns: Tensor) -> tuple[Tensor, ...]:
            found = self._parts_of_one(dict(zip(names, columns, strict=True)))
            return tuple(x.clone() for name in self.shapes for x in found[name])

        with torch.no_grad():
            function = self._function(flat, columns, of_these=len(leading) == 1)
            step = len(columns[0]) if len(leading) == 1 else _ROWS_AT_A_TIME
            rows = [function(*[x[first : first + step] for x in columns]) for first in range(0, len(columns[0]), step)]
        found = iter(torch.cat(each) for each in zip(*rows, strict=True))
        return {
            name: _Part(*[next(found).reshape((*leading, *shape)) for _ in _Part._fields])
            for name, shape in self.shapes.items()
        }

    def _function(self, function: FlatFunction, columns: list[Tensor], of_these: bool) -> FlatFunction:
        """Return a function of one row for any number of rows, or for as many as these alone, which is faster."""
        key = len(columns[0]) if of_these else 0, *((x.shape[1:], x.dtype, x.device) for x in columns)
        if key not in self._functions:
            example = columns if of_these else [x[:2] for x in columns]
            self._functions[key] = vectorise(function, example, subject=None, folded=of_these)
        return self._functions[key]


def _without(sites: Mapping[str, Tensor]) -> Sites:
    return {name: x for name, x in sites.items() if name != CENTREDNESS}


class _Part(NamedTuple):
    """A site of a model that is centred.

    Attributes:
        x: its coordinate as written.
        loc: its location.
        scale: its scale.
    """

    x: Tensor
    loc: Tensor
    scale: Tensor


class _Centring(Messenger):
    """Handler that takes the values of some sites, which condition the model, as x'.

    It has to be outside of the handler that conditions the model.

    Attributes:
        parts: coordinate, location and scale of these sites.
        log_factor: sum of (1 - c) log scale.
        log_jacobian: log determinant of the transforms to the support at x, over that at x', which the potential has.
    """

    def __init__(self, centredness: Mapping[str, Tensor], transforms: Mapping[str, Transform]) -> None:
        super().__init__()
        self._centredness, self._transforms = centredness, transforms
        self.parts: dict[str, _Part] = {}
        self.log_factor: Tensor | float = 0.0
        self.log_jacobian: Tensor | float = 0.0

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name not in self._centredness:
            return
        c, to_real = self._centredness[name], self._transforms[name]
        moved = to_real(msg["value"])
        parts = location_and_scale(msg["fn"])
        if parts is None:  # another family in this run of the model
            self.parts[name] = _Part(moved, torch.zeros_like(moved), torch.ones_like(moved))
            return
        loc, scale = parts
        log_factor = (1 - c) * scale.log()
        x = loc + log_factor.exp() * (moved - c * loc)
        self.log_factor = self.log_factor + log_factor.sum()
        value = to_real.inv(x)
        if is_exponential(msg["fn"]):
            # The potential has the Jacobian of the transform at x', where the value is another.
            here, there = (to_real.log_abs_det_jacobian(*pair) for pair in ((value, x), (msg["value"], moved)))
            self.log_jacobian = self.log_jacobian - here.sum() + there.sum()
        self.parts[name], msg["value"] = _Part(x, loc, scale), value
