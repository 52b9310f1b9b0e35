"""Diagnostics of a posterior: the dictionary of `MCMC.diagnostics`, with a short repr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pyro_manifold.diagnostics.disagreement import disagreements
from pyro_manifold.diagnostics.known import known_quantities
from pyro_manifold.diagnostics.modes import modes_of_run
from pyro_manifold.diagnostics.posterior import Posterior
from pyro_manifold.diagnostics.table import measures

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


def diagnose(posterior: Posterior) -> Diagnostics:
    """Return the diagnostics of a posterior; see `MCMC.diagnostics` for its entries.

    Args:
        posterior: a `Posterior`, or what `Posterior.of` takes: a run, or draws by name.

    Examples:
        >>> import torch
        >>> draws = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
        >>> sorted(diagnose(Posterior({"x": draws})))
        ['disagreeing_chains', 'modes', 'x']
    """
    posterior = Posterior.of(posterior)
    samples, notes = posterior.draws, posterior.notes
    entries: dict[str, Any] = {name: of_chains(values) for name, values in chain_entries(posterior.statistics).items()}
    known = known_quantities(samples, posterior.symmetries or [])
    if posterior.log_density is not None:
        known[_free("log_density", known)] = posterior.log_density
    entries["disagreeing_chains"] = disagreements(known)
    entries |= modes_of_run(samples, posterior.log_density, lambda: posterior.symmetries or [])
    entries |= notes.entries
    sites = {_free(name, entries): measures(samples[name], notes.num_superchains) for name in samples}
    return Diagnostics({**sites, **entries})


def _free(name: str, taken: Mapping[str, Any]) -> str:
    """Return a name, with a suffix if it is taken."""
    return f"{name}_site" if name in taken else name


def chain_entries(statistics: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    """Return figures of each chain from its statistics: a list over chains by name.

    ``"divergences"`` lists the draws that diverged, ``"acceptance_rate"`` is the fraction accepted,
    ``"orthogonality_error"`` the largest distance from a manifold, and ``"jittered_metrics"`` counts draws.
    """
    found: dict[str, list[Any]] = {}
    if "diverging" in statistics:
        found["divergences"] = [chain.nonzero().flatten().tolist() for chain in statistics["diverging"]]
    if "accepted" in statistics:
        found["acceptance_rate"] = statistics["accepted"].double().mean(1).tolist()
    if "orthogonality_error" in statistics:
        found["orthogonality_error"] = statistics["orthogonality_error"].amax(1).tolist()
    if "jittered" in statistics:
        found["jittered_metrics"] = statistics["jittered"].sum(1).tolist()
    return found


def of_chains(values: list[Any]) -> dict[str, Any]:
    """Return values by the names of chains in Pyro."""
    return {f"chain {k}": value for k, value in enumerate(values)}
