"""Model comparison by the evidence (marginal likelihood)."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_manifold.diagnostics import RunsDiffer
from pyro_manifold.infer.mcmc.hmc import OHMC
from pyro_manifold.infer.smc import SMC

Model = Callable[..., Any]

_SPREADS = 5.0  # a difference of this many standard deviations between runs is decisive


def compare_evidence(
    models: Mapping[Hashable, Model | SMC] | Sequence[Model] | Model,
    *args: Any,
    over: Mapping[str, Iterable[Hashable]] | None = None,
    smc: Callable[[Model], SMC] | None = None,
    **kwargs: Any,
) -> Any:
    r"""Tabulate the evidence of several models for the same data, their probabilities, and the time of each run.

    `SMC` estimates $\log p(y \mid M)$ for each model. With equal prior probabilities of the models,

    $$ P(M_k \mid y) = p(y \mid M_k) \Big/ \sum_j p(y \mid M_j) . $$

    The evidence depends on the prior: a prior that is ten times too wide lowers it, and the more so the more columns or
    components there are. With `NormalSingularValues` and `StiefelUniform`, loadings have the same prior at every rank.

    If the run of a model fails, its row is NaN and a warning is issued, so that the evidences of the other models are
    kept; the probabilities are then among the models that did not fail. An interrupt (Ctrl-C) after the first model
    likewise leaves NaN for the models not yet run. If all models fail, the first error is raised.

    A warning is issued if the best model is at an end of the range of values tried for an argument of ``over``, since
    the optimum may lie beyond it. A lower end of 0, or of 1 where all values are integers, is taken as the natural
    bound and gives no warning. A warning is also issued if the log evidences of several runs of a model differ, with a
    standard deviation of more than a fifth of the difference to the best model (for the best model, to the second).

    Args:
        models: ``{name: model}``, any models for the same data: ranks of Bayesian PCA, factor models, numbers of
            components of a mixture; or one model with ``over``. An `SMC` object that has run may take the place of its
            model.
        *args: arguments of the models.
        over: ``{argument: values}``: one model for each value of an argument, such as ``{"rank": range(1, 7)}``, named
            by the value; with several arguments one model for each combination, named by the tuple of values.
        smc: maps a model to the `SMC` that estimates its evidence;
            ``lambda model: SMC(OHMC(model), disable_progbar=True)`` if None.
        **kwargs: keyword arguments of the models.

    Returns:
        A pandas DataFrame with a row for each model, in the order given: ``log_evidence``; ``se``, its standard error,
        `SMC.log_evidence_error`; ``difference`` to the largest log evidence, and ``dse``, its standard error;
        ``probability`` among these models; ``seconds`` of wall time, NaN for an `SMC` that had already run.

    Raises:
        ValueError: if there are no models, for a single model without ``over``, if ``over`` is not a dictionary of
            lists or is given with several models, if ``smc`` is not a function, and for an `SMC` that has not run.
        Exception: the error of the first model, if all models fail.

    Source: Kass & Raftery, Bayes factors, JASA 90 (1995).

    Examples:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> _ = pyro.set_rng_seed(0)
        >>> def polynomial(x, y, degree):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(degree + 1), 1.0).to_event(1))
        ...     curve = (w * x[:, None] ** torch.arange(degree + 1)).sum(-1)
        ...     pyro.sample("y", dist.Normal(curve, 0.1).to_event(1), obs=y)
        >>> x = torch.linspace(-1, 1, 20)
        >>> few = lambda model: SMC(OHMC(model), num_particles=256, disable_progbar=True)
        >>> table = compare_evidence(polynomial, x, x**2, over={"degree": [1, 2, 3]}, smc=few)
        >>> int(table.probability.idxmax()), list(table.columns)
        (2, ['log_evidence', 'se', 'difference', 'dse', 'probability', 'seconds'])
    """
    from pandas import DataFrame, Index, MultiIndex

    over = None if over is None else _lists(over)
    chosen = _named(models, over)
    if smc is not None and not callable(smc):
        raise ValueError(f"compare_evidence: smc is {smc!r}, expected lambda model: SMC(OHMC(model), ...).")
    rows = _rows(chosen, args, kwargs, smc or _default_smc)
    evidence, error, seconds = (
        torch.tensor(column, dtype=torch.float64)
        for column in zip(*((row.log_evidence, row.error, row.seconds) for row in rows.values()), strict=True)
    )
    done = ~evidence.isnan()
    best = int(evidence.nan_to_num(nan=-torch.inf).argmax())
    difference = evidence - evidence[best]
    dse = (error.square() + error[best].square()).sqrt()
    dse[best] = 0.0
    _warn_of_runs(rows, difference)
    _warn_of_ends(list(rows)[best], over or {})
    names = list(over or {})
    index = Index(list(rows))
    if names:
        index = MultiIndex.from_tuples(rows, names=names) if len(names) > 1 else index.rename(names[0])
    columns = {
        "log_evidence": evidence,
        "se": error,
        "difference": difference,
        "dse": dse,
        "probability": torch.where(done, difference.nan_to_num(nan=-torch.inf).softmax(0), torch.nan),
        "seconds": seconds,
    }
    return DataFrame({name: column.numpy() for name, column in columns.items()}, index=index)


def _default_smc(model: Model) -> SMC:
    return SMC(OHMC(model), disable_progbar=True)


def _lists(over: Any) -> dict[str, list[Hashable]]:
    """Return the values of each argument as lists, or raise an error."""
    if not isinstance(over, Mapping):
        raise ValueError(
            f"compare_evidence: over is {over!r}, expected {{argument: values}}, such as {{'rank': range(1, 7)}}."
        )
    for argument, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"compare_evidence: over[{argument!r}] is {values!r}, expected a list of values.")
    return {argument: list(values) for argument, values in over.items()}


def _named(models: Any, over: Mapping[str, Iterable[Hashable]] | None) -> dict[Hashable, Model | SMC]:
    """Return the models by name, or raise an error."""
    single = callable(models)
    if single != (over is not None):
        raise ValueError(
            "compare_evidence: pass several models, {name: model}, or one model and over={argument: values}, such "
            "as over={'rank': range(1, 7)}."
        )
    if not single and not isinstance(models, Iterable):
        raise ValueError(f"compare_evidence: models is {models!r}, expected {{name: model}} or a list of models.")
    if over is not None:
        combinations = list(itertools.product(*over.values()))
        names = [values[0] if len(values) == 1 else values for values in combinations]
        found = [partial(models, **dict(zip(over, values, strict=True))) for values in combinations]
        named: dict[Hashable, Model | SMC] = dict(zip(names, found, strict=True))
    else:
        named = dict(models) if isinstance(models, Mapping) else dict(enumerate(models))
    if not named:
        raise ValueError("compare_evidence: models is empty, expected at least one model.")
    for name, model in named.items():
        if not isinstance(model, SMC) and not callable(model):
            raise ValueError(f"compare_evidence: models[{name!r}] is {model!r}, expected a Pyro model or an SMC.")
        if isinstance(model, SMC):
            _ = model.log_evidence  # raises an error before other models are run
    return named


class _Row(NamedTuple):
    """Result of the run of one model.

    Attributes:
        log_evidence: NaN if the run failed.
        error: standard error of the log evidence.
        seconds: wall time; NaN for an `SMC` that had already run.
        spread: standard deviation of the log evidences of the runs.
        messages: warnings of the run, except those in ``differ``.
        differ: warnings that the log evidences of the runs differ.
        failure: the error that ended the run.
    """

    log_evidence: float = math.nan
    error: float = math.nan
    seconds: float = math.nan
    spread: float = 0.0
    messages: Sequence[warnings.WarningMessage] = ()
    differ: Sequence[warnings.WarningMessage] = ()
    failure: Exception | None = None


def _rows(
    models: Mapping[Hashable, Model | SMC], args: tuple[Any, ...], kwargs: dict[str, Any], smc: Callable[[Model], SMC]
) -> dict[Hashable, _Row]:
    """Run each model; rows of models that fail are NaN.

    Raises:
        Exception: the error of the first model, if all fail.
    """
    rows = dict.fromkeys(models, _Row())
    for name, model in models.items():
        try:
            rows[name] = _weighed(model, args, kwargs, smc)
        except _NoSMCError:
            raise
        except Exception as error:
            error.add_note(f"compare_evidence: raised by the model {name!r}.")
            rows[name] = _Row(failure=error)
        except KeyboardInterrupt:
            if all(math.isnan(row.log_evidence) for row in rows.values()):
                raise
            _warn(f"compare_evidence: interrupted during the model {name!r}; rows of models without a result are NaN.")
            return rows
        for message in rows[name].messages:
            _warn(f"compare_evidence, the model {name!r}: {message.message}", message.category)
    failures = {name: row.failure for name, row in rows.items() if row.failure is not None}
    if len(failures) == len(rows):
        raise next(iter(failures.values()))
    for name, failure in failures.items():
        reason = f"{type(failure).__name__}: {failure}".splitlines()[0]
        _warn(f"compare_evidence, the model {name!r}: the run failed, and its row is NaN ({reason})")
    return rows


class _NoSMCError(ValueError):
    """Error for an argument ``smc`` that does not return an `SMC`."""


def _weighed(model: Model | SMC, args: tuple[Any, ...], kwargs: dict[str, Any], smc: Callable[[Model], SMC]) -> _Row:
    """Run a model, unless it has already run, and record the warnings of the run."""
    if isinstance(model, SMC):
        return _of_run(model)
    start = time.perf_counter()
    run = smc(model)
    if not isinstance(run, SMC):
        raise _NoSMCError(f"compare_evidence: smc returned {run!r}, expected lambda model: SMC(OHMC(model), ...).")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # under -W error, they are raised when re-issued, not inside the run
        run.run(*args, **kwargs)
    differ = [each for each in caught if issubclass(each.category, RunsDiffer)]
    others = [each for each in caught if each not in differ]
    return _of_run(run)._replace(seconds=time.perf_counter() - start, messages=others, differ=differ)


def _of_run(run: SMC) -> _Row:
    spread = float(run.log_evidences.std()) if len(run.log_evidences) > 1 else 0.0
    return _Row(run.log_evidence, run.log_evidence_error, spread=spread)


def _warn_of_runs(rows: Mapping[Hashable, _Row], difference: Tensor) -> None:
    """Re-issue the warning that runs of a model differ, if that may change which model is best."""
    gaps = -difference.nan_to_num(nan=-torch.inf)
    best = int(gaps.argmin())
    others = [float(gap) for k, gap in enumerate(gaps) if k != best]
    gaps[best] = min(others, default=0.0)
    for (name, row), gap in zip(rows.items(), gaps.tolist(), strict=True):
        for message in row.differ if gap < _SPREADS * row.spread or len(rows) == 1 else ():
            _warn(f"compare_evidence, the model {name!r}: {message.message}")


def _warn_of_ends(best: Hashable, over: Mapping[str, Iterable[Hashable]]) -> None:
    """Warn about arguments for which the best model has the smallest or largest value tried."""
    chosen = best if len(over) > 1 and isinstance(best, tuple) else (best,)
    for (argument, values), value in zip(over.items(), chosen, strict=False):
        end = _end(value, list(values))
        if end is not None:
            size, beyond = ("largest", "larger") if end > 0 else ("smallest", "smaller")
            found = f"the largest evidence is at {argument}={value!r}, the {size} value tried"
            _warn(f"compare_evidence: {found}: try {beyond} ones.")


def _end(value: Any, values: list[Any]) -> int | None:
    """Return 1 or -1 if a value is the largest or smallest of a sorted list of numbers that could be extended."""
    if len(values) < 2 or not all(isinstance(each, Real) and not isinstance(each, bool) for each in values):
        return None
    if sorted(set(values)) not in (values, values[::-1]):
        return None
    if value == max(values):
        return 1
    natural = 1 if all(isinstance(each, Integral) for each in values) else 0
    return -1 if value == min(values) and value not in (0, natural) else None


def _warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning attributed to the caller of `compare_evidence`, three calls up the stack."""
    warnings.warn(message, category, stacklevel=4)
