"""The installed ArviZ: 0.20 to 0.23, or 1.x, whose names, formats and defaults differ.

The rest of the package calls these functions and does not ask for the version.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

_TAIL = (0.05, 0.95)
_NEGLIGIBLE = 1e3  # nats
_UNITS_OF_ROUNDING = 100

Array = np.ndarray


def imported_arviz() -> Any:
    """Import ArviZ, which takes a second, without the announcement of its refactoring."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        try:
            import arviz
        except OSError:  # it notes the day of its announcement in a folder of the user, which may not be writable
            with _notes_elsewhere():
                import arviz
    return arviz


@contextmanager
def _notes_elsewhere() -> Iterator[None]:
    """Give programs that are imported another folder of the user for their notes."""
    name, before = "XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def is_before_1() -> bool:
    """Return whether ArviZ is 0.x: one package, whose InferenceData is a class of its own."""
    return int(imported_arviz().__version__.split(".")[0]) < 1


def default_probability() -> float:
    """Return the probability of ArviZ's intervals: 0.94 before ArviZ 1 and 0.89 since, unless the user has set it."""
    return float(imported_arviz().rcParams["stats.ci_prob"])


def effective_sizes(values: Any, method: str) -> Any:
    """Compute `arviz.ess`; for tails the smaller one of those of the 5 % and 95 % quantiles.

    ArviZ 1 has other quantiles by default, those of its intervals, 11 % and 89 %.

    Args:
        values: an array ``(chains, draws)``, or an xarray Dataset.
        method: ``"bulk"``, ``"tail"`` or ``"mean"``.
    """
    options = {"prob": _TAIL} if method == "tail" else {}
    return imported_arviz().ess(values, method=method, **options)


def autocorrelations(values: Array) -> Array:
    """Compute the autocorrelation at each lag along the last dimension."""
    arviz = imported_arviz()
    if is_before_1():
        return np.asarray(arviz.autocorr(values, axis=-1))
    return np.asarray(_array_functions().autocorr(values, axis=-1))


def pareto_shape(log_weights: Array) -> float:
    r"""Compute k̂, the shape of the generalised Pareto distribution fitted to the largest importance weights.

    Args:
        log_weights: logarithms of weights, of which at least one is finite, ``(draws,)``; -∞ for a weight of 0.

    Returns:
        k̂; −∞ if the weights are equal up to rounding, so that they have no tail.
    """
    log_weights = _finite(log_weights)
    largest = log_weights.max()
    rounding = _UNITS_OF_ROUNDING * np.finfo(float).eps * max(1.0, float(np.abs(log_weights).max()))
    if largest - log_weights.min() <= rounding:
        return -math.inf
    if is_before_1():
        return float(imported_arviz().psislw(log_weights)[1])
    # Not its psislw, which takes logarithms of inverse weights; nor log_weights=True here, which fits the logarithms.
    weights = np.exp(log_weights - largest)[None]  # of one chain
    return float(_array_functions().pareto_khat(weights, r_eff=1.0, tail="right"))


def smoothed_weights(log_weights: Array) -> tuple[Array, float]:
    r"""Return Pareto-smoothed importance weights and the shape k̂ of their tail.

    Args:
        log_weights: logarithms of weights, of which at least one is finite, ``(draws,)``; -∞ for a weight of 0.

    Returns:
        Logarithms of weights that add up to 1, and k̂ as by `pareto_shape`.

    Source: Vehtari, Simpson, Gelman, Yao & Gabry, Pareto smoothed importance sampling, JMLR 25 (2024).
    """
    raised, khat = _finite(log_weights), pareto_shape(log_weights)
    if is_before_1():
        smoothed = np.asarray(imported_arviz().psislw(raised)[0])
    else:
        smoothed = np.asarray(_array_functions().psislw(-raised)[0])
    weights = np.where(np.isfinite(log_weights), np.exp(smoothed - smoothed.max()), 0.0)
    with np.errstate(divide="ignore"):
        return np.log(weights / weights.sum()), khat


def _finite(log_weights: Array) -> Array:
    """Return logarithms of weights with negligible weights in place of those of 0."""
    log_weights = np.asarray(log_weights, dtype=float)
    finite = np.isfinite(log_weights)
    return np.where(finite, log_weights, log_weights[finite].min() - _NEGLIGIBLE)


def _array_functions() -> Any:
    """Return the functions of arrays of ArviZ 1, which are not in the module arviz."""
    return import_module("arviz_stats.base").array_stats


def elpd_data(pointwise: Array, num_draws: int, num_folds: int | None = None) -> Any:
    """Return log scores of held-out observations as an `arviz.ELPDData`, for `arviz.compare`.

    Both generations have the fields ``elpd``, ``se``, ``elpd_i``, ``n_samples`` and ``n_data_points``. ArviZ before 1
    has its own names ``elpd_loo`` and ``loo_i`` as well, which its `compare` reads.

    Args:
        pointwise: a log score for each observation, ``(observations,)``.
        num_draws: number of draws by which each is computed.
        num_folds: number of folds; None if the observations were held out together.
    """
    arviz = imported_arviz()
    from xarray import DataArray

    count, scores = len(pointwise), DataArray(pointwise, dims="observation")
    p = math.nan  # the effective number of parameters would need a fit to all data
    fields = {
        "se": float(pointwise.std(ddof=1) * count**0.5) if count > 1 else math.nan,
        "n_samples": num_draws,
        "n_data_points": count,
        "warning": False,
        "scale": "log",
    }
    ours = {"elpd": float(pointwise.sum()), "p": p, "elpd_i": scores.rename("elpd_i")}
    if is_before_1():
        # Its table shows the first three, in this order.
        theirs = {"elpd_loo": ours["elpd"], "se": fields["se"], "p_loo": p}
        fields = theirs | fields | {"loo_i": scores.rename("loo_i")} | ours
        return arviz.ELPDData(data=list(fields.values()), index=list(fields))
    kind = "held_out" if num_folds is None else "loo_kfold"
    fields |= ours | {"kind": kind, "good_k": None, "n_folds": num_folds}
    if arviz.__version__.startswith("1.2."):  # its compare fails without the k̂ of importance weights, here all equal
        fields |= {"good_k": 0.7, "pareto_k": DataArray(np.full(count, -np.inf), dims="observation")}
    # Since ArviZ 1.3 folds have a class, and each class fixes its kind.
    made = arviz.ELPDData if num_folds is None else getattr(arviz, "ELPDDataLOOKFold", arviz.ELPDData)
    known = {field.name for field in dataclasses.fields(made) if field.init}
    return made(**{name: value for name, value in fields.items() if name in known})


def check_elpd_data() -> None:
    """Raise ImportError if `elpd_data` does not know the format of the installed ArviZ: called before long runs."""
    try:
        for folds in (None, 2):
            str(elpd_data(np.zeros(2), 1, folds))
    except Exception as error:
        raise ImportError(
            f"ArviZ {imported_arviz().__version__} has another format of arviz.ELPDData than those that are known "
            f"({error}): pip install 'arviz>=0.20,<=1.3'."
        ) from error


def inference_data(
    groups: Mapping[str, Mapping[str, Array]],
    coords: Mapping[str, Any],
    dims: Mapping[str, Sequence[str]],
    attributes: Mapping[str, Any],
    *,
    others: Mapping[str, Mapping[str, Array]] | None = None,
    observed: Mapping[str, Array] | None = None,
) -> Any:
    """Return arrays as an ``arviz.InferenceData``, or with ArviZ 1 as an ``xarray.DataTree`` with the same groups.

    Args:
        groups: ``{group: {name: array}}``.
        coords: labels of dimensions.
        dims: names of the dimensions of variables, without chain and draw.
        attributes: attributes of the whole.
        others: groups whose variables have the first dimensions of those with the same names in the posterior, and
            dimensions of their own where sizes differ.
        observed: which entries of a log likelihood are observations, ``{name: (...)}``; all if it is not named.
    """
    arviz = imported_arviz()
    options = {"coords": dict(coords), "dims": {name: list(names) for name, names in dims.items()}}
    # ArviZ mistakes hundreds of chains for a transposed array.
    if not is_before_1():
        data = arviz.from_dict(dict(groups), **options, attrs={"/": dict(attributes)}, check_conventions=False)
    else:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="More chains", category=UserWarning)
            data = arviz.from_dict(**groups, **options, attrs=dict(attributes))
    masked = {name: entries for name, entries in (observed or {}).items() if not entries.all()}
    if masked:
        _keep_observations(data, masked)
    for group, arrays in (others or {}).items():
        if arrays:
            _add_group(data, group, arrays)
    return data


def add_warmup(data: Any, draws: Mapping[str, Array], statistics: Mapping[str, Array]) -> None:
    """Add the groups ``warmup_posterior`` and ``warmup_sample_stats``, whose dimension ``draw`` has its own length."""
    from xarray import Dataset

    posterior, in_chains = data["posterior"], ("chain", "draw")
    sites = {name: ((*in_chains, *posterior[name].dims[2:]), x) for name, x in draws.items() if name in posterior}
    figures = {name: (in_chains, x) for name, x in statistics.items()}
    for group, variables in {"warmup_posterior": sites, "warmup_sample_stats": figures}.items():
        count = next((x.shape[1] for _, x in variables.values()), 0)
        labels = _labels(posterior, variables) | {"draw": np.arange(count)}
        _add_dataset(data, group, Dataset(variables, labels))


def _add_group(data: Any, group: str, arrays: Mapping[str, Array]) -> None:
    """Add arrays by the dimensions of the posterior, which `arviz.from_dict` does only for arrays as large."""
    from xarray import Dataset

    posterior = data["posterior"]
    named = {name: (_dimensions(posterior[name], group, array), array) for name, array in arrays.items()}
    _add_dataset(data, group, Dataset(named, _labels(posterior, named)))


def _labels(posterior: Any, variables: Mapping[str, tuple[Sequence[str], Array]]) -> dict[str, Any]:
    """Return the labels that the posterior has for the dimensions of variables."""
    used = {dimension for dimensions, _ in variables.values() for dimension in dimensions}
    return {name: posterior.coords[name] for name in used if name in posterior.coords}


def _add_dataset(data: Any, group: str, found: Any) -> None:
    if is_before_1():
        data.add_groups({group: found})
    else:
        from xarray import DataTree

        data[group] = DataTree(found)


def _dimensions(variable: Any, group: str, array: Array) -> list[str]:
    """Return the dimensions of a variable, with a name of its own for the last one of other coordinates."""
    found = list(variable.dims[: array.ndim])
    if group == "unconstrained_posterior" and array.shape != variable.shape:
        found[-1] = f"{variable.name}_coordinate"
    return found


def _keep_observations(data: Any, masked: Mapping[str, Array]) -> None:
    """Leave masked entries out of log likelihoods; the others have a dimension of their own in place of all others."""
    group = "log_likelihood"
    before_1 = is_before_1()
    every = data[group] if before_1 else data[group].to_dataset()
    kept = every.drop_vars(list(masked))
    for name, entries in masked.items():
        array, places = every[name], entries.flatten().nonzero()[0]
        if not len(places):
            continue
        dimension, own = f"{name}_unmasked", array.dims[2:]
        labels = every[own[0]].values[places] if len(own) == 1 else places
        values = array.values.reshape(*array.shape[:2], -1)[..., places]
        kept[name] = (*array.dims[:2], dimension), values
        kept = kept.assign_coords({dimension: labels})
    kept = kept.drop_vars([name for name in kept.coords if not any(name in kept[each].dims for each in kept.data_vars)])
    if before_1:
        setattr(data, group, kept)
    else:
        data[group].dataset = kept


def of_datasets(groups: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    """Return datasets as an ``arviz.InferenceData``, or with ArviZ 1 as an ``xarray.DataTree``.

    Args:
        groups: ``{group: xarray.Dataset}``.
        attributes: attributes of the whole.
    """
    arviz = imported_arviz()
    if not is_before_1():
        from xarray import Dataset, DataTree

        return DataTree.from_dict({"/": Dataset(attrs=dict(attributes)), **groups})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="More chains", category=UserWarning)
        return arviz.InferenceData(**groups, attrs=dict(attributes))
