"""Simulation-based calibration of a user's model and sampler."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor

from pyro_manifold.contrib.calibration.fits import Fit, MakeKernel, Study, described, one_by_one, vectorised
from pyro_manifold.contrib.calibration.quantities import Quantities, latent_values, symmetries_of
from pyro_manifold.contrib.calibration.result import Calibration
from pyro_manifold.contrib.calibration.simulation import (
    Conditioned,
    Generator,
    Model,
    check_generates,
    observed_sites,
)
from pyro_manifold.contrib.calibration.uniformity import NUMBERS_OF_DRAWS, autocorrelation
from pyro_manifold.density import Program, Target
from pyro_manifold.diagnostics import (
    StuckChains,
    Values,
    first_draw,
    without_draws,
)
from pyro_manifold.infer.mcmc import Kernel, check_counts, is_a
from pyro_manifold.infer.mcmc.running import Outcome, Shards, Store, as_store
from pyro_manifold.store import FORMAT, fingerprint, locked, read_json, write_durably

_FEWEST = 20
_NAME = "study.json"
_PER_TRUTH = 10  # iterations for each true value that is drawn from a posterior


def calibrate(
    model: Model,
    kernel: MakeKernel,
    *args: Any,
    num_datasets: int = 200,
    num_samples: int = 500,
    warmup_steps: int | None = None,
    num_chains: int = 1,
    observed: Sequence[str] | None = None,
    simulate: Model | None = None,
    conditioned_on: bool | Mapping[str, Tensor] = False,
    vectorized: bool = False,
    level: float = 0.01,
    max_entries: int = 20,
    executor: Executor | Callable[[], Executor] | None = None,
    store: str | Path | Store | None = None,
    resume: bool = False,
    disable_progbar: bool = False,
    **kwargs: Any,
) -> Calibration:
    r"""Check a model and its sampler by simulation-based calibration: are ranks of true values among draws uniform?

    For each data set, true values are drawn from the prior and data from the model,

    $$
    \theta \sim p(\theta), \quad y \sim p(y \mid \theta), \quad \theta_1, \dots, \theta_L \sim p(\theta \mid y),
    $$

    and the rank of $f(\theta)$ among $f(\theta_1), \dots, f(\theta_L)$ is uniform on 0, …, L for every quantity f if
    the draws are those of the posterior. The quantities are the entries of all latent sites, the log likelihood and the
    log density. Sites that the posterior identifies only up to signs, order or rotations of columns are replaced by
    their `pyro_manifold.diagnostics.invariants`. Discrete sites are summed out and have no ranks.

    **False alarms.** If model and sampler are right, ``p_value`` is at most ``level`` with probability ``level``, for
    all quantities together: their dependence is part of the null distribution, which is simulated by exchanging the
    true value with draws. Draws are thinned to near-independence, to 99, 79, 59, 39, 19 or 9 of each data set.

    **Failures.** Data sets whose fit raises an error or is not finite have no ranks. Fits with divergences or with
    chains that hardly moved have ranks. Both are counted in ``failures`` and in the printed result.

    Args:
        model: a Pyro model with proper priors.
        kernel: a kernel class, or a function from a model to its kernel, such as
            ``lambda model: OHMC(model, target_accept_prob=0.9)``.
        *args: arguments of the model. Of the data only the shapes are used.
        num_datasets: number of simulated data sets, at least 20. A shift of a quantity by
            $5 / \sqrt{\mathrm{num\_datasets}}$ posterior standard deviations is found in about 9 of 10 studies.
        num_samples: iterations of each chain after warm-up, as for `MCMC`.
        warmup_steps: iterations of warm-up; ``num_samples`` if None.
        num_chains: number of chains of each data set.
        observed: names of the observed sites; those that the model observes if None.
        simulate: another model, called with the same arguments, that draws true values and data, with the same names
            of sites; ``model`` if None.
        conditioned_on: True, or values ``{observed site: value}``: posterior calibration about the data that the model
            observes, or these. True values are then drawn from the posterior given these data, by a longer run of the
            same kernel, and the data sets are fitted together with these data: the check is of the part of parameter
            space that matters for the data, and needs no proper prior.
        vectorized: whether to advance the chains of all data sets in one run, each conditioned on its own data set, for
            kernels of this package. It takes a fraction of the time. Warm-up adapts to all data sets together, so that
            the check is of model and transitions, and not of the adaptation to a single data set.
        level: probability of an alarm if model and sampler are right.
        max_entries: largest number of entries of a site that are ranked; of larger ones equally spaced entries are.
        executor: a `concurrent.futures.Executor`, or a function that returns one, for data sets in parallel. Results do
            not depend on it.
        store: a folder in which each fit is stored when it is finished. Not with ``vectorized``.
        resume: continue the study in ``store``; it may have more data sets than before.
        disable_progbar: whether to hide the progress bar.
        **kwargs: keyword arguments of the model.

    Returns:
        A `pyro_manifold.diagnostics.Calibration`, with ``p_value``, ``ranks``, ``failures``, ``summary()`` and
        ``plot()``.

    Raises:
        ValueError: for invalid arguments; for a model without observed or latent sites, or with `pyro.factor`; for
            latent sites that ``simulate`` lacks; and if the store has another study.
        Exception: the error of the first fit, if fewer than 20 fits have ranks.

    Warns:
        UserWarning: if fits have no ranks; warnings of fits, once each, with the number of fits.

    Sources: Talts, Betancourt, Simpson, Vehtari & Gelman, arXiv 1804.06788. Log likelihood: Modrák et al., Bayesian
    Analysis 2023. Bands: Säilynoja, Bürkner & Vehtari, Statistics and Computing 2022. Posterior calibration:
    Säilynoja, Schmitt, Bürkner & Vehtari, arXiv 2502.03279.

    Examples:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from pyro_manifold.infer import OHMC
        >>> _ = pyro.set_rng_seed(0)
        >>> def model(y):
        ...     m = pyro.sample("m", dist.Normal(0.0, 1.0))
        ...     with pyro.plate("rows", len(y)):
        ...         pyro.sample("y", dist.Normal(m, 1.0), obs=y)
        >>> result = calibrate(model, OHMC, torch.zeros(5), vectorized=True, num_datasets=100)
        >>> len(result.ranks), list(result.ranks.columns)
        (100, ['m', 'log likelihood', 'log density'])
    """
    fit = _fit(kernel, num_samples, warmup_steps, num_chains)
    _check(num_datasets, level, max_entries, vectorized=vectorized, executor=executor, store=store)
    for name, function in {"model": model, "simulate": simulate or model}.items():
        if not callable(function):
            raise ValueError(f"calibrate: {name}={function!r}, expected a Pyro model.")
    observations = observed_sites(model, args, kwargs, observed)
    generator = Generator(simulate or model, args, kwargs, tuple(observations))
    seed = int(torch.randint(2**63 - 1, ()))
    given = _conditioned_on(conditioned_on, observations)
    with torch.random.fork_rng(devices=[]):
        quantities = _quantities(model, kernel, generator, observations, given, max_entries)
    study = Study(generator, fit, quantities, seed, given)
    shards = None if executor is None else Shards(executor, num_datasets)
    folder = as_store(store, resume)
    if folder is not None:
        folder.make_folder()
    with nullcontext() if folder is None else locked(folder.folder):
        if folder is not None:
            study = replace(study, store=folder, seed=_seed_of_study(folder, study, resume))
        if given is not None:
            study = replace(study, truth=_truth(study, num_datasets))
        outcomes = (
            vectorised(study, num_datasets, disable_progbar)
            if vectorized
            else one_by_one(study, num_datasets, shards, disable_progbar)
        )
    return _result(outcomes, level)


def _quantities(
    model: Model,
    make: MakeKernel,
    generator: Generator,
    observations: Values,
    conditioned_on: Values | None,
    max_entries: int,
) -> Quantities:
    """Return the ranked quantities; raise an error for a model that cannot be simulated."""
    args, kwargs = generator.args, dict(generator.kwargs)

    def target_given(values: Values) -> Target:
        kernel = make(Conditioned(model, values))
        if isinstance(kernel, Kernel):
            return kernel.target(kernel.program(args, kwargs))
        return Program(Conditioned(model, values), args, kwargs).target

    target = target_given(observations)
    if not target.manifolds and not target.transforms:
        raise ValueError("calibrate: the model has no latent site, expected at least one that is not summed out.")
    values = first_draw(latent_values(target, 1))
    summed_out = bool(without_draws(Program(Conditioned(model, observations), args, kwargs), values))
    if conditioned_on is None:
        data = check_generates(generator, values, generator.model is model).data
    elif summed_out:
        raise NotImplementedError("calibrate: conditioned_on= does not support discrete sites that are summed out.")
    else:
        data = generator.draw(values).data
    symmetries = symmetries_of(target_given(data))
    return Quantities(Conditioned(model, data, conditioned_on), args, kwargs, symmetries, max_entries, summed_out)


def _conditioned_on(conditioned_on: Any, observations: Values) -> Values | None:
    """Return the data of posterior calibration; None for calibration over the prior."""
    if isinstance(conditioned_on, bool):
        return observations if conditioned_on else None
    if not isinstance(conditioned_on, Mapping):
        raise ValueError(
            f"calibrate: conditioned_on is a {type(conditioned_on).__name__}, expected True or "
            "{observed site: value}."
        )
    if set(conditioned_on) != set(observations):
        raise ValueError(
            f"calibrate: conditioned_on has {sorted(conditioned_on)}, expected the observed sites "
            f"{sorted(observations)}."
        )
    return {name: torch.as_tensor(value).detach() for name, value in conditioned_on.items()}


def _truth(study: Study, count: int) -> Values:
    """Return true values, draws from the posterior given the data of `Study.conditioned_on`, by a longer run."""
    fit = study.fit
    longer = replace(fit, num_samples=max(fit.num_samples, -(-_PER_TRUTH * count // fit.num_chains)), draws=count)
    mcmc = longer.mcmc(fit.make(Conditioned(study.quantities.model.__wrapped__, study.conditioned_on or {})))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed % 2**63)
        mcmc.run(*study.generator.args, **study.generator.kwargs)
    truth = longer.kept(mcmc.get_samples(group_by_chain=True))
    truth = {name: x[0] for name, x in truth.items()}
    # Not of entries, whose signs and order may change rarely without an effect on ranks.
    quantities = torch.stack(list(study.quantities.of_sites(truth).values()), -1)
    rho = autocorrelation(quantities.cpu().double().unsqueeze(0).numpy())
    if rho > 0.1:
        _warn(
            f"calibrate: successive true values, drawn from the posterior of conditioned_on=, have an autocorrelation "
            f"of {rho:.2f}, which makes alarms too frequent: use more chains or iterations."
        )
    return truth


def _fit(kernel: Any, num_samples: Any, warmup_steps: Any, num_chains: Any) -> Fit:
    if isinstance(kernel, MCMCKernel) or not callable(kernel):
        raise ValueError(
            f"calibrate: kernel={kernel!r}, expected a kernel class such as OHMC, or a function such as lambda model: "
            "OHMC(model, target_accept_prob=0.9)."
        )
    check_counts(num_samples=num_samples, num_chains=num_chains)
    total = num_samples * num_chains
    if total < NUMBERS_OF_DRAWS[-1]:
        raise ValueError(f"calibrate: there are {total} draws of a data set, expected at least 9: raise num_samples.")
    warmup = num_samples if warmup_steps is None else warmup_steps
    return Fit(kernel, num_samples, warmup, num_chains, min(total, NUMBERS_OF_DRAWS[0]))


def _check(num_datasets: Any, level: Any, max_entries: Any, **others: Any) -> None:
    check_counts(num_datasets=num_datasets, max_entries=max_entries)
    if num_datasets < _FEWEST:
        raise ValueError(
            f"calibrate: num_datasets={num_datasets}, expected at least {_FEWEST}: ranks of fewer data sets show "
            "hardly any fault."
        )
    if not is_a(Real, level) or not 0 < level < 1:
        raise ValueError(f"calibrate: level={level!r}, expected a probability of a false alarm, such as 0.01.")
    if not isinstance(others["vectorized"], bool):
        raise ValueError(f"calibrate: vectorized={others['vectorized']!r}, expected True or False.")
    for name in ("executor", "store"):
        if others["vectorized"] and others[name] is not None:
            raise ValueError(f"calibrate: {name} is for fits of single data sets: leave it or vectorized=True out.")


def _seed_of_study(store: Store, study: Study, resume: bool) -> int:
    """Return the seed of the stored study, or that of a new one, which is written.

    Raises:
        ValueError: if the folder has a study and ``resume`` is not given, or the study is another one.
    """
    path, described = store.folder / _NAME, _settings(study)
    if not path.exists():
        write_durably({path: json.dumps({"format": FORMAT, "seed": study.seed, "settings": described}).encode()})
        return study.seed
    if not resume:
        raise ValueError(
            f"store='{store.folder}' already holds a study: continue it with resume=True, or choose another folder."
        )
    found = read_json(path)
    seed, settings = found.get("seed"), found.get("settings")
    if type(seed) is not int or not isinstance(settings, dict):
        raise ValueError(f"{path} is damaged: it has no seed or no settings.")
    described = _settings(replace(study, seed=seed))
    for name, value in described.items():
        if settings.get(name) != value:
            raise ValueError(
                f"store='{store.folder}' has another study: {name} was {str(settings.get(name))[:60]}, and is "
                f"{value[:60]}; choose another folder."
            )
    return seed


def _settings(study: Study) -> dict[str, str]:
    """Return the settings on which fits depend, as strings; those of the model by a simulated data set."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(study.seed % 2**63)
        simulated = None if study.conditioned_on is not None else study.generator.draw()
    kernel = study.fit.make(study.quantities.model)
    settings = kernel.configuration() if isinstance(kernel, Kernel) else {"kernel": type(kernel).__name__}
    counts = {name: str(getattr(study.fit, name)) for name in ("num_samples", "warmup_steps", "num_chains", "draws")}
    arguments = (study.generator.args, dict(study.generator.kwargs))
    hashes = {
        "the fingerprint of the model's arguments": fingerprint(arguments),
        "the fingerprint of a simulated data set": fingerprint(simulated and tuple(simulated)),
        "the fingerprint of conditioned_on": fingerprint(study.conditioned_on),
    }
    return {**settings, **counts, **hashes, "max_entries": str(study.quantities.most_entries)}


def _result(outcomes: list[Outcome], level: float) -> Calibration:
    """Return the result of fits, with warnings that they issued."""
    count = len(outcomes)
    reasons = {number: _reason(outcome) for number, outcome in enumerate(outcomes)}
    failed = {number for number, outcome in enumerate(outcomes) if outcome.error is not None or _not_finite(outcome)}
    ranked = [number for number in range(count) if number not in failed]
    if len(ranked) < _FEWEST:
        error = next((each.error for each in outcomes if each.error is not None), None)
        if error is None:
            raise ValueError(f"calibrate: {len(failed)} of {count} fits are not finite ({reasons[min(failed)]}).")
        error.add_note(f"calibrate: {len(failed)} of {count} fits have no ranks.")
        raise error
    messages = Counter(str(found) for each in outcomes for found in each.warnings if not isinstance(found, StuckChains))
    for words, times in messages.items():
        _warn(f"calibrate, in {times} of {count} fits: {words}")
    if failed:
        _warn(f"calibrate: {len(failed)} of {count} fits have no ranks (the first one: {reasons[min(failed)]}).")
    values = {
        name: torch.stack([outcomes[number].samples[name] for number in ranked]).numpy()
        for name in outcomes[ranked[0]].samples
    }
    return Calibration(values, ranked, count, level, {number: words for number, words in reasons.items() if words})


def _reason(outcome: Outcome) -> str:
    """Return why a fit has no ranks, or sampled poorly; nothing for a good one."""
    if outcome.error is not None:
        return described(outcome.error)
    bad = _not_finite(outcome)
    if bad:
        return f"draws of {', '.join(bad[:3])} are not finite"
    found = []
    if outcome.statistics["stuck"] > 0:
        found.append("chains that hardly moved")
    if outcome.statistics["divergences"] > 0:
        found.append("divergences")
    return ", ".join(found)


def _not_finite(outcome: Outcome) -> list[str]:
    """Return quantities that are not finite; a density may be zero at the true value if model and generator differ."""
    return [
        name
        for name, x in outcome.samples.items()
        if bool(x.isnan().any()) or (not name.startswith("log ") and bool(x.isinf().any()))
    ]


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
