"""Dictionary of `MCMC.diagnostics` with a short repr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_NAMED = 12


class Diagnostics(dict[str, Any]):
    """Diagnostics of a run, by site and by name; see `MCMC.diagnostics`.

    Args:
        found: values by name.

    Examples:
        >>> import torch
        >>> site = {"r_hat": torch.tensor([1.2, 1.0]), "ess_bulk": torch.tensor([9.0, 400.0])}
        >>> Diagnostics({"U": site, "divergences": {"chain 0": [3], "chain 1": []}, "disagreeing_chains": {"U": "..."}})
        Diagnostics(largest r_hat 1.200 of U, smallest ess_bulk 9 of U, divergences 1, disagreeing_chains U; keys: U, \
divergences, disagreeing_chains)
    """

    def __missing__(self, key: str) -> Any:
        if key == "acceptance rate":  # the name in Pyro
            return self["acceptance_rate"]
        raise KeyError(key)

    def __repr__(self) -> str:
        sites = {name: x for name, x in self.items() if isinstance(x, Mapping) and "r_hat" in x}
        parts = []
        for measure, worst, pick in (("r_hat", "largest", max), ("ess_bulk", "smallest", min)):
            values = {name: x[measure][~x[measure].isnan()] for name, x in sites.items()}
            known = {name: float(x.max() if pick is max else x.min()) for name, x in values.items() if x.numel()}
            if known:
                name = pick(known, key=known.__getitem__)
                parts.append(f"{worst} {measure} {known[name]:.{3 if pick is max else 0}f} of {name}")
        if "divergences" in self:
            parts.append(f"divergences {sum(map(len, self['divergences'].values()))}")
        if "acceptance_rate" in self:
            low, high = (pick(self["acceptance_rate"].values()) for pick in (min, max))
            parts.append(f"acceptance_rate {low:.2f}" + (f" to {high:.2f}" if high > low else ""))
        if "disagreeing_chains" in self:
            parts.append(f"disagreeing_chains {_listed(self['disagreeing_chains']) or 'none'}")
        if "modes" in self:
            parts.append(f"modes {len(self['modes'])}")
        return f"Diagnostics({', '.join(parts)}; keys: {_listed(self)})"


def _listed(names: Mapping[str, Any]) -> str:
    first = list(names)[:_MOST_NAMED]
    return ", ".join(first) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")
