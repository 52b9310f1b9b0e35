"""Distributions without validation, which cannot be traced."""

from __future__ import annotations

from copy import copy
from typing import Any

from pyro.poutine.messenger import Messenger

from pyro_manifold.density.distribution_parts import with_parts


class WithoutValidation(Messenger):
    """Handler that turns off validation of distributions, also of those constructed outside the model with validation.

    Validation branches on values, so that it cannot be traced, and raises an error if a trajectory overflows.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        msg["fn"] = unvalidated(msg["fn"])


def unvalidated(distribution: Any) -> Any:
    """Return the distribution without validation: a copy if it has to change, as it may be the user's."""
    found = with_parts(distribution, unvalidated)
    if getattr(found, "_validate_args", False):
        found = copy(found) if found is distribution else found
        found._validate_args = False
    return found
