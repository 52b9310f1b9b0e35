"""Whether particles can begin: a prior that can be drawn from, a likelihood that is a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_manifold.graphs.agreement import FactorisationError
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.model import Program, Target

_DRAWS = 64


def check_prior(program: Program, owner: str = "SMC") -> None:
    """Raise a sentence for a site whose prior is no distribution; ``owner`` is whose sentence it is.

    Raises:
        ValueError: naming it.
    """
    with poutine.block(), pyro.validation_enabled(False), _RefusesImproper(owner):
        program()


class _RefusesImproper(Messenger):
    """Looks at each site before it is drawn, which an improper one cannot be."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not msg["is_observed"] and _is_improper(msg["fn"]):
            raise ValueError(
                f"{self._owner}: site '{msg['name']}' has an improper prior, under which there is no evidence: give it "
                "a distribution that can be drawn from, or take MCMC without tempering."
            )


def _is_improper(distribution: Any) -> bool:
    while True:
        if isinstance(distribution, dist.ImproperUniform) or getattr(distribution, "_mask", None) is False:
            return True
        if not hasattr(distribution, "base_dist"):
            return False
        distribution = distribution.base_dist


def check_likelihood(draw: Callable[[], Sites], full: Target, owner: str = "SMC") -> None:
    """Look at the density at some draws of the base, after one was found where it is not finite: zero is allowed.

    Raises:
        ValueError: where it is NaN or infinite.
    """
    for _ in range(_DRAWS):
        value = -_energy(full, draw())
        if not bool(value < torch.inf):  # NaN too
            raise ValueError(
                f"{owner}: the log density of the model is {float(value)} at a draw to begin with; it may be -inf, "
                "where the likelihood is zero, and else must be finite: check the model and its data."
            )


def refuse_likelihood(draw: Callable[[], Sites], full: Target, drawn: int, owner: str = "SMC") -> NoReturn:
    """Say why no particle can begin.

    Raises:
        ValueError: always.
    """
    check_likelihood(draw, full, owner)
    culprits = full.not_finite()
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
