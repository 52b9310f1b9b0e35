r"""Cross-validation: K folds of rows, and held-out cells of a data matrix.

The log score of a held-out observation is $\log \frac1S \sum_s p(y_i \mid \theta_s)$, with draws θ from the
posterior given the rest of the data.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_manifold.density import Program, is_latent
from pyro_manifold.diagnostics import (
    PointwiseLikelihood,
    check_elpd_data,
    elpd_data,
    pointwise_likelihood,
    pointwise_log_likelihood,
    warn_of_factors,
)
from pyro_manifold.infer import MCMC, OHMC

Model = Callable[..., Any]
MakeMCMC = Callable[[Model], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_REMEDY = "since only observed sites are scored"


def k_fold(
    model: Model, *args: Any, k: int = 10, folds: Tensor | None = None, mcmc: MakeMCMC | None = None, **kwargs: Any
) -> Any:
    r"""Estimate the expected log predictive density (elpd) by K-fold cross-validation of rows, for `arviz.compare`.

    $$
    \mathrm{elpd} = \sum_i \log \frac1S \sum_s p(y_i \mid \theta_s), \quad \theta_s \sim p(\theta \mid
    y_{-f(i)}),
    $$

    where f(i) is the fold of row i. The model is fitted k times, each time to the rows of all folds but one. In
    contrast to the evidence, the elpd needs no proper prior and hardly depends on the width of the prior. It refers to
    fits to a fraction 1 - 1/k of the rows. Differences between models are sums over rows, from which their standard
    errors are computed.

    Args:
        model: a Pyro model in which latent variables of single rows are integrated out.
        *args: its arguments. Tensors with as many rows as the first tensor are split.
        k: number of folds; rows are assigned at random.
        folds: the fold of each row from 0, ``(rows,)``, in place of k: for grouped rows.
        mcmc: maps a model to the `MCMC` that fits it; ``lambda model: MCMC(OHMC(model), 500, 500, num_chains=4,
            disable_progbar=True)`` if None.
        **kwargs: its keyword arguments, split likewise.

    Returns:
        An `arviz.ELPDData`: ``elpd``, ``se``, and ``elpd_i`` for each row that is not masked as a whole. ArviZ
        before 1 names them ``elpd_loo`` and ``loo_i``; these names work there as well.

    Raises:
        ImportError: before the fits, if the installed ArviZ has another format of results.
        ValueError: if no argument is a tensor, if ``folds`` has another shape, and if the model has latent variables of
            single rows, a likelihood whose first dimension is not that of rows, or no observations.

    Source: Vehtari, Gelman & Gabry, Statistics and Computing 27 (2017), section 2.3.

    Examples:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> _ = pyro.set_rng_seed(0)
        >>> def model(y):
        ...     m = pyro.sample("m", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", dist.Normal(m, 1.0), obs=y)
        >>> short = lambda model: MCMC(OHMC(model), 100, 100, num_chains=4, disable_progbar=True)
        >>> result = k_fold(model, torch.randn(20), k=2, mcmc=short)
        >>> bool(-40 < result.elpd < -20), result.elpd_i.shape
        (True, (20,))
    """
    check_elpd_data()
    arguments = (args, kwargs)
    rows = len(_first_tensor(arguments, "k_fold"))
    fold_of_row = _folds(rows, k, folds)
    pointwise, observed = torch.empty(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.bool)
    draws = 0
    for number, fold in enumerate(fold_of_row.unique()):
        left_out = fold_of_row == fold
        seen, unseen = _rows(arguments, rows, ~left_out), _rows(arguments, rows, left_out)
        _check_parameters_are_shared(model, arguments, seen)
        samples = _fitted(model, seen, mcmc)
        draws = len(next(iter(samples.values())))
        if not number:
            _check_rows_are_first(model, arguments, rows, samples)
            warn_of_factors(Program(model, *arguments), samples, _REMEDY)
        found, count = pointwise_likelihood(Program(model, *unseen), samples), int(left_out.sum())
        of_rows = [_by_row(name, value, count) for name, value in found.values.items()]
        pointwise[left_out] = _log_score(torch.stack(of_rows).sum(0)).cpu()
        of_rows = [_by_row(name, entries[None], count) for name, entries in found.observed.items()]
        observed[left_out] = torch.cat(of_rows).any(0).cpu()
    return elpd_data(pointwise[observed].numpy(), draws, len(fold_of_row.unique()))


def held_out_cells(
    model: Model,
    *args: Any,
    fraction: float = 0.1,
    hidden: Tensor | None = None,
    mask: str = "observed",
    mcmc: MakeMCMC | None = None,
    **kwargs: Any,
) -> Any:
    r"""Compute the log predictive density of held-out cells of a data matrix, for `arviz.compare`.

    $$
    \mathrm{elpd} = \sum_{(i,j)\ \mathrm{hidden}} \log \frac1S \sum_s p(y_{ij} \mid \theta_s), \quad
    \theta_s \sim p(\theta \mid y_{\mathrm{observed}}) .
    $$

    The model has an argument for the mask of observed cells, and masks its likelihood by it:

    ```python
    cells = dist.Normal(scores @ loadings.mT, noise).mask(observed).to_event(1)
    ```

    It is fitted once; then the density of the held-out cells is evaluated with the inverted mask. Scores of rows may be
    latent sites, since each row keeps most of its cells. Use the same ``hidden`` to compare two models.

    Args:
        model: a Pyro model with an argument for the mask.
        *args: its other arguments; the data matrix is the first tensor among them.
        fraction: fraction of the cells that are held out, at random.
        hidden: mask of the held-out cells, booleans of the data's shape, in place of ``fraction``.
        mask: name of the model's argument, which is True for observed cells.
        mcmc: as for `k_fold`.
        **kwargs: its other keyword arguments.

    Returns:
        An `arviz.ELPDData`, as `k_fold` returns: ``elpd``, ``se``, and ``elpd_i`` for each hidden cell, without those
        that the model masks in any case, such as missing ones. If the model has one density per row, ``elpd_i`` is that
        of the hidden cells of a row together, for each row that has any.

    Raises:
        ImportError: before the fit, if the installed ArviZ has another format of results.
        ValueError: if ``fraction`` hides no cell or all cells, if the model has no argument named ``mask``, and if its
            likelihood is not masked by that argument.

    Examples:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> _ = pyro.set_rng_seed(0)
        >>> def model(y, observed):
        ...     means = pyro.sample("means", dist.Normal(torch.zeros(3), 10.0).to_event(1))
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", dist.Normal(means, 1.0).mask(observed).to_event(1), obs=y)
        >>> short = lambda model: MCMC(OHMC(model), 100, 100, num_chains=4, disable_progbar=True)
        >>> result = held_out_cells(model, torch.randn(20, 3), mcmc=short)
        >>> result.n_data_points <= 6
        True
    """
    check_elpd_data()
    data = _first_tensor((args, kwargs), "held_out_cells")
    hidden = _hidden_cells(data, fraction, hidden)
    if mask in kwargs or mask not in inspect.signature(model).parameters:
        raise ValueError(
            f"held_out_cells: the model has no argument `{mask}`: add one that masks its likelihood, True for "
            "observed cells, or pass its name as mask=."
        )

    def with_mask(seen: Tensor) -> Arguments:
        return args, {**kwargs, mask: seen}

    samples = _fitted(model, with_mask(~hidden), mcmc)
    few = {name: value[:2] for name, value in samples.items()}
    blind = pointwise_log_likelihood(Program(model, *with_mask(torch.zeros_like(hidden))), few)
    if any(bool((value != 0).any()) for value in blind.values()):
        raise ValueError(
            f"held_out_cells: the likelihood is not zero where `{mask}` is False everywhere: mask each cell, as in "
            f"dist.Normal(...).mask({mask}).to_event(1)."
        )
    warn_of_factors(Program(model, *with_mask(hidden)), samples, _REMEDY)
    found = pointwise_likelihood(Program(model, *with_mask(hidden)), samples)
    pointwise = torch.cat([_of_hidden(name, found, hidden) for name in found.values])
    return elpd_data(pointwise.cpu().numpy(), len(next(iter(samples.values()))))


def _fitted(model: Model, arguments: Arguments, mcmc: MakeMCMC | None) -> dict[str, Tensor]:
    """Fit the model and return draws from the posterior, ``{site: (draws, ...)}``."""
    run = MCMC(OHMC(model), 500, 500, num_chains=4, disable_progbar=True) if mcmc is None else mcmc(model)
    run.run(*arguments[0], **arguments[1])
    return dict(run.get_samples())


def _log_score(log_likelihood: Tensor) -> Tensor:
    """Compute the logarithm of the mean likelihood over draws, from log likelihoods ``(draws, ...)``."""
    return log_likelihood.double().logsumexp(0) - math.log(len(log_likelihood))


def _first_tensor(arguments: Arguments, owner: str) -> Tensor:
    tensors = [value for value in (*arguments[0], *arguments[1].values()) if isinstance(value, Tensor) and value.dim()]
    if not tensors:
        raise ValueError(
            f"{owner}: no argument of the model is a tensor: pass the data as torch tensors in the call, "
            f"{owner}(model, y, ...), not inside the model or a functools.partial."
        )
    return tensors[0]


def _folds(rows: int, k: int, folds: Tensor | None) -> Tensor:
    if folds is None:
        if not isinstance(k, int) or not 2 <= k <= rows:
            raise ValueError(f"k_fold: k={k!r}, expected an integer from 2 to the number of rows, {rows}.")
        return torch.randperm(rows) % k
    folds = torch.as_tensor(folds)
    if folds.shape != (rows,) or len(folds.unique()) < 2:
        raise ValueError(
            f"k_fold: folds has shape {tuple(folds.shape)}, expected ({rows},) with the fold of each row, and at "
            "least 2 folds."
        )
    return folds


def _rows(arguments: Arguments, rows: int, chosen: Tensor) -> Arguments:
    """Return the arguments restricted to the chosen rows."""

    def part(value: Any) -> Any:
        return value[chosen] if isinstance(value, Tensor) and value.dim() and len(value) == rows else value

    return tuple(map(part, arguments[0])), {name: part(value) for name, value in arguments[1].items()}


def _check_parameters_are_shared(model: Model, arguments: Arguments, seen: Arguments) -> None:
    """Raise an error if a latent site has a value for each row, since held-out rows would have none."""
    shapes: list[dict[str, Any]] = []
    for part in (arguments, seen):
        with torch.no_grad(), pyro.validation_enabled(False):
            nodes = Program(model, *part).trace().nodes
        shapes.append(
            {
                name: site["value"].shape
                for name, site in nodes.items()
                if is_latent(site) and not site["fn"].has_enumerate_support
            }
        )
    own = sorted(name for name in shapes[0] if shapes[0][name] != shapes[1].get(name))
    if own:
        raise ValueError(
            f"k_fold: sites {own} have a value for each row, which held-out rows lack: integrate them out of the "
            "model, or hold out cells instead of rows, with held_out_cells."
        )


def _check_rows_are_first(model: Model, arguments: Arguments, rows: int, samples: dict[str, Tensor]) -> None:
    """Raise an error unless the first dimension of the likelihood is that of rows.

    All rows are used, since in a fold with as many rows as columns the two could be confused.
    """
    few = {name: value[:2] for name, value in samples.items()}
    found = pointwise_log_likelihood(Program(model, *arguments), few)
    if not found:
        raise ValueError(
            "k_fold: the model has no observed site, expected one with a dimension of rows: observe the data with obs=."
        )
    for name, value in found.items():
        _by_row(name, value, rows)


def _by_row(name: str, log_likelihood: Tensor, rows: int) -> Tensor:
    """Return the log likelihood of each row, ``(draws, rows)``."""
    if log_likelihood.dim() < 2 or log_likelihood.shape[1] != rows:
        raise ValueError(
            f"k_fold: site '{name}' has a likelihood of shape {tuple(log_likelihood.shape[1:])}, expected {rows} "
            "rows first: observe it in a plate of rows, `with pyro.plate('rows', len(y))`, as the leftmost plate."
        )
    return log_likelihood.flatten(2).sum(2) if log_likelihood.dim() > 2 else log_likelihood


def _hidden_cells(data: Tensor, fraction: float, hidden: Tensor | None) -> Tensor:
    if hidden is None:
        count = round(fraction * data.numel()) if isinstance(fraction, int | float) and math.isfinite(fraction) else 0
        order = torch.randperm(data.numel(), device=data.device)
        hidden = (order < count).reshape(data.shape)
    hidden = torch.as_tensor(hidden)
    if hidden.shape != data.shape or hidden.dtype != torch.bool or bool(hidden.all()) or not bool(hidden.any()):
        raise ValueError(
            f"held_out_cells: fraction={fraction!r} or hidden must hide some of the cells and not all: booleans of "
            f"shape {tuple(data.shape)}."
        )
    return hidden


def _of_hidden(name: str, found: PointwiseLikelihood, hidden: Tensor) -> Tensor:
    """Compute the log score of each hidden cell with data, or of all hidden cells of a row together."""
    values, observed = found.values[name], found.observed[name]
    if values.shape[1:] == hidden.shape:
        return _log_score(values[:, hidden & observed])
    if values.shape[1:] == hidden.shape[:1]:
        return _log_score(values[:, hidden.flatten(1).any(1) & observed])
    raise ValueError(
        f"held_out_cells: site '{name}' has a likelihood of shape {tuple(values.shape[1:])}, expected one for "
        f"each cell or row of data of shape {tuple(hidden.shape)}."
    )
