"""The linear functional that changed least from draw to draw in a window of warm-up."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_manifold.store import Saved, Serialisable, check_entries, restored

_ENTRIES = 200_000
"""Largest number of values before and after transitions that are kept: of every second, fourth ... one if necessary."""

_FEWEST = 50
"""Transitions of all chains below which there is no direction."""

_COMPONENTS = 8


class SlowDirection(Saved):
    r"""Search for the combination of functionals of least change between draws, relative to its variance.

    Where posteriors are correlated, each coordinate is a mixture of slow and fast directions. Jumps of coordinates are
    then mostly those of the fast ones, and do not show how long the slow ones take. The direction is

    $$
    w = \arg\min_{w \in \operatorname{span}(V)} \frac{E (w^\top (q' - q))^2}{\operatorname{Var} w^\top q},
    $$

    V the 8 leading principal components of the functionals in units of their standard deviations: among all
    functionals, which may be more than the draws, there are always some that happened not to move.

    Variances are within chains. The method is that of slow features (Wiskott & Sejnowski 2002), or of the time-lagged
    independent components of molecular dynamics (Pérez-Hernández et al. 2013).

    Args:
        functionals: ``(chains, functionals)``, used for its shape and dtype.
    """

    changing = ("_count", "_every", "_seen")

    def __init__(self, functionals: Tensor) -> None:
        rows = min(256, _ENTRIES // max(1, functionals.numel()))
        self._draws = functionals.new_zeros(rows, 2, *functionals.shape)
        self.clear()

    def clear(self) -> None:
        """Discard all transitions."""
        self._count, self._every, self._seen = 0, 1, 0

    def add(self, before: Tensor, after: Tensor) -> None:
        """Add a transition of all chains, ``(chains, functionals)`` each."""
        if not len(self._draws):
            return
        self._seen += 1
        if self._count == len(self._draws):
            half = self._draws[1::2].clone()
            self._count, self._every = len(half), 2 * self._every
            self._draws[: len(half)] = half
        if self._seen % self._every == 0:
            self._draws[self._count] = torch.stack([before, after])
            self._count += 1

    def find(self) -> Tensor | None:
        """Return weights of the functionals, ``(functionals,)``, of a direction of variance 1; None without draws."""
        before, after = self._draws[: self._count].unbind(1)
        if self._count < 2 or after[..., 0].numel() < _FEWEST:
            return None
        jumps, draws = (x.flatten(0, 1) for x in (after - before, after - after.mean(0)))
        deviations = draws.square().mean(0).sqrt()
        if not bool(deviations.isfinite().all() & deviations.any()):
            return None
        inverse = torch.where(deviations > 0, 1 / deviations, 0.0)
        _, singular, right = torch.linalg.svd(draws * inverse, full_matrices=False)
        used = (singular > 1e-6 * singular[0]).nonzero().flatten()[:_COMPONENTS]
        components = inverse.unsqueeze(1) * right[used].mT / singular[used] * len(draws) ** 0.5
        changes = jumps @ components
        slowest = torch.linalg.eigh(changes.mT @ changes).eigenvectors[:, 0]
        return components @ slowest

    def state_dict(self) -> dict[str, Serialisable]:
        """Return the mutable state, with the rows in use alone: none after warm-up."""
        return {**super().state_dict(), "draws": self._draws[: self._count].clone()}

    def load_state_dict(self, saved: dict[str, Serialisable]) -> None:
        check_entries(saved, ["draws"], "the slow direction")
        super().load_state_dict(saved)
        rows = self._draws[: self._count]
        rows.copy_(restored(rows, saved["draws"], "draws"))
