"""From a Pyro model and its arguments to a pure potential energy.

This is the one place where Pyro's handlers meet the samplers on the way in. What leaves it is a `Target`: a
function of plain tensors, and where each of its arguments lives. The model's arguments go no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import initialize_model
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint
from torch.distributions.transforms import identity_transform

from pyro_manifold.distributions.constraints import manifold_of
from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import Batch, PotentialFunction, Sites
from pyro_manifold.target.minibatch import Minibatch, MinibatchOf, Subsample, subsampled_plates, with_subsample

Program = Callable[[], Any]
"""A Pyro model with its arguments."""


@dataclass
class Target:
    """What a kernel samples from: a potential energy over sites, and where each site lives.

    Attributes:
        potential_fn: ``{site: value}`` of one chain to the scalar potential energy, minus the log density. Manifold
            sites are points on their manifold, all others are unconstrained. Distributions in it check nothing:
            trajectories may leave the support while they diverge, which is for the Metropolis test to judge.
        manifolds: the manifold of each site that has one.
        transforms: for every other site, the map to unconstrained space (as in Pyro).
    """

    potential_fn: PotentialFunction
    manifolds: dict[str, Manifold]
    transforms: dict[str, Transform]

    def values(self, sites: Sites) -> Sites:
        """Sites as the model has them: those that are unconstrained here, on their support."""
        return {name: self.transforms[name].inv(x) if name in self.transforms else x for name, x in sites.items()}

    def positions(self, values: Sites) -> Sites:
        """The other way: sites as chains have them, from values that the model has, of continuous sites."""
        moved = {name: values[name] for name in self.manifolds}
        return moved | {name: transform(values[name]) for name, transform in self.transforms.items()}

    def draw(self) -> Sites:
        """Initial values of all sites of one chain.

        Raises:
            ValueError: always, for a bare potential does not tell.
        """
        raise ValueError(
            "potential_fn needs a start: pass MCMC(..., initial_params={site: tensor}), "
            "manifold sites on their manifold and all others unconstrained."
        )

    def check(self, initial_params: Sites) -> None:
        """Raise a sentence for given initial values that cannot be those of the target."""

    def not_finite(self) -> list[str]:
        """Sites whose log density is not finite at a draw of initial values."""
        return []


@dataclass
class ModelTarget(Target):
    """The target of a Pyro model.

    Attributes:
        program: the model with its arguments.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        minibatch_of: the density on a part of the data, if the model draws one; ``potential_fn`` then has a first part.
        loader: where the model's arguments come from, if they come in batches.
    """

    program: Program
    init_strategy: Callable[..., Any]
    minibatch_of: MinibatchOf | None = None
    loader: Iterable[Any] | None = None

    def draw(self) -> Sites:
        """Initial values of all sites of one chain, from the initialisation strategy."""
        nodes = _initial_trace(self.program, self.init_strategy).nodes
        for name in [*self.manifolds, *self.transforms]:
            _check_site(name, nodes)
        values = self.positions({name: nodes[name]["value"].detach() for name in [*self.manifolds, *self.transforms]})
        return {name: values[name] for name in sorted(values)}

    def check(self, initial_params: Sites) -> None:
        sites = sorted({*self.manifolds, *self.transforms})
        if sorted(initial_params) != sites:
            raise ValueError(
                f"initial_params has the sites {sorted(initial_params)}, but the model samples {sites}: "
                "give a value for each of them and for no other."
            )
        drawn = self.draw()
        for name, value in initial_params.items():
            expected = drawn[name]
            if value.shape[1:] != expected.shape or torch.promote_types(value.dtype, expected.dtype) != value.dtype:
                raise ValueError(
                    f"Site '{name}': the initial value has shape {tuple(value.shape[1:])} and dtype {value.dtype}, "
                    f"expected {tuple(expected.shape)} and {expected.dtype}, "
                    f"{'on its manifold' if name in self.manifolds else 'in unconstrained space'}; a single chain's "
                    "have no leading dimension of chains."
                )

    def not_finite(self) -> list[str]:
        trace = _initial_trace(self.program, self.init_strategy)
        with pyro.validation_enabled(False):
            trace.compute_log_prob()
        sites = [(name, site) for name, site in trace.nodes.items() if site["type"] == "sample"]
        return [name for name, site in sites if not torch.isfinite(site["log_prob_sum"])]


def target_from_potential(
    potential_fn: PotentialFunction,
    initial_params: Sites | None,
    manifolds: Mapping[str, Manifold | Constraint] | None,
    transforms: Mapping[str, Transform] | None,
) -> Target:
    """A target from a potential function; initial values and manifolds cannot be guessed, so both must be given.

    Raises:
        ValueError: if one of them is missing, or they do not name the same sites.
    """
    target = Target(partial(_unchecked, potential_fn), {}, dict(transforms or {}))
    given = target.draw() if initial_params is None else initial_params
    if manifolds is None:
        raise ValueError(
            "potential_fn does not tell which sites live on a manifold: pass manifolds={'site': Stiefel()}, "
            "or manifolds={} if none does."
        )
    both = sorted(set(manifolds) & set(target.transforms))
    if both:
        raise ValueError(f"Sites {both} have a manifold and a transform: give each site one of the two.")
    unknown = sorted(set(manifolds) - set(given))
    if unknown:
        raise ValueError(f"manifolds names {unknown}, but initial_params has only {sorted(given)}.")
    target.manifolds = {name: _as_manifold(name, value) for name, value in manifolds.items()}
    return target


def _unchecked(potential_fn: PotentialFunction, sites: Sites) -> Tensor:
    """The potential energy, with Pyro's and torch's validation of distributions off."""
    with pyro.validation_enabled(False):
        return potential_fn(sites)


def _as_manifold(name: str, value: Manifold | Constraint) -> Manifold:
    """Users may as well give the constraint: it knows its manifold."""
    manifold = value if isinstance(value, Manifold) else manifold_of(value)
    if not isinstance(manifold, Manifold) or isinstance(value, type):
        raise ValueError(f"manifolds['{name}'] is {value!r}, expected a manifold like Stiefel().")
    return manifold


def target_from_model(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    transforms: Mapping[str, Transform] | None = None,
    max_plate_nesting: int | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    subsample: bool = False,
) -> ModelTarget:
    """A target from a Pyro model conditioned on its arguments.

    Sites whose support is a manifold keep their values; `pyro.infer.mcmc.util.initialize_model` brings every
    other site to unconstrained space and enumerates discrete sites. ``transforms`` may name any of the sites;
    one that names a manifold site moves that site into its chart, a smooth map from the manifold to unconstrained
    space.

    Raises:
        NotImplementedError: if a plate subsamples its data.
        ValueError: if an observed value is NaN, or ``transforms`` names a site that the model does not have.
    """
    program = partial(_WithoutValidation()(model), *args, **(kwargs or {}))
    trace = _initial_trace(program, init_strategy)
    _check_observations(trace)
    plates = subsampled_plates(trace)
    if plates and not subsample:
        name, (size, drawn) = next(iter(plates.items()))
        raise NotImplementedError(
            f"Plate '{name}' draws {drawn} of {size} elements at each call, but samplers need the same density each "
            "time: remove subsample_size and condition on all of the data, or take OSGHMC, which is for minibatches."
        )
    first = {name: torch.arange(drawn) for name, (_, drawn) in plates.items()}
    if plates:
        program = Subsample(first)(program)

    def prepare(site_transforms: dict[str, Transform] | None) -> Any:
        with pyro.validation_enabled(False):
            return initialize_model(
                program,
                transforms=site_transforms,
                max_plate_nesting=max_plate_nesting,
                init_strategy=init_strategy,
                initial_params={},  # initial values are found later, for all chains
            )

    # Pyro takes transforms for all sites or for none, so a first pass asks which sites there are.
    _, _, automatic, prototype = prepare(None)
    chosen = dict(transforms or {})
    unknown = sorted(set(chosen) - set(automatic))
    if unknown:
        raise ValueError(f"transforms names {unknown}, but the model's sites are {sorted(automatic)}.")
    manifolds = {}
    for name in automatic:
        manifold = manifold_of(prototype.nodes[name]["fn"].support)
        if manifold is not None and name not in chosen:
            manifolds[name] = manifold
            chosen[name] = identity_transform
    _, potential_fn, site_transforms, _ = prepare({**automatic, **chosen})
    unconstrained = {name: t for name, t in site_transforms.items() if name not in manifolds}
    for name in transforms or {}:
        _check_transform(name, site_transforms[name], prototype.nodes[name])
    potential_fn = partial(_unchecked, potential_fn)
    minibatch_of = partial(_same, Minibatch(with_subsample(potential_fn), plates)) if plates else None
    return ModelTarget(potential_fn, manifolds, unconstrained, program, init_strategy, minibatch_of)


def _same(minibatch: Minibatch, _: Batch) -> Minibatch:
    return minibatch


class _WithoutValidation(Messenger):
    """Distributions check neither values nor parameters, also those that were made outside the model with checks on.

    Such checks branch on values, so that they cannot be traced, and raise where a trajectory overflows.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        msg["fn"] = _unvalidated(msg["fn"])


def _unvalidated(distribution: Any) -> Any:
    """A copy where needed, for the distribution may be the user's."""
    parts = {
        name: part for name, part in vars(distribution).items() if isinstance(part, torch.distributions.Distribution)
    }
    replaced = {name: _unvalidated(part) for name, part in parts.items()}
    changed = any(replaced[name] is not part for name, part in parts.items())
    if not changed and not getattr(distribution, "_validate_args", False):
        return distribution
    distribution = copy(distribution)
    vars(distribution).update(replaced, _validate_args=False)
    return distribution


def _check_transform(name: str, transform: Transform, site: dict[str, Any]) -> None:
    """Points next to a value's coordinates must come back to the support, or the transform would be left unnoticed."""
    problem = None
    try:
        coordinates = transform(site["value"])
        moved = transform.inv(coordinates + 0.1 * torch.randn_like(coordinates))
        if moved.shape != site["value"].shape or not site["fn"].support.check(moved).all():
            problem = f"leads back to points outside {site['fn'].support}"
    except Exception as error:  # a transform of the wrong kind can fail in any way
        problem = f"fails ({error})"
    if problem:
        raise ValueError(
            f"transforms['{name}'] {problem}; expected a map from the support to unconstrained space, such as "
            "biject_to(support).inv."
        )


def _initial_trace(program: Program, init_strategy: Callable[..., Any]) -> poutine.Trace:
    """One run of the model with values from the initialisation strategy."""
    initialised = InitMessenger(partial(_initial_value, init_strategy))(program)
    with pyro.validation_enabled(False):
        return poutine.block(poutine.trace(initialised).get_trace)()


def _initial_value(init_strategy: Callable[..., Any], site: dict[str, Any]) -> Tensor:
    """Discrete sites are summed out, so any value of them will do; strategies know none."""
    return site["fn"].sample() if site["fn"].has_enumerate_support else init_strategy(site)


def _check_observations(trace: poutine.Trace) -> None:
    for name, site in trace.nodes.items():
        if site["type"] != "sample":
            continue
        value = site["value"]
        data = site["is_observed"] and not site["infer"].get("_deterministic")
        if data and torch.is_tensor(value) and value.is_floating_point() and value.isnan().any():
            count = int(value.isnan().sum())
            raise ValueError(
                f"Site '{name}' is observed with {count} NaN of {value.numel()} values: "
                "drop them, make them latent, or replace them by any number and mask the site "
                "(a NaN spoils the gradient even under a mask)."
            )


def _check_site(name: str, nodes: Any) -> None:
    if name not in nodes:
        raise ValueError(f"Site '{name}' exists only in some runs of the model; its sites must not depend on values.")
    expected, found = nodes[name]["fn"].shape(), nodes[name]["value"].shape
    if expected != found:
        raise ValueError(f"Site '{name}': the initial value has shape {tuple(found)}, expected {tuple(expected)}.")
