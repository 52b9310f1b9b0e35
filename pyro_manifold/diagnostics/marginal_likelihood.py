"""Likelihood of observations with discrete sites summed out."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer import config_enumerate
from pyro.ops.contract import contract_to_tensor
from pyro.ops.packed import pack
from pyro.ops.rings import LogRing
from torch import Tensor

from pyro_manifold.density import Program, has_data, is_deterministic
from pyro_manifold.diagnostics.observations import are_observations
from pyro_manifold.diagnostics.replay import Node, Values

Symbol = str
"""A letter for a plate or for a summed-out site, as in Pyro's packed tensors."""


class Factor(NamedTuple):
    """Log density of a site: masked, not scaled, its dimensions named by letters.

    Attributes:
        log_prob: a packed tensor, without dimensions of size 1.
        plates: the plates that the site is in, each with its letter, the leftmost dimension first.
        observed: whether the site is an observation.
        log_masked: a packed tensor, the logarithm of whether an element of the plates is masked.
    """

    log_prob: Tensor
    plates: dict[Symbol, Any]
    observed: bool
    log_masked: Tensor

    @property
    def assignments(self) -> set[Symbol]:
        """Return the summed-out sites on which the factor depends."""
        return set(self.log_prob._pyro_dims) - set(self.plates)  # type: ignore[attr-defined]


class Unit(NamedTuple):
    """Sites that are connected by summed-out sites, so that their observations have one likelihood together.

    Attributes:
        observed: names of the observed sites.
        others: names of all other sites.
        assignments: the summed-out sites that connect them.
        plates: the plates that contain all of them, in the format of `Factor`.
    """

    observed: list[str]
    others: list[str]
    assignments: set[Symbol]
    plates: dict[Symbol, Any]


class MarginalLikelihood:
    r"""Log likelihood of each observation under one draw, with discrete sites summed out.

    A summed-out site z connects all sites that depend on it. Within the plates that contain all of these, such as the
    rows i of a mixture and its assignments, the sites of element i have the likelihood

    $$ \log p(y_i \mid \theta) = \log \sum_{z_i} p(z_i, y_i, \theta_i) - \log \sum_{z_i} p(z_i, \theta_i), $$

    $\theta_i$ the continuous sites that depend on $z_i$, if there are any. Several observed sites with one
    assignment therefore have one likelihood, under their names joined by commas, and observations in a further plate
    within a row have one for the row. If there is no such plate, as for a hidden Markov chain or one discrete site
    for all data, the likelihood does not factorise over observations: they are left out, with a warning.

    Args:
        program: the model with its arguments.
        values: ``{site: value}`` of one draw.
        summed_out: names of the discrete sites.

    Attributes:
        observed: ``{names of observed sites: (plates, ...)}``, False where all that a likelihood is of is masked.
    """

    def __init__(self, program: Program, values: Values, summed_out: list[str]) -> None:
        self._program = program
        with torch.no_grad(), pyro.validation_enabled(False):
            self._first_dimension = -1 - _plate_nesting(program.trace(values))
            factors = self._factors(values)
        units = [unit for unit in _units(factors) if unit.observed]
        self._units = [unit for unit in units if not _merges_observations(unit, factors)]
        self.observed = {", ".join(unit.observed): _are_observed(unit, factors) for unit in self._units}
        left_out = [name for unit in units if unit not in self._units for name in unit.observed]
        if left_out:
            warnings.warn(
                f"log_likelihood of {left_out} is left out, since its likelihood does not factorise over observations, "
                f"which share {summed_out}, summed out; pass log_likelihood=False to silence this.",
                stacklevel=5,
            )

    def __call__(self, values: Values) -> Values:
        """Return the log likelihoods, ``{names of observed sites: (plates, ...)}``."""
        factors = self._factors(values)
        return {", ".join(unit.observed): _log_likelihood(unit, factors) for unit in self._units}

    def _factors(self, values: Values) -> dict[str, Factor]:
        dimension = self._first_dimension
        enumerated = self._program.handled(lambda model: poutine.enum(config_enumerate(model), dimension))
        trace = enumerated.trace(values)
        trace.compute_log_prob()
        trace.symbolize_dims()
        return {
            name: self._factor(site, trace.plate_to_symbol, has_data(site) and name not in values)
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not poutine.util.site_is_subsample(site) and not is_deterministic(site)
        }

    def _factor(self, site: Node, plate_to_symbol: Mapping[str, Symbol], observed: bool) -> Factor:
        log_prob = scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])
        masked = ~are_observations(site)
        if observed and masked.dim() >= -self._first_dimension:  # for all values of the sites that are summed out
            masked = masked.flatten(0, self._first_dimension).all(0)
        frames = sorted((frame for frame in site["cond_indep_stack"] if frame.vectorized), key=lambda frame: frame.dim)
        plates = {plate_to_symbol[frame.name]: frame for frame in frames}
        symbols = site["infer"]["_dim_to_symbol"]
        return Factor(pack(log_prob, symbols), plates, observed, pack(masked.to(log_prob).log(), symbols))


def _plate_nesting(trace: poutine.Trace) -> int:
    frames = [frame for site in trace.nodes.values() if site["type"] == "sample" for frame in site["cond_indep_stack"]]
    return max((-frame.dim for frame in frames if frame.vectorized), default=0)


def _units(factors: Mapping[str, Factor]) -> list[Unit]:
    """Group sites that share summed-out sites, directly or through others."""
    groups: list[tuple[set[Symbol], list[str]]] = []
    for name, factor in factors.items():
        assignments, names = factor.assignments, [name]
        joined = [group for group in groups if group[0] & assignments]
        groups = [group for group in groups if not group[0] & assignments]
        for their_assignments, their_names in joined:
            assignments, names = assignments | their_assignments, [*their_names, *names]
        groups.append((assignments, names))
    return [_unit(assignments, names, factors) for assignments, names in groups]


def _unit(assignments: set[Symbol], names: list[str], factors: Mapping[str, Factor]) -> Unit:
    first, *rest = (factors[name].plates for name in names)
    plates = {symbol: frame for symbol, frame in first.items() if all(symbol in other for other in rest)}
    observed = [name for name in factors if name in names and factors[name].observed]
    others = [name for name in factors if name in names and not factors[name].observed]
    return Unit(observed, others, assignments, plates)


def _merges_observations(unit: Unit, factors: Mapping[str, Factor]) -> bool:
    """Return whether several observations of a unit have only a joint likelihood."""
    several = len(unit.observed) > 1 or any(factors[name].plates for name in unit.observed)
    return several and not unit.plates


def _log_likelihood(unit: Unit, factors: Mapping[str, Factor]) -> Tensor:
    every = _summed([factors[name] for name in [*unit.observed, *unit.others]], unit)
    return every - _summed([factors[name] for name in unit.others], unit) if unit.others else every


def _are_observed(unit: Unit, factors: Mapping[str, Factor]) -> Tensor:
    """Return for which elements of the unit's plates any observation is not masked."""
    masks = [factors[name]._replace(log_prob=factors[name].log_masked) for name in unit.observed]
    return _summed(masks, unit._replace(assignments=set())).isneginf()


def _summed(factors: list[Factor], unit: Unit) -> Tensor:
    """Return the log of the product of densities, summed over assignments, for each element of the unit's plates."""
    sizes = {symbol: frame.size for factor in factors for symbol, frame in factor.plates.items()}
    tree: OrderedDict[frozenset[Symbol], list[Tensor]] = OrderedDict()
    for factor in factors:
        tree.setdefault(frozenset(factor.plates), []).append(factor.log_prob)
    ring = LogRing(dim_to_size=sizes)
    total = contract_to_tensor(tree, set(unit.assignments), target_ordinal=frozenset(unit.plates), ring=ring)
    return total.permute([total._pyro_dims.index(symbol) for symbol in unit.plates])
