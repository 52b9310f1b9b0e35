"""Run in whose warm-up the coordinates of sites change: how far they are centred."""

from __future__ import annotations

import warnings
from typing import Any

from pyro_manifold.compiled import reason
from pyro_manifold.density import CENTREDNESS, CentredTarget, Sites
from pyro_manifold.infer.mcmc.adaptation import Recentred, WarmUp
from pyro_manifold.infer.mcmc.mechanics import HamiltonianSettings, State
from pyro_manifold.infer.mcmc.running import Run
from pyro_manifold.infer.mcmc.transitions import Statistics, Together


class CentredRun(Run[State, HamiltonianSettings]):
    """Run that moves to the coordinates that its adaptation chooses, at the ends of windows of warm-up."""

    tuning: WarmUp

    @property
    def _centred(self) -> CentredTarget:
        target: Any = self.problem.target
        return target

    @property
    def centredness(self) -> Sites:
        """Present centredness of the sites that are not centred as written, the same for all chains."""
        found = self._centred.by_site(self.positions[CENTREDNESS][0])
        return {name: c for name, c in found.items() if not bool((c == 1).all())}

    def iterate(self) -> None:
        self._choose_coordinates()
        super().iterate()

    def iterate_together(self) -> Together[State] | None:
        self._choose_coordinates()
        return super().iterate_together()

    def _choose_coordinates(self) -> None:
        """Move to other coordinates; before an iteration, so that after an interrupt the choice is made again."""
        centring = self.tuning.centring
        if centring is not None and centring.window_ended:
            try:
                chosen = centring.choose()
            except Exception as error:  # a model can fail in any way, and its coordinates need not be changed
                chosen = None
                warnings.warn(
                    f"The sites {sorted(self._centred.shapes)} keep their coordinates, since others cannot be "
                    f"computed: {reason(error)}. Pass adapt_centring=False to the kernel to leave them as written.",
                    stacklevel=2,
                )
            if chosen is not None:
                self._move(chosen)
            centring.begin_window()

    def _move(self, chosen: Recentred) -> None:
        self.move_to(self._centred.moved(self.positions, chosen.centredness))
        self.tuning.recentred(self.state, chosen, self.random)

    def statistics_of(self, states: State) -> Statistics:
        """Return statistics of states, among them ``"lp"``, the log density of the model as written."""
        found = super().statistics_of(states)
        if not self.centredness:
            return found
        positions = self.problem.layout.unpack(states.position)
        return {**found, "lp": -states.energy - self._centred.log_factor(positions)}

    def move_to(self, positions: Sites) -> None:
        """Move the chains to positions, or to sites of the model as written."""
        if CENTREDNESS not in positions:
            positions = self._centred.at(positions, self.positions[CENTREDNESS])
        super().move_to(positions)

    def diagnostics_entries(self) -> dict[str, Any]:
        found = self.centredness
        return super().diagnostics_entries() | ({"centredness": found} if found else {})

    def summary_lines(self) -> list[str]:
        """Return the lines below a summary, with one on the sites that moved in other coordinates."""
        sites = [
            f"'{name}' {float(c.min()):.1f}" + (f" to {float(c.max()):.1f}" if c.min() < c.max() else "")
            for name, c in self.centredness.items()
        ]
        lines = [f"Centredness chosen in warm-up (1 as written, 0 not centred): {', '.join(sites)}"] if sites else []
        return [*super().summary_lines(), *lines]
