"""Fits to simulated data sets: one after another, by an executor, or all in one vectorised run; their storage."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyro
import torch
from torch import Tensor

from pyro_manifold.contrib.calibration.quantities import Quantities
from pyro_manifold.contrib.calibration.simulation import Conditioned, Generator, Simulated
from pyro_manifold.contrib.calibration.uniformity import spaced
from pyro_manifold.density import BatchedDensity, Batches, Minibatch, Sites
from pyro_manifold.diagnostics import StuckChains, Values, stuck_chains
from pyro_manifold.infer import MCMC
from pyro_manifold.infer.mcmc import Kernel
from pyro_manifold.infer.mcmc.running import Outcome, Shards, Store, outcome_of, outcomes_of
from pyro_manifold.progress import progress_bar
from pyro_manifold.store import Archive, numbered_path, packed, write_durably

_STEM = "dataset"
MakeKernel = Callable[[Any], Any]


class NotFiniteError(ValueError):
    """Error of a data set with values that are not finite."""


class StoredError(RuntimeError):
    """Error of a fit, as it was stored."""


def described(error: Exception) -> str:
    """Return the first line of an error, with its type unless it is one of those above."""
    named = "" if isinstance(error, NotFiniteError | StoredError) else f"{type(error).__name__}: "
    return f"{named}{error}".splitlines()[0]


@dataclass(frozen=True)
class Fit:
    """Settings of the fit to one data set.

    Attributes:
        make: function from a model to its kernel.
        num_samples: iterations of each chain after warm-up.
        warmup_steps: iterations of warm-up.
        num_chains: chains of a data set.
        draws: number of draws that are kept, of all chains together.
    """

    make: MakeKernel
    num_samples: int
    warmup_steps: int
    num_chains: int
    draws: int

    def mcmc(self, kernel: Any, data_sets: int = 1, **options: Any) -> MCMC:
        """Return the sampler of some data sets, with the chains of each next to each other."""
        method: Any = "vectorized" if isinstance(kernel, Kernel) else "sequential"
        chains = data_sets * self.num_chains
        options = {"num_chains": chains, "chain_method": method, "disable_progbar": True, **options}
        return MCMC(kernel, self.num_samples, self.warmup_steps, **options)

    def kept(self, samples: Sites, data_sets: int = 1) -> Sites:
        """Return the equally spaced draws ``{site: (data sets, draws, ...)}`` of ``{site: (chains, draws, ...)}``."""
        pooled = {name: x.unflatten(0, (data_sets, self.num_chains)).flatten(1, 2) for name, x in samples.items()}
        return {name: x[:, spaced(x.shape[1], self.draws)] for name, x in pooled.items()}


class Fitted(NamedTuple):
    """Quantities at the true value and at the draws of a data set.

    Attributes:
        values: ``{quantity: (1 + draws,)}``, the true value first.
        problems: number of chains that hardly moved and of iterations that diverged, as tensors.
    """

    values: dict[str, Tensor]
    problems: dict[str, Tensor]


@dataclass(frozen=True)
class Study:
    """Work of a study: simulate a data set and fit it, for each number.

    Attributes:
        generator: simulation of data sets.
        fit: settings of each fit.
        quantities: the ranked quantities.
        seed: seed from which the seeds of data sets are derived.
        conditioned_on: observed data of which the likelihood is part of the model, for posterior calibration.
        truth: draws from the posterior given these data, ``{site: (data sets, ...)}``.
        store: folder of the fits; None to keep them in memory.
    """

    generator: Generator
    fit: Fit
    quantities: Quantities
    seed: int
    conditioned_on: Values | None = None
    truth: Values | None = None
    store: Store | None = None

    def simulated(self, number: int) -> Simulated:
        """Draw a data set from the current state of torch's random number generator."""
        truth = None if self.truth is None else {name: x[number] for name, x in self.truth.items()}
        return self.generator.draw(truth)

    def done_by(self, number: int, count: int) -> Fitted:
        """Return the fit of one data set; that of the store, if it is there."""
        path = None if self.store is None else numbered_path(self.store.folder, _STEM, number)
        if path is not None and path.exists():
            return _read(path)
        try:
            found, error = self._fitted(self.simulated(number)), None
        except Exception as raised:  # a model can fail in any way
            found, error = Fitted({}, {}), raised
        if path is not None:
            write_durably({path: _written(found, error)})
        if error is not None:
            raise error
        return found

    def _fitted(self, simulated: Simulated) -> Fitted:
        _check_finite(simulated)
        mcmc = self.fit.mcmc(
            self.fit.make(Conditioned(self.quantities.model.__wrapped__, simulated.data, self.conditioned_on))
        )
        mcmc.run(*self.generator.args, **self.generator.kwargs)
        samples = mcmc.get_samples(group_by_chain=True)
        data = {name: x.unsqueeze(0) for name, x in simulated.data.items()}
        values = self.quantities(_points([simulated], self.fit.kept(samples)), data)
        return Fitted({name: x[0] for name, x in values.items()}, _problems(mcmc, samples)[0])


def one_by_one(study: Study, count: int, shards: Shards | None, disable_progbar: bool) -> list[Outcome]:
    """Return the outcomes of so many data sets, each of which has a run of its own.

    They do not depend on the executor, nor on the data sets that are in the store already.
    """
    if shards is not None:
        return outcomes_of(shards, study, 1, disable_progbar)
    before = pyro.util.get_rng_state()
    try:
        with progress_bar(total=count, disable=disable_progbar, iterable=range(count)) as numbers:
            return [outcome_of(study, count, number) for number in numbers]
    finally:
        pyro.util.set_rng_state(before)


# ---- all data sets in one run -------------------------------------------------------------------------------


class _OwnData(Batches):
    """Constant batch: the data set of each chain, ``{site: (chains, ...)}``."""

    def __init__(self, data: Values) -> None:
        super().__init__(lambda _: {})
        self._data = data

    def __call__(self, number: int) -> Values:
        return self._data


def vectorised(study: Study, count: int, disable_progbar: bool) -> list[Outcome]:
    """Return the outcomes of so many data sets, whose chains are advanced in one run.

    Each chain is conditioned on its own data set, which is an input of the traced density. Warm-up adapts to all data
    sets together.

    Raises:
        ValueError: for a kernel of another package.
    """
    simulated = [study.simulated(number) for number in range(count)]
    bad = {number: ", ".join(each.not_finite) for number, each in enumerate(simulated) if each.not_finite}
    good = [each for number, each in enumerate(simulated) if number not in bad]
    errors = [_not_finite(bad[number]) if number in bad else None for number in range(count)]
    done = iter(_together(study, good, disable_progbar)) if good else iter(())
    return [Outcome(error, *(Fitted({}, {}) if error else next(done)), []) for error in errors]


def _together(study: Study, simulated: list[Simulated], disable_progbar: bool) -> Iterable[Fitted]:
    data = {name: torch.stack([each.data[name] for each in simulated]) for name in simulated[0].data}
    model = Conditioned(study.quantities.model.__wrapped__, simulated[0].data, study.conditioned_on)
    kernel = study.fit.make(model)
    if not isinstance(kernel, Kernel):
        raise ValueError(f"calibrate: vectorized=True is for kernels of this package, not {type(kernel).__name__}.")
    of_chains = _OwnData({name: x.repeat_interleave(study.fit.num_chains, 0) for name, x in data.items()})

    def batched(target: Any, example: Sites) -> BatchedDensity:
        def potential(sites: Sites, batch: Values) -> Tensor:
            before, model.data = model.data, batch
            try:
                return target.potential_fn(sites)
            finally:
                model.data = before  # that of a trace is no tensor for others

        minibatch = Minibatch(potential, {})
        return BatchedDensity(lambda _: minibatch, of_chains, example, target.manifolds, own=True)

    kernel.batched = batched  # type: ignore[method-assign]
    mcmc = study.fit.mcmc(kernel, len(simulated), disable_progbar=disable_progbar)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StuckChains)
        mcmc.run(*study.generator.args, **study.generator.kwargs)
    samples = mcmc.get_samples(group_by_chain=True)
    values = study.quantities(_points(simulated, study.fit.kept(samples, len(simulated))), data)
    for number, problems in enumerate(_problems(mcmc, samples, len(simulated))):
        yield Fitted({name: x[number] for name, x in values.items()}, problems)


# ---- results of fits ------------------------------------------------------------------------------------------


def _points(simulated: list[Simulated], draws: Sites) -> Values:
    """Return true values and draws, ``{site: (data sets, 1 + draws, ...)}``."""
    truth = {name: torch.stack([each.truth[name] for each in simulated]).unsqueeze(1) for name in draws}
    return {name: torch.cat([truth[name].to(x), x], 1) for name, x in draws.items()}


def _problems(mcmc: MCMC, samples: Sites, data_sets: int = 1) -> list[dict[str, Tensor]]:
    """Return the number of chains that hardly moved and of divergent iterations, for each data set."""
    chains = len(next(iter(samples.values())))
    stuck, diverging = torch.zeros(chains), torch.zeros(chains)
    statistics = mcmc.posterior.statistics
    stuck[stuck_chains(samples, statistics)] = 1
    if "diverging" in statistics:
        diverging += statistics["diverging"].sum(1).cpu()
    per_set = (data_sets, chains // data_sets)
    both = zip(stuck.reshape(per_set).sum(1), diverging.reshape(per_set).sum(1), strict=True)
    return [{"stuck": one, "divergences": other} for one, other in both]


def _check_finite(simulated: Simulated) -> None:
    if simulated.not_finite:
        raise _not_finite(", ".join(simulated.not_finite))


def _not_finite(names: str) -> NotFiniteError:
    return NotFiniteError(f"simulated values of {names} are not finite")


def _written(fitted: Fitted, error: Exception | None) -> bytes:
    about = {
        "format": 1,
        "quantities": list(fitted.values),
        "error": None if error is None else described(error),
        **{name: float(x) for name, x in fitted.problems.items()},
    }
    values = torch.stack(list(fitted.values.values())) if fitted.values else torch.empty(0, 0)
    return packed(about, {"values": values.double().numpy()})


def _read(path: Path) -> Fitted:
    archive = Archive(path)
    archive.verify()
    if archive.about["error"] is not None:
        raise StoredError(archive.about["error"])
    values = torch.as_tensor(archive["values"])
    problems = {name: torch.tensor(archive.about[name]) for name in ("stuck", "divergences")}
    return Fitted(dict(zip(archive.about["quantities"], values, strict=True)), problems)
