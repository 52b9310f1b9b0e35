"""Stored runs as ArviZ's InferenceData, also while they are in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pyro_manifold.density import Program
from pyro_manifold.diagnostics.checks import check_flag
from pyro_manifold.diagnostics.installed_arviz import of_datasets
from pyro_manifold.diagnostics.posterior import Posterior
from pyro_manifold.diagnostics.stored_symmetries import recorded_symmetries
from pyro_manifold.store import SITES, STATISTICS, Array, StoredRun, StoredTensors, array_of, stored_runs
from pyro_manifold.version import __version__


def open_run(path: str | Path, *, align: bool = False) -> Any:
    """Open a stored run for ArviZ: draws and statistics are read from disk when they are accessed.

    The run may be in progress, in another process or on another machine: the result has the draws stored so far, and
    from each shard as many as all shards have. ``.load()`` on a group or variable reads it into memory.

    Args:
        path: the folder given to ``MCMC`` as ``store``.
        align: align the draws by the symmetries of the posterior, as `MCMC.get_samples` does. Symmetries are recorded
            with the first draws, so that no model is needed. Sites that are aligned are read into memory.

    Returns:
        ``arviz.InferenceData``, or with ArviZ 1 an ``xarray.DataTree``, with the groups ``posterior`` and
        ``sample_stats``: variables ``(chain, draw, ...)``.

    Raises:
        ValueError: if there is no stored run, or one of its files is damaged; for ``align`` if its symmetries are not
            recorded. Nothing is unpickled.

    Examples:
        >>> import pyro, tempfile
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> folder = tempfile.mkdtemp()
        >>> kernel = OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2)))
        >>> mcmc = MCMC(kernel, 10, num_chains=3, store=folder, disable_progbar=True)
        >>> mcmc.run()
        >>> open_run(folder).posterior["U"].shape
        (3, 10, 4, 2)
    """
    check_flag(align=align)
    runs = stored_runs(Path(path))
    aligned = _aligned(runs) if align else {}
    import xarray

    groups = {
        group: xarray.Dataset({name: _variable(runs, group, name) for name in _names(runs, group)}, _coordinates(runs))
        for group in (SITES, STATISTICS)
    }
    for name, values in aligned.items():
        variable = groups[SITES][name]
        groups[SITES][name] = (variable.dims, values)
    groups = {name: group.assign_attrs(_attributes(runs)) for name, group in groups.items()}
    return of_datasets(groups, _attributes(runs))


def open_posterior(path: str | Path, program: Program | None = None) -> Posterior:
    """Open a stored run as a posterior: draws and statistics are read from disk when they are accessed.

    Args:
        path: the folder given to ``MCMC`` as ``store``.
        program: the model with its arguments, which predictions and likelihoods need.

    Returns:
        The draws stored so far, and from each shard as many as all shards have. Symmetries are those that were recorded
        with the first draws, so that alignment needs no model.

    Raises:
        ValueError: if there is no stored run, one of its files is damaged, or ``program`` is that of a model without
            some of its sites. Nothing is unpickled.

    Examples:
        >>> import pyro, tempfile
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> folder = tempfile.mkdtemp()
        >>> kernel = OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2)))
        >>> MCMC(kernel, 10, num_chains=3, store=folder, disable_progbar=True).run()
        >>> open_posterior(folder).draws["U"].shape
        torch.Size([3, 10, 4, 2])
    """
    runs = stored_runs(Path(path))
    try:
        known = recorded_symmetries(runs[0])
    except ValueError:
        known = None
    posterior = Posterior(StoredTensors(runs, SITES), StoredTensors(runs, STATISTICS), program, known=known)
    if program is not None:
        target = program.target
        others = sorted(set(posterior.draws) - {*target.manifolds, *target.transforms, *target.dependent})
        if others:
            raise ValueError(
                f"The run in '{path}' has the sites {others}, which the model of program= does not have: pass the "
                "Program of the model that was run, such as mcmc.program."
            )
    return posterior


def _aligned(runs: list[StoredRun]) -> dict[str, Array]:
    """Return the aligned draws of the sites that have a symmetry."""
    known = recorded_symmetries(runs[0])
    posterior = Posterior(StoredTensors(runs, SITES), StoredTensors(runs, STATISTICS), known=known)
    try:
        draws = posterior.aligned().draws
    except (ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"The symmetries recorded in '{runs[0].folder}' do not fit its draws: {error}.") from error
    return {name: array_of(draws[name]) for each in known for name in each.names}


def _names(runs: list[StoredRun], group: str) -> list[str]:
    """Return the names that every shard has; statistics are known from the first draw on."""
    first, *others = [run.names(group) for run in runs]
    taken = sorted({"chain", "draw"} & set(first))
    if taken:
        raise ValueError(f"The site {taken[0]!r} has the name of a dimension: read it by mcmc.get_samples().")
    return [name for name in first if all(name in names for names in others)]


def _draws(runs: list[StoredRun]) -> int:
    return min(run.draws for run in runs)


def _coordinates(runs: list[StoredRun]) -> dict[str, Array]:
    chains = sum(run.manifest.chains for run in runs)
    return {"chain": np.arange(chains), "draw": np.arange(_draws(runs))}


def _attributes(runs: list[StoredRun]) -> dict[str, Any]:
    manifest = runs[0].manifest
    return {
        "inference_library": "pyro_manifold",
        "inference_library_version": manifest.versions.get("pyro_manifold", __version__),
        "warmup_steps": manifest.warmup_steps,
        "thinning": manifest.thinning,
    }


def _variable(runs: list[StoredRun], group: str, name: str) -> Any:
    from xarray import Variable
    from xarray.backends import BackendArray
    from xarray.core import indexing

    class OnDisk(BackendArray):
        """A lazily read array."""

        def __init__(self) -> None:
            self.dtype, shape = runs[0].kind(group, name)
            self.shape = (sum(run.manifest.chains for run in runs), _draws(runs), *shape)

        def __getitem__(self, key: Any) -> Any:
            basic = indexing.IndexingSupport.BASIC
            return indexing.explicit_indexing_adapter(key, self.shape, basic, lambda key: _read(runs, group, name, key))

    array = OnDisk()
    rest = [f"{name}_dim_{place}" for place in range(len(array.shape) - 2)]
    return Variable(["chain", "draw", *rest], indexing.LazilyIndexedArray(array))


def _read(runs: list[StoredRun], group: str, name: str, key: tuple[Any, ...]) -> Array:
    """Read by integers and slices of all dimensions; only files that have some of these draws are opened."""
    chain, draw, *rest = key
    draws = range(_draws(runs))[draw if isinstance(draw, slice) else slice(int(draw), int(draw) + 1)]
    start, stop = (min(draws), max(draws) + 1) if draws else (0, 0)
    chosen = range(sum(run.manifest.chains for run in runs))[
        chain if isinstance(chain, slice) else slice(int(chain), int(chain) + 1)
    ]
    parts, first = [], 0
    for run in runs:
        here = [k - first for k in chosen if first <= k < first + run.manifest.chains]
        first += run.manifest.chains
        if here:
            within = slice(min(here), max(here) + 1)
            parts.append(run.read(group, name, start, stop, within)[:: abs(chosen.step)])
    if not parts:
        parts = [runs[0].read(group, name, start, stop, slice(0, 0))]
    found = np.concatenate(parts)[:: -1 if chosen.step < 0 else 1]
    found = found[:, :: draws.step] if draws else found
    found = found[(slice(None), slice(None), *rest)]
    return found[(slice(None) if isinstance(chain, slice) else 0, slice(None) if isinstance(draw, slice) else 0)]
