"""Plug-ins of `MCMC(..., tempering=...)`, which prepare a run of chains at several temperatures."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from pyro_manifold.density import Program
from pyro_manifold.infer.mcmc.running import Run


@runtime_checkable
class Tempering(Protocol):
    """A plug-in of ``tempering=``, such as `ReplicaExchange`; its ``repr`` is stored, so that a run can be resumed."""

    def check(self, kernel: object, warmup_steps: int, **others: object) -> None:
        """Raise ValueError for arguments of `MCMC` that are incompatible; ``others`` are None if not given."""

    def prepare(self, kernel: Any, chains: int, warmup_steps: int, program: Program) -> Run[Any, Any]:
        """Return a run with ``chains`` chains of draws from the posterior; see `Kernel.prepare`."""


def as_tempering(tempering: bool | Tempering | None) -> Tempering | None:
    """Return the ``tempering`` argument as a plug-in, or None without tempering.

    Raises:
        ValueError: if it is neither a flag nor a plug-in.
    """
    if tempering is None or tempering is False:
        return None
    if tempering is True:
        plug_in: Tempering = import_module("pyro_manifold.contrib.replica_exchange").ReplicaExchange()
        return plug_in
    if not isinstance(tempering, Tempering):
        raise ValueError(f"tempering={tempering!r}, expected True, False or ReplicaExchange(levels=...).")
    return tempering
