"""Initialisation of SMC and replica exchange: prior and posterior of a model, and particles with finite densities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.batched_density import BatchedDensity
from pyro_manifold.density.causes import arguments_by_name, explained
from pyro_manifold.density.initial_values import NoFiniteStartError
from pyro_manifold.density.model import ModelTarget, Program, Target, target_from_model
from pyro_manifold.density.tempered import TemperedTarget, likelihood_sites
from pyro_manifold.graphs.agreement import FactorisationError
from pyro_manifold.infer.mcmc.transitions.problem import Problem

_DRAWS = 64


def posterior_of(model: Callable[..., Any], args: Any, kwargs: Any, options: dict[str, Any], owner: str) -> ModelTarget:
    """Return the target of a model whose prior can be drawn from.

    Args:
        model: a Pyro model.
        args: its arguments.
        kwargs: its keyword arguments.
        options: of `target_from_model`.
        owner: whose sentences errors are.

    Raises:
        ValueError: if the prior of a site is improper, masked or scaled, or no site is continuous.
    """
    with explained(arguments_by_name(model, args, kwargs)):
        check_prior(partial(model, *args, **kwargs), owner)
    return with_continuous_sites(target_from_model(model, args, kwargs, **options), owner)


def with_continuous_sites(target: ModelTarget, owner: str) -> ModelTarget:
    """Return the same target, if there is anything to move.

    Raises:
        ValueError: if there is not.
    """
    if not {*target.manifolds, *target.transforms}:
        raise ValueError(f"{owner}: the model samples no continuous site.")
    return target


def likelihood_beside(full: ModelTarget, prior_factors: Sequence[str], owner: str) -> list[str]:
    """Return observed sites and factors of a model that do not belong to its prior.

    Raises:
        ValueError: if there is none.
    """
    found = sorted(set(likelihood_sites(full.program)) - set(prior_factors))
    if not found:
        raise ValueError(f"{owner}: the model has no likelihood: nothing is observed, and there is no factor.")
    return found


def problem_with_finite_starts(
    target: TemperedTarget,
    base: Target,
    full: Target,
    chains: int,
    batched: Callable[[Target, Sites], BatchedDensity],
    owner: str,
) -> Problem:
    """Return the problem of a tempered target, whose chains begin with draws of finite density.

    Args:
        target: between ``base`` and ``full``.
        base: to draw from.
        full: its log density may be -inf at draws, where the likelihood is zero.
        chains: how many.
        batched: see `Problem.build`.
        owner: whose sentences errors are.

    Raises:
        ValueError: if the density is NaN or infinite at a draw, or finite at next to none.
    """
    try:
        problem = Problem.build(target, chains, None, batched=batched)
    except NoFiniteStartError:
        refuse_likelihood(base.draw, full, target.drawn, owner)
    if target.drawn > chains:
        check_likelihood(base.draw, full, owner)
    return problem


def check_prior(program: Program, owner: str) -> None:
    """Raise a sentence for a site whose prior is no distribution; ``owner`` is whose sentence it is.

    Raises:
        ValueError: with the name of the site.
    """
    with poutine.block(), pyro.validation_enabled(False), _RefusesImproper(owner):
        program()


class _RefusesImproper(Messenger):
    """Effect handler that checks each site before it is sampled, which fails for improper priors."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if msg["is_observed"]:
            return
        if _masks(msg["mask"]) or _is_improper(msg["fn"]):
            raise ValueError(
                f"{self._owner}: site '{msg['name']}' has an improper prior, under which there is no evidence: give it "
                "a distribution that can be drawn from and is not masked, or take MCMC without tempering."
            )
        if bool((torch.as_tensor(msg["scale"]) != 1).any()):
            raise ValueError(
                f"{self._owner}: the prior of site '{msg['name']}' is scaled, so that draws from its distribution are "
                "not draws from this prior: scale the likelihood alone, or take MCMC without tempering."
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


def check_likelihood(draw: Callable[[], Sites], full: Target, owner: str) -> None:
    """Look at the density at some draws of the base, after one was found where it is not finite: zero is allowed.

    Raises:
        ValueError: if it is NaN or infinite.
    """
    for _ in range(_DRAWS):
        value = -_energy(full, draw())
        if not bool(value < torch.inf):  # NaN too
            raise ValueError(
                f"{owner}: the log density of the model is {float(value)} at a draw to begin with; it may be -inf, "
                "where the likelihood is zero, and else must be finite: check the model and its data."
            )


def refuse_likelihood(draw: Callable[[], Sites], full: Target, drawn: int, owner: str) -> NoReturn:
    """Say why no particle can begin.

    Raises:
        ValueError: always.
    """
    check_likelihood(draw, full, owner)
    culprits = list(full.not_finite())
    where = f" of {culprits}" if culprits else ""
    raise ValueError(
        f"{owner}: the likelihood{where} is zero, or has no finite gradient, at nearly each of {drawn} draws to begin "
        "with: check the data and the supports, or take a prior that is nearer."
    )


def _energy(full: Target, sites: Sites) -> Tensor:
    try:
        with torch.no_grad():
            return full.potential_fn(sites)
    except FactorisationError:
        return torch.tensor(torch.inf)
