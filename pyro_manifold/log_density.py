"""From a Pyro model and its arguments to a pure potential energy.

This is the one place where Pyro's handlers meet the samplers on the way in. What leaves it is a `Target`: a
function of plain tensors, and where each of its arguments lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from pyro_manifold.potential import PotentialFunction, Sites

_MAXIMUM_INITIAL_DRAWS = 100


@dataclass
class Target:
    """What a kernel samples from: a potential energy over sites, and where each site lives.

    Attributes:
        potential_fn: ``{site: value}`` of one chain to the scalar potential energy. Manifold sites are
            points on their manifold, all others are unconstrained.
        manifolds: the manifold of each site that has one.
        transforms: for every other site, the map to unconstrained space (as in Pyro).
        draw_trace: runs the model once with values from the initialisation strategy; None for a bare potential.
    """

    potential_fn: PotentialFunction
    manifolds: dict[str, Manifold]
    transforms: dict[str, Transform]
    draw_trace: Callable[[], poutine.Trace] | None = None

    def draw_start(self) -> Sites:
        """Values of all sites of one chain, from the initialisation strategy."""
        assert self.draw_trace is not None
        nodes = self.draw_trace().nodes
        for name in [*self.manifolds, *self.transforms]:
            _check_site(name, nodes)
        start = {name: nodes[name]["value"].detach() for name in self.manifolds}
        start |= {name: transform(nodes[name]["value"]).detach() for name, transform in self.transforms.items()}
        return {name: start[name] for name in sorted(start)}


def target_from_potential(
    potential_fn: PotentialFunction,
    initial_params: Sites | None,
    manifolds: Mapping[str, Manifold | Constraint] | None,
    transforms: Mapping[str, Transform] | None,
) -> Target:
    """A target from a potential function; start and manifolds cannot be guessed, so both must be given.

    Raises:
        ValueError: if one of them is missing, or they do not name the same sites.
    """
    if initial_params is None:
        raise ValueError(
            "potential_fn needs a start: pass MCMC(..., initial_params={site: tensor}), "
            "manifold sites on their manifold and all others unconstrained."
        )
    if manifolds is None:
        raise ValueError(
            "potential_fn does not tell which sites live on a manifold: pass manifolds={'site': Stiefel()}, "
            "or manifolds={} if none does."
        )
    both = sorted(set(manifolds) & set(transforms or {}))
    if both:
        raise ValueError(f"Sites {both} have a manifold and a transform: give each site one of the two.")
    unknown = sorted(set(manifolds) - set(initial_params))
    if unknown:
        raise ValueError(f"manifolds names {unknown}, but initial_params has only {sorted(initial_params)}.")
    return Target(
        potential_fn,
        {name: _as_manifold(name, value) for name, value in manifolds.items()},
        dict(transforms or {}),
    )


def _as_manifold(name: str, value: Manifold | Constraint) -> Manifold:
    """Users may as well give the constraint: it knows its manifold."""
    manifold = value if isinstance(value, Manifold) else manifold_of(value)
    if not isinstance(manifold, Manifold) or isinstance(value, type):
        raise ValueError(f"manifolds['{name}'] is {value!r}, expected a manifold like Stiefel().")
    return manifold


def target_from_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    transforms: Mapping[str, Transform] | None = None,
    max_plate_nesting: int | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
) -> Target:
    """A target from a Pyro model conditioned on its arguments.

    Sites whose support is a manifold keep their values; `pyro.infer.mcmc.util.initialize_model` brings every
    other site to unconstrained space and enumerates discrete sites. ``transforms`` may name any of the sites;
    one that names a manifold site moves that site into its chart.

    Raises:
        NotImplementedError: if a plate subsamples its data.
        ValueError: if an observed value is NaN, or ``transforms`` names a site that the model does not have.
    """
    model = without_validation(model)
    with pyro.validation_enabled(False):
        draw_trace = partial(_draw_trace, model, args, kwargs, init_strategy)
        _check_observations_and_plates(draw_trace())

        def prepare(site_transforms: dict[str, Transform] | None) -> Any:
            return initialize_model(
                model,
                args,
                kwargs,
                transforms=site_transforms,
                max_plate_nesting=max_plate_nesting,
                init_strategy=init_strategy,
                initial_params={},  # starts are found later, for all chains
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
    return Target(potential_fn, manifolds, unconstrained, draw_trace)


class _WithoutValidation(Messenger):
    """Laws check neither values nor parameters, also those that were made outside the model when checks were on.

    Such checks branch on values, so that they cannot be traced, and raise where a trajectory overflows.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        msg["fn"] = _unvalidated(msg["fn"])


def without_validation(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model, with laws that check nothing."""
    wrapped: Callable[..., Any] = _WithoutValidation()(model)
    return wrapped


def _unvalidated(law: Any) -> Any:
    """A copy where needed, for the law may be the user's."""
    parts = {name: part for name, part in vars(law).items() if isinstance(part, torch.distributions.Distribution)}
    replaced = {name: _unvalidated(part) for name, part in parts.items()}
    if not getattr(law, "_validate_args", False) and all(replaced[name] is part for name, part in parts.items()):
        return law
    law = copy(law)
    vars(law).update(replaced, _validate_args=False)
    return law


def _check_transform(name: str, transform: Transform, site: dict[str, Any]) -> None:
    """Points next to a value's coordinates must come back to the support, or the chart would be left unnoticed."""
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


def _draw_trace(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], init_strategy: Callable[..., Any]
) -> poutine.Trace:
    initialised = InitMessenger(partial(_initial_value, init_strategy))(model)
    return poutine.block(poutine.trace(initialised).get_trace)(*args, **kwargs)


def _initial_value(init_strategy: Callable[..., Any], site: dict[str, Any]) -> Tensor:
    """Discrete sites are summed out, so any value of them will do; strategies know none."""
    return site["fn"].sample() if site["fn"].has_enumerate_support else init_strategy(site)


def _check_observations_and_plates(trace: poutine.Trace) -> None:
    for name, site in trace.nodes.items():
        if site["type"] != "sample":
            continue
        subsample_size = getattr(site["fn"], "subsample_size", None)
        if subsample_size is not None and subsample_size < site["fn"].size:
            raise NotImplementedError(
                f"Plate '{name}' draws {subsample_size} of {site['fn'].size} elements at each call, but samplers "
                "need the same density each time: remove subsample_size and condition on all of the data."
            )
        value = site["value"]
        if site["is_observed"] and torch.is_tensor(value) and value.is_floating_point() and value.isnan().any():
            count = int(value.isnan().sum())
            raise ValueError(
                f"Site '{name}' is observed with {count} NaN of {value.numel()} values: "
                "drop them, make them latent, or replace them by any number and mask the site "
                "(a NaN spoils the gradient even under a mask)."
            )


# ---- starts of all chains -----------------------------------------------------------------------------------


def starts(target: Target, chains: int, initial_params: Sites | None) -> Sites:
    """Positions ``{site: (chains, ...)}`` to start from, each manifold site on its manifold.

    Raises:
        ValueError: if given values name other sites than the target, or are off their manifold.
    """
    if initial_params is None:
        draws = [target.draw_start() for _ in range(chains)]
        positions = {name: torch.stack([draw[name] for draw in draws]) for name in draws[0]}
    else:
        if target.draw_trace is not None:
            _check_site_names(initial_params, {*target.manifolds, *target.transforms})
            _check_shapes(initial_params, target.draw_start())
        positions = {name: initial_params[name].detach() for name in sorted(initial_params)}
    _check_membership(target, positions)
    return positions


def finite_starts(
    target: Target, positions: Sites, redraw: bool, potential: Callable[[Sites], tuple[Tensor, Sites]]
) -> Sites:
    """The same positions, drawn again where energy or gradient is not finite.

    Raises:
        ValueError: if no draw is finite, or a given start (``redraw`` False) is not.
    """
    for _ in range(_MAXIMUM_INITIAL_DRAWS):
        energy, gradient = potential(positions)
        finite = torch.isfinite(energy)
        for value in gradient.values():
            finite = finite & torch.isfinite(value).reshape(len(value), -1).all(1)
        failed = (~finite).nonzero().flatten().tolist()
        if not failed:
            return positions
        if not redraw:
            raise ValueError(
                f"{_describe(energy, gradient, failed[0])} at the given initial_params: "
                "check the data for NaN and infinities, and start where the density is positive."
            )
        for chain in failed:
            for name, value in target.draw_start().items():
                positions[name][chain] = value
        _check_membership(target, positions)
    culprits = _not_finite(target)
    where = f"; the log density of {culprits} is not finite there" if culprits else ""
    raise ValueError(
        f"{_describe(energy, gradient, failed[0])} at each of {_MAXIMUM_INITIAL_DRAWS} initial draws{where}: "
        "check the data and the supports, or pass init_strategy or initial_params that start where the density "
        "is positive."
    )


def _check_site_names(initial_params: Sites, sites: set[str]) -> None:
    if set(initial_params) != sites:
        raise ValueError(
            f"initial_params has the sites {sorted(initial_params)}, but the model samples {sorted(sites)}: "
            "give a value for each of them and for no other."
        )


def _check_shapes(initial_params: Sites, start: Sites) -> None:
    for name, value in initial_params.items():
        if value.shape[1:] != start[name].shape or not value.is_floating_point():
            raise ValueError(
                f"Site '{name}': the initial value has shape {tuple(value.shape[1:])} and dtype {value.dtype}, "
                f"expected {tuple(start[name].shape)} and {start[name].dtype}."
            )


def _check_site(name: str, nodes: Any) -> None:
    if name not in nodes:
        raise ValueError(f"Site '{name}' exists only in some runs of the model; its sites must not depend on values.")
    expected, found = nodes[name]["fn"].shape(), nodes[name]["value"].shape
    if expected != found:
        raise ValueError(f"Site '{name}': the initial value has shape {tuple(found)}, expected {tuple(expected)}.")


def _check_membership(target: Target, positions: Sites) -> None:
    for name, manifold in target.manifolds.items():
        value, kind = positions[name], type(manifold).__name__
        event = value.shape[max(value.dim() - manifold.event_dim, 1) :]
        if not manifold.accepts_shape(*event) or not value.is_floating_point():
            raise ValueError(
                f"Site '{name}': the initial value has shape {tuple(value.shape[1:])} and dtype {value.dtype}, "
                f"expected a floating-point tensor whose last dimensions are the shape of a point of {kind}() "
                f"({manifold.shape_in_words})."
            )
        error = float(manifold.membership_error(value).max())
        tolerance = manifold.membership_tolerance(value.dtype)
        if not error <= tolerance:
            raise ValueError(
                f"Site '{name}': the initial value is off the {kind} manifold by {error:.1e}, more than "
                f"{tolerance:.1e} for {value.dtype}: pass {kind}().projection(value) instead."
            )


def _describe(energy: Tensor, gradient: Sites, chain: int) -> str:
    if not torch.isfinite(energy[chain]):
        return f"The potential energy is {float(energy[chain])}"
    names = sorted(name for name, value in gradient.items() if not torch.isfinite(value[chain]).all())
    return f"The gradient of the potential energy with respect to {names} is not finite"


def _not_finite(target: Target) -> list[str]:
    assert target.draw_trace is not None
    trace = target.draw_trace()
    trace.compute_log_prob()
    sites = [(name, site) for name, site in trace.nodes.items() if site["type"] == "sample"]
    return [name for name, site in sites if not torch.isfinite(site["log_prob_sum"])]
