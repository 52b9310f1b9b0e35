"""From a Pyro model and its arguments to a pure potential energy over chains.

This is the one place where Pyro's handlers meet the samplers on the way in. What leaves it is a function of
plain tensors: `BatchedPotential` maps ``{site: (chains, ...)}`` to energies and gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.transforms import identity_transform
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_manifold.distributions.constraints import manifold_of
from pyro_manifold.manifolds import Manifold

Sites = dict[str, Tensor]
PotentialFunction = Callable[[Sites], Tensor]

FactorisationError = torch.linalg.LinAlgError  # type: ignore[attr-defined]

_MAXIMUM_INITIAL_DRAWS = 100


@dataclass
class Target:
    """What a kernel samples from: a potential energy over sites, and where each site lives.

    Attributes:
        potential_fn: ``{site: value}`` of one chain to the scalar potential energy. Manifold sites are
            points on their manifold, all others are unconstrained.
        manifolds: the manifold of each site that has one.
        transforms: for every other site, the map to unconstrained space (as in Pyro).
        initial_params: a start with finite energy and gradient.
    """

    potential_fn: PotentialFunction
    manifolds: dict[str, Manifold]
    transforms: dict[str, Transform]
    initial_params: Sites


def target_from_potential(
    potential_fn: PotentialFunction,
    initial_params: Sites | None,
    manifolds: Mapping[str, Manifold] | None,
    transforms: Mapping[str, Transform] | None,
) -> Target:
    """A target from a potential function; start and manifolds cannot be guessed, so both must be given.

    Raises:
        ValueError: if one of them is missing, or the start is off its manifold or has no finite energy.
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
    unknown = sorted(set(manifolds) - set(initial_params))
    if unknown:
        raise ValueError(f"manifolds names {unknown}, but initial_params has only {sorted(initial_params)}.")
    target = Target(potential_fn, dict(manifolds), dict(transforms or {}), dict(initial_params))
    _check_start(target)
    return target


def target_from_model(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    transforms: Mapping[str, Transform] | None = None,
    max_plate_nesting: int | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    initial_params: Sites | None = None,
) -> Target:
    """A target from a Pyro model conditioned on its arguments.

    Sites whose support is a manifold keep their values; `pyro.infer.mcmc.util.initialize_model` brings every
    other site to unconstrained space and enumerates discrete sites. ``transforms`` may name any of the sites;
    one that names a manifold site moves that site into its chart.

    Raises:
        NotImplementedError: if a plate subsamples its data.
        ValueError: if an observed value is NaN, or no start with finite energy and gradient is found.
    """
    with pyro.validation_enabled(False):
        _check_observations_and_plates(poutine.block(poutine.trace(model).get_trace)(*args, **kwargs))

        def prepare(site_transforms: dict[str, Transform] | None) -> Any:
            return initialize_model(
                model,
                args,
                kwargs,
                transforms=site_transforms,
                max_plate_nesting=max_plate_nesting,
                init_strategy=init_strategy,
                initial_params={},
            )

        # Pyro takes transforms for all sites or for none, so a first pass asks which sites there are.
        _, _, automatic, prototype = prepare(None)
        chosen = dict(transforms or {})
        manifolds = {}
        for name in automatic:
            manifold = manifold_of(prototype.nodes[name]["fn"].support)
            if manifold is not None and name not in chosen:
                manifolds[name] = manifold
                chosen[name] = identity_transform
        _, potential_fn, site_transforms, prototype = prepare({**automatic, **chosen})
        unconstrained = {name: t for name, t in site_transforms.items() if name not in manifolds}
        target = Target(potential_fn, manifolds, unconstrained, {})
        if initial_params is not None:
            _check_site_names(initial_params, site_transforms)
            target.initial_params = dict(initial_params)
            _check_start(target)
        else:
            draw = poutine.block(poutine.trace(InitMessenger(init_strategy)(model)).get_trace)
            _find_start(target, site_transforms, prototype, lambda: draw(*args, **kwargs))
    return target


def _check_observations_and_plates(trace: poutine.Trace) -> None:
    for name, site in trace.nodes.items():
        if site["type"] != "sample":
            continue
        subsample_size = getattr(site["fn"], "subsample_size", None)
        if subsample_size is not None and subsample_size < site["fn"].size:
            raise NotImplementedError(
                f"Plate '{name}' draws {subsample_size} of {site['fn'].size} elements at each call, but a Metropolis "
                "test needs the same density each time: remove subsample_size and condition on all of the data."
            )
        value = site["value"]
        if site["is_observed"] and torch.is_tensor(value) and value.is_floating_point() and value.isnan().any():
            count = int(value.isnan().sum())
            raise ValueError(
                f"Site '{name}' is observed with {count} NaN of {value.numel()} values: "
                "drop them, mask them with pyro.poutine.mask, or make them latent."
            )


def _check_site_names(initial_params: Sites, sites: Mapping[str, Transform]) -> None:
    if set(initial_params) != set(sites):
        raise ValueError(
            f"initial_params has the sites {sorted(initial_params)}, but the model samples {sorted(sites)}: "
            "give a value for each of them and for no other."
        )


def _check_membership(target: Target) -> None:
    for name, manifold in target.manifolds.items():
        value = target.initial_params[name]
        kind = type(manifold).__name__
        event = value.shape[max(value.dim() - manifold.event_dim, 0) :]
        if not manifold.accepts_shape(*event) or not value.is_floating_point():
            raise ValueError(
                f"Site '{name}': the initial value has shape {tuple(value.shape)} and dtype {value.dtype}, expected a "
                f"floating-point tensor whose last dimensions are the shape of a point of {kind}() (n×p with n ≥ p)."
            )
        error = float(manifold.membership_error(value).max())
        tolerance = manifold.membership_tolerance(value.dtype)
        if not error <= tolerance:
            raise ValueError(
                f"Site '{name}': the initial value is off the {kind} manifold by {error:.1e}, more than "
                f"{tolerance:.1e} for {value.dtype}: pass {kind}().projection(value) instead."
            )


def _check_start(target: Target) -> None:
    _check_membership(target)
    energy, gradient = value_and_gradient(target.potential_fn, target.initial_params)
    problem = _describe_problem(energy, gradient)
    if problem:
        raise ValueError(
            f"{problem} at the given initial_params: check the data for NaN and infinities, "
            "and start where the density is positive."
        )


def _describe_problem(energy: Tensor, gradient: Sites) -> str | None:
    if energy.dim():
        return f"The potential energy has shape {tuple(energy.shape)} instead of being a scalar"
    if not torch.isfinite(energy):
        return f"The potential energy is {float(energy)}"
    for name, value in gradient.items():
        if not torch.isfinite(value).all():
            return f"The gradient of the potential energy with respect to site '{name}' is not finite"
    return None


def _find_start(
    target: Target,
    transforms: Mapping[str, Transform],
    prototype: poutine.Trace,
    draw: Callable[[], poutine.Trace],
) -> None:
    """Draw from the initialisation strategy until energy and gradient are finite."""
    trace, problem = prototype, None
    for _ in range(_MAXIMUM_INITIAL_DRAWS):
        values = {name: trace.nodes[name]["value"].detach() for name in transforms}
        target.initial_params = {name: transforms[name](value).detach() for name, value in values.items()}
        _check_membership(target)
        problem = _describe_problem(*value_and_gradient(target.potential_fn, target.initial_params))
        if problem is None:
            return
        trace = draw()
    trace.compute_log_prob()
    culprits = [
        name
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not torch.isfinite(site["log_prob_sum"])
    ]
    where = f"; the log density of {culprits} is not finite there" if culprits else ""
    raise ValueError(
        f"{problem} at each of {_MAXIMUM_INITIAL_DRAWS} initial draws{where}: check the data and the supports, "
        "or pass init_strategy or initial_params that start where the density is positive."
    )


def value_and_gradient(potential_fn: PotentialFunction, sites: Sites) -> tuple[Tensor, Sites]:
    """Potential energy and Euclidean gradient of one chain; a failed factorisation gives NaN, as in Pyro."""
    leaves = {name: value.detach().requires_grad_() for name, value in sites.items()}
    zeros = {name: torch.zeros_like(value) for name, value in sites.items()}
    if not sites:
        return torch.as_tensor(potential_fn(leaves)).detach(), zeros
    try:
        with torch.enable_grad():
            energy = potential_fn(leaves)
            if not torch.is_tensor(energy) or not energy.requires_grad:
                return torch.as_tensor(energy).to(next(iter(zeros.values()))), zeros
            gradients = torch.autograd.grad(energy.sum(), list(leaves.values()), allow_unused=True)
    except FactorisationError:
        return next(iter(leaves.values())).new_tensor(torch.nan), zeros
    gradient = {
        name: zeros[name] if value is None else value.detach() for name, value in zip(leaves, gradients, strict=True)
    }
    return energy.detach(), gradient


class BatchedPotential:
    """Potential energy and gradient of many chains: ``{site: (chains, ...)}`` to ``(chains,)`` and gradients.

    Args:
        potential_fn: potential energy of one chain.
        example: values of one chain, for shapes, dtypes and devices.
        jit_compile: trace value and gradient of one chain, vectorise the traced graph over chains and compile
            it. The graph is compared with the model itself at two other points before it is trusted; if
            it differs or cannot be made, a warning says so and the model is evaluated chain by chain.
        compile_options: keyword arguments for `torch.compile`.
        warn: whether to say so when compiling fails.
    """

    def __init__(
        self,
        potential_fn: PotentialFunction,
        example: Sites,
        *,
        jit_compile: bool = False,
        compile_options: dict[str, Any] | None = None,
        warn: bool = True,
    ) -> None:
        self._potential_fn = potential_fn
        self._compiled = _compile(potential_fn, example, compile_options or {}, warn) if jit_compile else None

    def __call__(self, sites: Sites) -> tuple[Tensor, Sites]:
        if self._compiled is not None:
            try:
                return self._compiled(sites)
            except FactorisationError:
                pass  # some chain failed to factorise: find out which, chain by chain
        return self._chain_by_chain(sites)

    def _chain_by_chain(self, sites: Sites) -> tuple[Tensor, Sites]:
        chains = len(next(iter(sites.values())))
        results = [
            value_and_gradient(self._potential_fn, {name: value[chain] for name, value in sites.items()})
            for chain in range(chains)
        ]
        gradient = {name: torch.stack([gradient[name] for _, gradient in results]) for name in sites}
        return torch.stack([energy for energy, _ in results]), gradient


BatchedFunction = Callable[[Sites], tuple[Tensor, Sites]]


def _compile(
    potential_fn: PotentialFunction, example: Sites, options: dict[str, Any], warn: bool
) -> BatchedFunction | None:
    names = list(example)

    def one_chain(*values: Tensor) -> tuple[Tensor, ...]:
        energy, gradient = value_and_gradient(potential_fn, dict(zip(names, values, strict=True)))
        return energy, *gradient.values()

    try:
        # Distinct storage for each input: make_fx merges inputs that are the same tensor object.
        graph = make_fx(one_chain)(*[value.clone() for value in example.values()])
        batched = torch.compile(torch.vmap(graph), **options)

        def compiled(sites: Sites) -> tuple[Tensor, Sites]:
            energy, *gradient = batched(*[sites[name] for name in names])
            return energy, dict(zip(names, gradient, strict=True))

        _check_agreement(compiled, potential_fn, example)
    except Exception as error:  # a compiler, a tracer and the model can fail in any way; sampling goes on without
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if warn:
            warnings.warn(
                f"jit_compile=True had no effect, the model is evaluated without compiling: {reason[0]}", stacklevel=2
            )
        return None
    return compiled


def _check_agreement(compiled: BatchedFunction, potential_fn: PotentialFunction, example: Sites) -> None:
    """Compare with the model at points that the trace has not seen: a branch on values would be frozen."""
    for scale in (0.01, 0.3):
        sites = {name: value + scale * torch.randn_like(value) for name, value in example.items()}
        energy, gradient = value_and_gradient(potential_fn, sites)
        fast_energy, fast_gradient = compiled({name: value.unsqueeze(0) for name, value in sites.items()})
        pairs = [(energy, fast_energy[0])] + [(gradient[name], fast_gradient[name][0]) for name in sites]
        for expected, found in pairs:
            tolerance = float(torch.finfo(expected.dtype).eps) ** 0.5
            if not torch.allclose(expected, found, rtol=tolerance, atol=tolerance, equal_nan=True):
                raise ValueError("the traced density differs from the model's; does it branch on the values of sites?")
