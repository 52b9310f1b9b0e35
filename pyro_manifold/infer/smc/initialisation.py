"""Initialisation of SMC and replica exchange: prior and posterior of a model, and particles with finite densities."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.compiled import FactorisationError
from pyro_manifold.density import (
    PERIODIC,
    BatchedDensity,
    ModelTarget,
    NoFiniteStartError,
    Program,
    Sites,
    Target,
    TemperedTarget,
    arguments_by_name,
    explained,
    innermost,
    likelihood_sites,
)
from pyro_manifold.distributions import GrassmannLangevin, MatrixBingham, MatrixBinghamVonMisesFisher
from pyro_manifold.infer.mcmc.transitions import Problem

_DRAWS = 64
_UNNORMALISED = (GrassmannLangevin, MatrixBingham, MatrixBinghamVonMisesFisher, *PERIODIC)


def posterior_of(program: Program, owner: str) -> ModelTarget:
    """Return the target of a model whose prior can be sampled.

    Args:
        program: the model with its arguments.
        owner: name of the method in error messages.

    Raises:
        ValueError: if the prior of a site is improper, masked or scaled, or no site is continuous.
    """
    with explained(arguments_by_name(program.model, program.args, program.kwargs)):
        check_prior(program, owner)
    return with_continuous_sites(program.target, owner)


def with_continuous_sites(target: ModelTarget, owner: str) -> ModelTarget:
    """Return the target; raise an error if it has no continuous site.

    Raises:
        ValueError: if there is none.
    """
    if not {*target.manifolds, *target.transforms}:
        raise ValueError(f"{owner}: the model has no continuous site, expected at least one.")
    return target


def likelihood_terms(full: ModelTarget, prior_factors: Sequence[str], owner: str) -> list[str]:
    """Return the observed sites and factors of a model that do not belong to its prior.

    Raises:
        ValueError: if there is none.
    """
    found = sorted(set(likelihood_sites(full.program)) - set(prior_factors))
    if not found:
        raise ValueError(f"{owner}: the model has no likelihood: add an observed site (obs=) or a pyro.factor.")
    return found


def problem_with_finite_starts(
    target: TemperedTarget,
    base: Target,
    full: Target,
    chains: int,
    batched: Callable[[Target, Sites], BatchedDensity],
    owner: str,
) -> Problem:
    """Return the problem of a tempered target, whose initial values are draws with finite density.

    Args:
        target: tempered target between ``base`` and ``full``.
        base: initial distribution, which is sampled.
        full: final target; its log density may be -inf at draws where the likelihood is zero.
        chains: number of chains.
        batched: see `Problem.build`.
        owner: name of the method in error messages.

    Raises:
        ValueError: if the log density is NaN or +inf at a draw, or finite at hardly any.
    """
    try:
        problem = Problem.build(target, chains, None, batched=batched)
    except NoFiniteStartError:
        refuse_likelihood(base.draw, full, target.drawn, owner)
    if target.drawn > chains:
        check_likelihood(base.draw, full, owner)
    return problem


def check_prior(program: Callable[[], Any], owner: str) -> None:
    """Raise an error for a site whose prior is improper or scaled, with the name ``owner`` of the method.

    Raises:
        ValueError: with the name of the site.
    """
    with poutine.block(), pyro.validation_enabled(False), _RefusesImproper(owner):
        program()


def warn_if_improper(program: Callable[[], Any], owner: str) -> None:
    """Warn of improper priors, under which the evidence is that of an arbitrary unit of the prior.

    Args:
        program: a model of which all sites can be drawn, with its arguments.
        owner: name of the method in the warning.
    """
    with poutine.block(), pyro.validation_enabled(False), torch.random.fork_rng(devices=[]):
        nodes = poutine.trace(program).get_trace().nodes
    latent = [name for name, site in nodes.items() if site["type"] == "sample" and not site["is_observed"]]
    improper = [name for name in latent if _masks(nodes[name]["mask"]) or _is_improper(nodes[name]["fn"])]
    if improper:
        warnings.warn(
            f"{owner}: the prior of {improper} is improper, so that log_evidence has no meaning and cannot be compared "
            "with that of another model; the draws are not affected.",
            stacklevel=4,
        )


class _RefusesImproper(Messenger):
    """Effect handler that checks each site before it is sampled, which fails for improper priors."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"]:
            return
        if _masks(msg["mask"]) or _is_improper(msg["fn"]):
            also = ' or SMC(init="modes")' if self._owner == "SMC" else ""
            raise ValueError(
                f"{self._owner}: site '{msg['name']}' has an improper prior, for which the evidence is not defined: "
                f"use a distribution that can be sampled and is not masked, or MCMC without tempering{also}."
            )
        if bool((torch.as_tensor(msg["scale"]) != 1).any()):
            raise ValueError(
                f"{self._owner}: the prior of site '{msg['name']}' is scaled, so that draws from its distribution "
                "are not draws from this prior: scale only the likelihood, or use MCMC without tempering."
            )


def _is_improper(distribution: Any) -> bool:
    while True:
        if isinstance(distribution, dist.ImproperUniform) or _masks(getattr(distribution, "_mask", None)):
            return True
        if not hasattr(distribution, "base_dist"):
            return False
        distribution = distribution.base_dist


def _masks(mask: Tensor | bool | None) -> bool:
    """Return whether a mask excludes any part of the density."""
    return mask is not None and not bool(torch.as_tensor(mask).all())


def unnormalised_priors(target: Target) -> dict[str, str]:
    """Return the sites of a target whose prior densities are not normalised, with their distributions."""
    if not isinstance(target, ModelTarget):
        return {}
    with poutine.block(), pyro.validation_enabled(False):
        nodes = poutine.trace(target.program).get_trace().nodes
    found = {name: innermost(nodes[name]["fn"]) for name in [*target.manifolds, *target.transforms]}
    return {name: type(each).__name__ for name, each in found.items() if isinstance(each, _UNNORMALISED)}


def warn_of_unnormalised(target: Target) -> None:
    """Warn if the evidence along a path that does not begin at the prior lacks the constant of a prior."""
    for name, distribution in unnormalised_priors(target).items():
        warnings.warn(
            f"SMC: the density of {distribution}, the prior of site '{name}', is not normalised on its support: draws "
            "are right, but the log evidence lacks its normalising constant: use init='prior' for the evidence.",
            stacklevel=2,
        )


def check_likelihood(draw: Callable[[], Sites], full: Target, owner: str) -> None:
    """Check the log density at draws from the initial distribution, after it was not finite at one; -inf is allowed.

    Raises:
        ValueError: if it is NaN or +inf.
    """
    for _ in range(_DRAWS):
        value = -_energy(full, draw())
        if not bool(value < torch.inf):  # NaN too
            raise ValueError(
                f"{owner}: the log density of the model is {float(value)} at an initial draw, expected a finite "
                "value, or -inf where the likelihood is zero: check the model and its data."
            )


def refuse_likelihood(draw: Callable[[], Sites], full: Target, drawn: int, owner: str) -> NoReturn:
    """Raise the error for a likelihood that is zero at nearly all initial draws.

    Raises:
        ValueError: always.
    """
    check_likelihood(draw, full, owner)
    culprits = list(full.not_finite())
    where = f" of {culprits}" if culprits else ""
    raise ValueError(
        f"{owner}: the likelihood{where} is zero, or has no finite gradient, at nearly all of {drawn} initial "
        "draws: check the data and the supports, or choose a prior nearer to the posterior."
    )


def _energy(full: Target, sites: Sites) -> Tensor:
    try:
        with torch.no_grad():
            return full.potential_fn(sites)
    except FactorisationError:
        return torch.tensor(torch.inf)
