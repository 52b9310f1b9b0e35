"""Distributions without validation, which cannot be traced."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from pyro.poutine.messenger import Messenger


class WithoutValidation(Messenger):
    """Handler that turns off validation of distributions, also of those constructed outside the model with validation.

    Validation branches on values, so that it cannot be traced, and raises an error if a trajectory overflows.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        msg["fn"] = _unvalidated(msg["fn"])


def _unvalidated(distribution: Any) -> Any:
    """Return the distribution without validation: a copy if it has to change, as it may be the user's."""
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
