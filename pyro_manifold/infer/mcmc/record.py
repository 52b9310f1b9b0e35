"""What happened at each iteration after warm-up, kept on tensors until someone asks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_manifold.infer.mcmc.metropolis import TransitionInfo


class Record:
    """Statistics of every chain and iteration.

    Args:
        chains: number of chains.
    """

    def __init__(self, chains: int) -> None:
        self._chains = chains
        self._infos: list[TransitionInfo] = []
        self._membership_errors: list[Tensor] = []
        self._reflected: list[Tensor] = []
        self._step_sizes: list[float] = []
        self._num_steps: list[int] = []
        self._divergences: Tensor | int = 0

    def add(
        self,
        info: TransitionInfo,
        step_size: float,
        num_steps: int,
        membership_error: Tensor | None,
        reflected: Tensor | None,
    ) -> None:
        """Add one iteration.

        Args:
            info: the trajectory and what became of it.
            step_size: its ε.
            num_steps: its leapfrog steps.
            membership_error: distance of each chain's draw from its manifolds, None if it has none.
            reflected: whether each chain's determinant changed sign, None if it has no square site.
        """
        self._infos.append(info)
        self._step_sizes.append(step_size)
        self._num_steps.append(num_steps)
        self._divergences = self._divergences + info.diverging.sum()
        if membership_error is not None:
            self._membership_errors.append(membership_error)
        if reflected is not None:
            self._reflected.append(reflected)

    @property
    def divergences(self) -> int:
        """Divergent transitions of all chains so far."""
        return int(self._divergences)

    def statistics(self) -> dict[str, Tensor]:
        """``{name: (chains, draws)}``, by ArviZ's names."""
        if not self._infos:
            return {}
        columns = TransitionInfo(*(torch.stack(values, 1) for values in zip(*self._infos, strict=True)))
        like = columns.energy
        step_sizes = torch.tensor(self._step_sizes, dtype=like.dtype, device=like.device)
        num_steps = torch.tensor(self._num_steps, device=like.device)
        statistics = {
            "acceptance_rate": columns.acceptance_probability,
            "accepted": columns.accepted,
            "diverging": columns.diverging,
            "energy": columns.energy,
            "energy_error": columns.energy_error,
            "lp": columns.log_density,
            "step_size": step_sizes.expand(self._chains, -1),
            "n_steps": num_steps.expand(self._chains, -1),
        }
        if self._membership_errors:
            statistics["orthogonality_error"] = torch.stack(self._membership_errors, 1)
        if self._reflected:
            statistics["reflected"] = torch.stack(self._reflected, 1)
        return statistics

    def reports(self) -> list[dict[str, Any]]:
        """What a kernel's ``diagnostics`` says, for each chain."""
        statistics = self.statistics()
        if not statistics:
            return [{"divergences": [], "acceptance rate": 0.0, "sample stats": {}} for _ in range(self._chains)]
        return [
            self._report({name: value[chain].clone() for name, value in statistics.items()})
            for chain in range(self._chains)
        ]

    @staticmethod
    def _report(statistics: dict[str, Tensor]) -> dict[str, Any]:
        report: dict[str, Any] = {
            "divergences": statistics["diverging"].nonzero().flatten().tolist(),
            "acceptance rate": float(statistics["accepted"].double().mean()),
        }
        if "orthogonality_error" in statistics:
            report["orthogonality error"] = float(statistics["orthogonality_error"].max())
        return {**report, "sample stats": statistics}
