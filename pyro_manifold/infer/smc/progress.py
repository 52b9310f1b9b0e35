"""Progress bar of sequential Monte Carlo."""

from __future__ import annotations

from pyro_manifold.infer.smc.annealing import Level
from pyro_manifold.progress import progress_bar


class ProgressBar:
    """Progress bar that shows β, and records all levels.

    Args:
        disable: whether to hide the progress bar.
        levels: list to which levels are appended.
    """

    def __init__(self, disable: bool, levels: list[Level]) -> None:
        self._bar = progress_bar(unit="level", disable=disable)
        self._levels = levels

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, level: Level) -> None:
        self._levels.append(level)
        self._bar.update()
        if not self._bar.disable:
            self._bar.set_postfix(
                {
                    "β": f"{float(level.inverse_temperature.min()):.2e}",
                    "log evidence": f"{float(level.log_evidence.mean()):.2f}",
                    "acc. prob": f"{float(level.acceptance.mean()):.2f}",
                    "steps": level.steps,
                }
            )

    def reached(self) -> str:
        """Describe the inverse temperature at which the particles were interrupted."""
        lowest = float(self._levels[-1].inverse_temperature.min()) if self._levels else 0.0
        return f"SMC was interrupted at an inverse temperature of {lowest:.2g}, before there were draws."
