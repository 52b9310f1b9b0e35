"""Which of several models predicted the data best: evidences side by side."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from pyro_manifold.infer.mcmc.hmc.ohmc import OHMC
from pyro_manifold.infer.smc.smc import SMC

Model = Callable[..., Any]


def compare_evidence(
    models: Mapping[Hashable, Model | SMC] | Sequence[Model] | Model,
    *args: Any,
    over: Mapping[str, Iterable[Hashable]] | None = None,
    smc: Callable[[Model], SMC] | None = None,
    **kwargs: Any,
) -> Any:
    r"""The evidence of several models for the same data, their probabilities, and what each took: a table.

    Each model goes through `SMC`, which gives :math:`\log p(y \mid M)`. Where models are equally probable beforehand,

    .. math:: P(M_k \mid y) = p(y \mid M_k) \Big/ \sum_j p(y \mid M_j) .

    The evidence is that of the model with its prior: a prior ten times too wide takes away from the evidence, and the
    more so the more columns or components there are. With `NormalSingularValues` and `StiefelUniform` loadings have the
    same prior at every rank.

    Args:
        models: ``{name: model}``, any models for the same data: ranks of Bayesian PCA, factor models, numbers of
            components of a mixture; or one model with ``over``. An `SMC` that has run stands for its model.
        *args: arguments of the models.
        over: ``{argument: values}``: one model for each value of an argument, such as ``{"rank": range(1, 7)}``, named
            by the value; of several arguments for each combination, named by the tuple.
        smc: a model to the `SMC` that weighs it; ``lambda model: SMC(OHMC(model), disable_progbar=True)`` if None.
        **kwargs: keyword arguments of the models.

    Returns:
        A pandas DataFrame with a row for each model, in the order given: ``log_evidence``; ``se``, its standard error,
        `SMC.log_evidence_error`; ``difference`` to the largest log evidence, and ``dse``, the
        standard error of that; ``probability`` among these models; ``seconds`` of wall time, NaN for an `SMC` that had
        run. `pyro_manifold.diagnostics.plot_evidence` draws it.

    Raises:
        ValueError: for no models, for one model without ``over``, for ``over`` with several, for an ``smc`` that is no
            function, and for an `SMC` that has not run. A model of which nothing is observed, and others, as `SMC`.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> _ = pyro.set_rng_seed(0)
        >>> def polynomial(x, y, degree):
        ...     w = pyro.sample("w", dist.Normal(torch.zeros(degree + 1), 1.0).to_event(1))
        ...     curve = (w * x[:, None] ** torch.arange(degree + 1)).sum(-1)
        ...     pyro.sample("y", dist.Normal(curve, 0.1).to_event(1), obs=y)
        >>> x = torch.linspace(-1, 1, 20)
        >>> few = lambda model: SMC(OHMC(model), num_particles=64, disable_progbar=True)
        >>> table = compare_evidence(polynomial, x, x**2, over={"degree": [1, 2]}, smc=few)
        >>> int(table.probability.idxmax()), list(table.columns)
        (2, ['log_evidence', 'se', 'difference', 'dse', 'probability', 'seconds'])
    """
    from pandas import DataFrame, Index, MultiIndex

    chosen = _named(models, over)
    if smc is not None and not callable(smc):
        raise ValueError(f"compare_evidence: smc is {smc!r}, expected lambda model: SMC(OHMC(model), ...).")
    rows = {name: _weighed(name, model, args, kwargs, smc or _default_smc) for name, model in chosen.items()}
    evidence, error, seconds = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*rows.values(), strict=True)
    )
    best = int(evidence.argmax())
    dse = (error.square() + error[best].square()).sqrt()
    dse[best] = 0.0
    names = list(over or {})
    index = Index(list(rows))
    if names:
        index = MultiIndex.from_tuples(rows, names=names) if len(names) > 1 else index.rename(names[0])
    columns = {
        "log_evidence": evidence,
        "se": error,
        "difference": evidence - evidence[best],
        "dse": dse,
        "probability": evidence.softmax(0),
        "seconds": seconds,
    }
    return DataFrame({name: column.numpy() for name, column in columns.items()}, index=index)


def _default_smc(model: Model) -> SMC:
    return SMC(OHMC(model), disable_progbar=True)


def _named(models: Any, over: Mapping[str, Iterable[Hashable]] | None) -> dict[Hashable, Model | SMC]:
    """Models by their names."""
    single = callable(models)
    if single != (over is not None):
        raise ValueError(
            "compare_evidence: give several models, {name: model}, or one model and over={argument: values}, such as "
            "over={'rank': range(1, 7)}."
        )
    if not single and not isinstance(models, Iterable):
        raise ValueError(f"compare_evidence: models is {models!r}, expected {{name: model}} or a list of models.")
    if over is not None:
        for argument, values in over.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise ValueError(f"compare_evidence: over[{argument!r}] is {values!r}, expected a list of values.")
        combinations = list(itertools.product(*over.values()))
        names = [values[0] if len(values) == 1 else values for values in combinations]
        found = [partial(models, **dict(zip(over, values, strict=True))) for values in combinations]
        named: dict[Hashable, Model | SMC] = dict(zip(names, found, strict=True))
    else:
        named = dict(models) if isinstance(models, Mapping) else dict(enumerate(models))
    if not named:
        raise ValueError("compare_evidence: there is no model to weigh.")
    for name, model in named.items():
        if not isinstance(model, SMC) and not callable(model):
            raise ValueError(f"compare_evidence: models[{name!r}] is {model!r}, expected a Pyro model or an SMC.")
    return named


def _weighed(
    name: Hashable, model: Model | SMC, args: tuple[Any, ...], kwargs: dict[str, Any], smc: Callable[[Model], SMC]
) -> tuple[float, float, float]:
    """Log evidence, standard error and seconds; what is said on the way names the model."""
    if isinstance(model, SMC):
        return model.log_evidence, model.log_evidence_error, float("nan")
    start = time.perf_counter()
    run = smc(model)
    if not isinstance(run, SMC):
        raise ValueError(f"compare_evidence: smc gave {run!r}, expected lambda model: SMC(OHMC(model), ...).")
    with warnings.catch_warnings(record=True) as caught:
        try:
            run.run(*args, **kwargs)
        except Exception as error:
            error.add_note(f"compare_evidence: by the model {name!r}.")
            raise
    for warning in caught:
        warnings.warn(f"compare_evidence, the model {name!r}: {warning.message}", warning.category, stacklevel=3)
    return run.log_evidence, run.log_evidence_error, time.perf_counter() - start
