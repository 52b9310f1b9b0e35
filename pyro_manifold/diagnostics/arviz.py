"""Conversion of a finished run to ArviZ's InferenceData."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_manifold.density import Program
from pyro_manifold.diagnostics.checks import check_flag, check_same_number
from pyro_manifold.diagnostics.deterministic import deterministic_by_chain
from pyro_manifold.diagnostics.installed_arviz import add_warmup, inference_data
from pyro_manifold.diagnostics.likelihood import observed_values, pointwise_likelihood, warn_of_factors
from pyro_manifold.diagnostics.posterior import Notes, Posterior
from pyro_manifold.diagnostics.prior_density import log_prior as densities_of_prior
from pyro_manifold.version import __version__

Group = dict[str, Any]


def to_inferencedata(
    source: Any,
    *,
    posterior_predictive: Mapping[str, Any] | None = None,
    prior: Mapping[str, Any] | None = None,
    constant_data: Mapping[str, Any] | None = None,
    log_likelihood: bool | Mapping[str, Any] = True,
    log_prior: bool = False,
    unconstrained: bool = False,
    warmup: Any = None,
    deterministic: bool = True,
    align: bool = False,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Convert a run to ArviZ's InferenceData, for ``summary``, ``plot_trace``, ``plot_energy``, ``loo`` and files.

    Groups: ``posterior``, sites of `pyro.deterministic` included; ``sample_stats``, all statistics that the kernel
    records (``acceptance_rate``, ``accepted``, ``diverging``, ``energy``, ``energy_error``, ``step_size``, ``n_steps``,
    ``lp``, and for sites that have them ``orthogonality_error`` and ``reflected``; only ``diverging`` for kernels of
    other packages); ``observed_data`` and ``log_likelihood`` of the observed sites of the model;
    ``posterior_predictive``, ``prior``, ``prior_predictive``, ``constant_data``, ``log_prior``,
    ``unconstrained_posterior``, ``warmup_posterior`` and ``warmup_sample_stats`` if given or asked for. Several groups
    in one call: ``mcmc.to_inferencedata(prior=500, posterior_predictive=True, log_prior=True)``.

    ``lp`` is the log density that was sampled, up to a constant: of sites on a manifold with respect to the uniform
    distribution there, of others in unconstrained space. ``energy`` is the Hamiltonian, -lp plus kinetic energy.

    Args:
        source: an `MCMC` or `SMC` of this package or `pyro.infer.MCMC`, after ``run``; a `Posterior`; or draws,
            ``{site: (chains, draws, ...)}``.
        posterior_predictive: ``{site: (chains · draws, ...)}`` as returned by Pyro's ``Predictive``, or
            ``(chains, draws, ...)``. The method `MCMC.to_inferencedata` accepts True, which draws them: the observed
            sites of the model, for its arguments in the run; discrete sites that were summed out are drawn given the
            others.
        prior: ``{site: (draws, ...)}`` as returned by ``Predictive(poutine.uncondition(model), num_samples=500)``.
            Observed sites are the group ``prior_predictive``, all others ``prior``. The method `MCMC.to_inferencedata`
            accepts a number of draws.
        constant_data: ``{name: array}``, such as covariates.
        log_likelihood: compute the likelihood of each observation under each draw, which ``loo`` needs. Or given, for
            other units than the observations, such as groups: ``{name: (chains · draws, ...)}`` or
            ``(chains, draws, ...)``.
        log_prior: compute the log density of the prior of each latent site under each draw, one number for each element
            of its plates, which ArviZ's ``psense_summary`` needs (``psens`` before ArviZ 1).
        unconstrained: add the coordinates in which kernels move sites that are not on a manifold, such as log x of a
            positive x; of a site on the real line they are its values. Sites with fewer coordinates than entries, such
            as probabilities, have the dimension ``<site>_coordinate``. Pairs of coordinates show funnels.
        warmup: draws of warm-up, a `pyro_manifold.infer.WarmupDraws` that was one of the ``consumers`` of the run: the
            groups ``warmup_posterior`` and ``warmup_sample_stats``, as they were sampled, also with ``align``.
        deterministic: compute the values of `pyro.deterministic` sites under each draw.
        align: align the draws by the symmetries of the posterior, as ``get_samples(align=True)`` does; deterministic
            sites are then those of the aligned draws.
        coords: ``{dimension: labels}`` for dimensions named in ``dims``.
        dims: ``{site: [dimension, ...]}``, without chain and draw.

    A site with the name of a dimension, such as ``chain`` or ``draw``, is exported as ``chain_site``, with a warning.
    Masked entries are not observations: ``log_likelihood`` of a site with some leaves them out, and has the others in
    one dimension, ``y_unmasked`` for the site ``y``, with the row as coordinate, or the place in the flattened site.
    ``observed_data`` has the values as given. Terms of `pyro.factor` have no data and are in no likelihood, with a
    warning. Discrete sites that were summed out are summed out in ``log_likelihood`` too, one number for each element
    of their plates: observed sites that depend on the same discrete site have one likelihood, under their names joined
    by commas. Observations that share a discrete site outside their plates (a hidden Markov chain) have no
    ``log_likelihood``, and deterministic sites that depend on summed-out ones have no value; both are left out with a
    warning. A model that takes its data in minibatches, by ``data_loader`` or a subsampling plate, has no
    ``log_likelihood`` and no ``observed_data``, and its predictive draws must be given.

    Returns:
        ``arviz.InferenceData``, or with ArviZ 1 an ``xarray.DataTree`` with the same groups.

    Raises:
        ValueError: for a run without draws, for another number of posterior predictive draws or another shape, for
            ``dims`` and ``coords`` that name nothing or do not fit, for ``warmup`` with another number of chains, for
            ``log_prior`` or ``unconstrained`` without a model, for ``unconstrained`` without draws of a site, or for
            ``align`` if the symmetries of the posterior are not known.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, OHMC
        >>> def model(y):
        ...     U = pyro.sample("U", StiefelUniform(3, 2))
        ...     pyro.sample("y", dist.Normal(U, 0.1).to_event(2), obs=y)
        >>> mcmc = MCMC(OHMC(model), num_samples=20, warmup_steps=20, num_chains=2, disable_progbar=True)
        >>> mcmc.run(torch.eye(3, 2))
        >>> idata = to_inferencedata(mcmc, dims={"U": ["row", "column"]})
        >>> idata.posterior["U"].dims
        ('chain', 'draw', 'row', 'column')
    """
    check_flag(align=align, log_prior=log_prior, unconstrained=unconstrained)
    drawn = Posterior.of(source)
    drawn = drawn.aligned() if align else drawn
    posterior = {name: value.detach() for name, value in drawn.draws.items()}
    chains, draws, program = drawn.chains, drawn.length, drawn.program
    groups: dict[str, Group] = {
        "posterior": dict(posterior),
        "sample_stats": dict(drawn.statistics),
        "posterior_predictive": _by_chain("posterior_predictive", posterior_predictive, chains, draws),
        "constant_data": dict(constant_data or {}),
    }
    observed: Group = {}
    densities: Group = {}
    coordinates: Group = {}
    if not isinstance(log_likelihood, bool):
        groups["log_likelihood"] = _by_chain("log_likelihood", log_likelihood, chains, draws)
    for name, asked_for in {"log_prior": log_prior, "unconstrained": unconstrained}.items():
        if program is None and asked_for:
            raise ValueError(f"{name}=True needs a model, but there is a potential_fn, or draws without a Program.")
    if program is not None:
        flat = {name: value.flatten(0, 1) for name, value in posterior.items()}
        if deterministic:
            groups["posterior"] |= _deterministic(program, posterior)
        if program.loader is None:
            groups["observed_data"] = dict(observed_values(program, flat))
        if log_likelihood is True:
            groups["log_likelihood"], observed = _log_likelihood(program, flat, chains, draws)
        if log_prior:
            densities = _log_prior(program, flat, chains, draws)
        if unconstrained:
            coordinates = _unconstrained(program, flat, chains, draws)
    groups |= _prior_groups(prior, groups["posterior"], groups.get("observed_data", {}))
    arrays = {name: _arrays(group) for name, group in groups.items() if group}
    named = _checked_dims(arrays, dims or {}, coords or {})
    attributes = {"inference_library": "pyro_manifold", "inference_library_version": __version__}
    names = _exported_names(arrays, named)
    arrays = {group: {names.get(name, name): x for name, x in values.items()} for group, values in arrays.items()}
    named, densities, coordinates, observed = (
        {names.get(name, name): x for name, x in each.items()}
        for each in (named, _arrays(densities), _arrays(coordinates), _arrays(observed))
    )
    others = {"log_prior": densities, "unconstrained_posterior": coordinates}
    found = inference_data(arrays, coords or {}, named, attributes, others=others, observed=observed)
    if warmup is not None:
        add_warmup(found, *_warmup(warmup, chains, names))
    return _with_notes(found, drawn.notes)


def _warmup(source: Any, chains: int, names: Mapping[str, str]) -> tuple[Group, Group]:
    """Return draws and statistics of warm-up as arrays, under the names by which sites are exported."""
    drawn = Posterior.of(source)
    if drawn.chains != chains:
        raise ValueError(f"warmup has {drawn.chains} chains, expected the {chains} of the run.")
    return _arrays({names.get(name, name): x for name, x in drawn.draws.items()}), _arrays(dict(drawn.statistics))


def _with_notes(found: Any, notes: Notes) -> Any:
    """Add statistics of levels, and attributes, to the group ``sample_stats``."""
    if notes.levels or notes.attributes:
        from xarray import DataArray

        for name, values in notes.levels.items():
            # A DataTree, of ArviZ 1, would take dimensions and values in a tuple for one value.
            found.sample_stats[name] = DataArray(values.cpu().numpy(), dims=("chain", "level"))
        found.sample_stats.attrs.update(notes.attributes)
    return found


def _by_chain(group: str, draws_of: Mapping[str, Any] | None, chains: int, draws: int) -> Group:
    if draws_of is not None and not isinstance(draws_of, Mapping):
        hint = f"; MCMC.to_inferencedata({group}=True) draws them" if group == "posterior_predictive" else ""
        raise ValueError(f"{group}={draws_of!r}, expected draws, {{site: tensor}}{hint}.")
    grouped = {}
    for name, value in (draws_of or {}).items():
        value = torch.as_tensor(value)
        if value.shape[:2] == (chains, draws):
            grouped[name] = value
        elif value.shape[:1] == (chains * draws,):
            grouped[name] = value.reshape(chains, draws, *value.shape[1:])
        else:
            raise ValueError(
                f"{group}['{name}'] has shape {tuple(value.shape)}, expected {chains * draws} draws in front, or "
                f"{chains} chains of {draws}."
            )
    return grouped


def _prior_groups(prior: Mapping[str, Any] | None, posterior: Group, observed: Group) -> dict[str, Group]:
    """Return the groups ``prior`` and ``prior_predictive``, each value ``(1, draws, ...)``."""
    if prior is not None and not isinstance(prior, Mapping):
        raise ValueError(
            f"prior={prior!r}, expected draws, {{site: tensor}}; MCMC.to_inferencedata(prior=500) draws them."
        )
    values = {name: torch.as_tensor(value) for name, value in (prior or {}).items()}
    check_same_number(values, "prior")
    shapes = {name: value.shape[2:] for name, value in posterior.items()}
    shapes |= {name: value.shape for name, value in observed.items()}
    for name, value in values.items():
        shape = shapes.get(name, value.shape[1:])
        if value[0].numel() != shape.numel():  # Pyro's draws have dimensions of size 1 for plates
            raise ValueError(
                f"prior['{name}'] has shape {tuple(value.shape)}, expected {(len(value), *shape)}, the draws and the "
                "shape of the site in the run."
            )
        values[name] = value.reshape(1, len(value), *shape)
    # Without data in the export, as for minibatches, sites without posterior draws are the observed ones.
    names = set(observed) if observed else set(values) - set(posterior)
    predictive = {name: value for name, value in values.items() if name in names}
    return {"prior": {name: x for name, x in values.items() if name not in names}, "prior_predictive": predictive}


def _log_likelihood(program: Program, flat: Mapping[str, Tensor], chains: int, draws: int) -> tuple[Group, Group]:
    """Return the log likelihood of each entry of the observed sites, and which entries are observations."""
    try:
        found = pointwise_likelihood(program, flat)
    except Exception as error:  # a model can raise any exception; the other groups are still exported
        warnings.warn(f"log_likelihood is left out: {error}; log_likelihood=False avoids this.", stacklevel=3)
        return {}, {}
    if found.values:  # else nothing is exported that could be taken for the whole likelihood
        warn_of_factors(program, flat, "or give log_likelihood={site: its values}, or False")
    values = {name: value.reshape(chains, draws, *value.shape[1:]) for name, value in found.values.items()}
    return values, dict(found.observed)


def _log_prior(program: Program, flat: Mapping[str, Tensor], chains: int, draws: int) -> Group:
    try:
        found = densities_of_prior(program, flat)
    except Exception as error:  # as above
        warnings.warn(f"log_prior is left out: {error}.", stacklevel=3)
        return {}
    return {name: value.reshape(chains, draws, *value.shape[1:]) for name, value in found.items()}


def _unconstrained(program: Program, flat: Mapping[str, Tensor], chains: int, draws: int) -> Group:
    """Return the coordinates of sites that are not on a manifold."""
    target = program.target
    needed = {*target.transforms, *(target.manifolds if target.dependent else ())}
    if needed - set(flat):
        raise ValueError(
            f"unconstrained=True needs draws of {sorted(needed - set(flat))}, which save_params leaves out."
        )
    if target.dependent:
        found = target.positions(dict(flat))
    else:
        found = {name: transform(flat[name]) for name, transform in target.transforms.items()}
    return {name: found[name].reshape(chains, draws, *found[name].shape[1:]) for name in target.transforms}


def _deterministic(program: Program, posterior: Mapping[str, Tensor]) -> Group:
    try:
        return dict(deterministic_by_chain(program, posterior))
    except Exception as error:  # as above
        warnings.warn(f"Left out: {error}; deterministic=False avoids this.", stacklevel=3)
        return {}


def _checked_dims(
    groups: dict[str, Group], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]
) -> dict[str, list[str]]:
    for argument, value in {"dims": dims, "coords": coords}.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{argument}={value!r}, expected a dictionary.")
    variables: dict[str, int] = {}
    for group, values in groups.items():
        in_front = 0 if group in ("observed_data", "constant_data") else 2
        if group != "log_likelihood":  # an event has one likelihood, so fewer dimensions than its value
            variables |= {name: np.ndim(value) - in_front for name, value in values.items()}
    for name, names in dims.items():
        if name not in variables:
            raise ValueError(f"dims names '{name}', but there are only {sorted(variables)}.")
        labels = [] if isinstance(names, str) else list(names)
        if len(labels) > variables[name] or len(set(labels)) < len(labels) or {"chain", "draw"} & set(labels):
            raise ValueError(
                f"dims['{name}'] is {names!r}, expected up to {variables[name]} different names without chain and draw."
            )
    unknown = sorted(set(coords) - {label for names in dims.values() for label in names})
    if unknown:
        raise ValueError(f"coords names the dimensions {unknown}, expected names in the values of dims.")
    return {name: list(names) for name, names in dims.items()}


def _exported_names(groups: dict[str, Group], dims: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return other names for sites that are called as a dimension, whose draws xarray would replace by coordinates."""
    dimensions = {"chain", "draw"}.union(*dims.values())
    for group, values in groups.items():
        in_front = 0 if group in ("observed_data", "constant_data") else 2
        for name, value in values.items():
            dimensions |= {f"{name}_dim_{k}" for k in range(len(dims.get(name, ())), np.ndim(value) - in_front)}
    sites = {name for values in groups.values() for name in values}
    found = {name: f"{name}_site" for name in sorted(sites & dimensions)}
    while taken := [name for name, other in found.items() if other in sites | dimensions]:
        found |= {name: f"{found[name]}_" for name in taken}
    for name, other in found.items():
        warnings.warn(f"Site '{name}' is exported as '{other}', since '{name}' is a dimension there.", stacklevel=3)
    return found


def _arrays(group: Group) -> Group:
    return {name: value.detach().cpu().numpy() if torch.is_tensor(value) else value for name, value in group.items()}
