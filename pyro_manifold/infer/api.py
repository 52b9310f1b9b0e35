"""MCMC with all chains in one process, with the interface of `pyro.infer.MCMC`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel

from pyro_manifold.density import (
    Program,
    Sites,
    models_run,
    refuse_dependent,
    refuse_for_kernels_of_pyro,
)
from pyro_manifold.infer.mcmc import (
    Kernel,
    Superchains,
    chains_and_goals,
    check_counts,
    check_data_loader,
    check_iterations,
    check_kernel,
    check_method,
    check_names,
    check_shards,
    check_vectorised,
    functions,
    stacked,
)
from pyro_manifold.infer.mcmc.running import (
    Consumer,
    DrawStorage,
    Goal,
    InMemory,
    Iteration,
    Job,
    OnDisk,
    Run,
    Sampling,
    ShardedDraws,
    Shards,
    Store,
    SymmetryRecord,
    Until,
    as_store,
    identified_quantities,
    lengths,
    run_shards,
    seed_of_all,
    warn_of_chains,
)
from pyro_manifold.infer.results import Results
from pyro_manifold.infer.tempering import Tempering, as_tempering
from pyro_manifold.store import fingerprint

ChainMethod = Literal["vectorized", "parallel", "sequential"] | Shards


class MCMC(Results):
    """`pyro.infer.MCMC`, with all chains advanced together in one process.

    With ``chain_method="vectorized"`` and a kernel of this package, chains are the leading dimension of every tensor: a
    leapfrog step moves all of them, and warm-up adapts step size and masses on all of them jointly. Each chain has its
    own initial values. Other kernels, such as Pyro's NUTS, run as in Pyro.

    Args:
        kernel: the kernel.
        num_samples: number of iterations of each chain after warm-up; each gives a draw unless ``thinning`` is set.
            With ``until`` it is the minimum, 100 if None. If both are None, ``until`` has its default.
        warmup_steps: number of warm-up iterations, during which the kernel adapts; ``num_samples`` if None, and 500 if
            that is None too.
        initial_params: initial values ``{site: tensor}``, with a leading chain dimension if ``num_chains > 1`` (of
            groups, with `Superchains`); manifold sites on their manifold, all others unconstrained.
            `SMC.initial_params` returns them in this form; for values as in the model, `init_to_draws` of the kernel.
        num_chains: number of chains, 1 to thousands; or `Superchains`, groups of chains that share an initial value,
            for nested R-hat. If None, 1 with ``num_samples`` or ``until``, as in Pyro, and 4 without both.
        hook_fn: called as ``hook_fn(kernel, params, stage, i)`` after each iteration; under ``"vectorized"`` each of
            ``params`` has a leading chain dimension.
        mp_context: for ``"parallel"``: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        disable_progbar: whether to hide the progress bar.
        disable_validation: as in Pyro.
        transforms: as in Pyro.
        save_params: names of the sites to keep, all if None.
        chain_method: ``"vectorized"``, `Shards` of vectorised chains in other processes, or Pyro's own processes
            (``"parallel"``) or one chain after another (``"sequential"``).
        thinning: number of iterations per draw after warm-up; each chain has ``num_samples // thinning`` draws. For
            ``"vectorized"``.
        consumers: functions called with each `Iteration` (stage, index, sites, statistics) when it is finished, for
            example to update a running mean; with ``save_params=[]`` no draw is stored. For ``"vectorized"``.
        until: `Until`, or a dictionary such as ``{"ess": 400, "rhat": 1.01}``: sample until effective sample sizes and
            R-hat reach these values. If ``num_samples`` is None too, ``Until(ess=400, rhat=1.01)``, or with
            `Superchains` ``Until(ess=400, nested_rhat=1.01)``. For ``"vectorized"``.
        store: a folder, or a `Store`, to which draws are written during the run. They are then not kept in memory, and
            `get_samples` reads them from there. For ``"vectorized"``.
        resume: continue the run in ``store`` from its last checkpoint, bit for bit; start a new run if there is none.
        tempering: True, or `ReplicaExchange` with its arguments: replica exchange (parallel tempering). Each chain
            becomes a ladder of replicas between prior and posterior that swap states, which lets it move between modes
            and estimates the evidence. For OHMC and GHMC, ``"vectorized"``.

    Attributes:
        program: the model with the arguments of `run`; None before, and for a kernel with a ``potential_fn``.
        stopped: reason for which a run with ``until`` stopped, which `summary` prints; None while it has not. Goals
            that are not reached are also a warning.

    An interrupt (Ctrl-C) while sampling keeps the draws made so far, with a warning; one during warm-up is raised, and
    `continue_run` completes that warm-up. An error while sampling is raised, and `get_samples` has the draws made
    before it.

    Raises:
        ValueError: if ``kernel`` is not a kernel, for an unknown ``chain_method``, for ``initial_params`` without the
            right leading dimension, and without ``num_samples`` where ``until`` is not supported.

    Examples:
        >>> import pyro
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import OHMC
        >>> mcmc = MCMC(OHMC(lambda: pyro.sample("U", StiefelUniform(4, 2))), 10, num_chains=5, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples(group_by_chain=True)["U"].shape
        torch.Size([5, 10, 4, 2])
    """

    def __init__(
        self,
        kernel: MCMCKernel,
        num_samples: int | None = None,
        warmup_steps: int | None = None,
        initial_params: Sites | None = None,
        num_chains: int | Superchains | None = None,
        hook_fn: Callable[..., None] | None = None,
        mp_context: str | None = None,
        disable_progbar: bool = False,
        disable_validation: bool | None = True,
        transforms: dict[str, Any] | None = None,
        save_params: list[str] | None = None,
        *,
        chain_method: ChainMethod = "vectorized",
        thinning: int = 1,
        consumers: Sequence[Consumer] = (),
        until: Until | Mapping[str, float] | None = None,
        store: str | Path | Store | None = None,
        resume: bool = False,
        tempering: bool | Tempering = False,
    ) -> None:
        check_kernel(kernel)
        check_names(save_params)
        check_method(chain_method)
        self.num_samples: int
        self.stopped: str | None = None
        self._shards = chain_method if isinstance(chain_method, Shards) else None
        self._vectorised = chain_method not in ("parallel", "sequential") and isinstance(kernel, Kernel)
        num_chains, num_superchains, goals = chains_and_goals(
            num_chains, num_samples, until, kernel, self._vectorised, chain_method
        )
        self._until, self._num_superchains = goals, num_superchains
        num_samples, warmup_steps, most = lengths(num_samples, warmup_steps, goals, thinning)
        check_counts(num_chains=num_chains, num_samples=num_samples)
        check_iterations(num_samples, warmup_steps, thinning, hook_fn)
        optional = {"until": until, "Superchains": num_superchains, "tempering": tempering or None}
        check_vectorised(self._vectorised, thinning, consumers, store=store, Shards=self._shards, **optional)
        local = {"hook_fn": hook_fn, "consumers": consumers, "until": until, "Superchains": num_superchains}
        check_shards(self._shards, {"num_chains": num_chains}, transforms=transforms, **local)
        self._tempering = as_tempering(tempering)
        if self._tempering is not None:
            warmup = num_samples if warmup_steps is None else warmup_steps
            others = {"Superchains": num_superchains, "Shards": self._shards}
            self._tempering.check(kernel, warmup, initial_params=initial_params, **others)
        self.program = None
        self._store, self._resume = as_store(store, resume), resume
        if self._store is not None and transforms is not None:
            raise ValueError(
                "MCMC: store does not support transforms, as it keeps constrained draws: pass transforms to the "
                "kernel instead."
            )
        arguments = {
            "warmup_steps": warmup_steps,
            "hook_fn": hook_fn,
            "mp_context": mp_context,
            "disable_progbar": disable_progbar,
            "disable_validation": disable_validation,
            "transforms": transforms,
            "save_params": save_params,
        }
        if self._vectorised or (chain_method == "sequential" and num_chains > 1):
            # Pyro's constructor starts processes for several chains; with one chain it does everything else.
            super().__init__(kernel, num_samples, **arguments)
            self.num_chains = num_chains
            self._diagnostics = [None] * num_chains
            self._initial_params = stacked(initial_params, num_chains, num_superchains or num_chains)
            self.sampler.num_chains = num_chains
            self.sampler.initial_params = self._initial_params
        else:
            super().__init__(kernel, num_samples, initial_params=initial_params, num_chains=num_chains, **arguments)
        self._hook = hook_fn
        self._requested_samples, self._most_samples = num_samples, most
        self._thinning = thinning
        self._consumers = functions(consumers)
        self._save_params = save_params
        self._disable_progbar = disable_progbar
        self._sampling: Sampling | ShardedDraws | None = None

    def run(self, *args: Any, data_loader: Iterable[Any] | None = None, **kwargs: Any) -> None:
        """Run all chains, and warn about chains that hardly moved. Runs in threads of one process follow one another.

        Args:
            *args: arguments of the model.
            data_loader: an iterable over batches, such as a torch ``DataLoader``, for kernels that use a new batch at
                each step (`SGLD`, `PSGLD`, `SGHMC`, `OSGHMC`). A batch's tensors become the model's positional
                arguments (its keyword arguments, if it is a dictionary).
            **kwargs: keyword arguments of the model.
        """
        check_data_loader(data_loader, self._vectorised and self.kernel.supports_minibatches, self.kernel)
        own = tuple(arg.detach() if torch.is_tensor(arg) else arg for arg in args)
        if self._vectorised:
            self.run_program(self.kernel.program(own, kwargs, data_loader))
            return
        program = None
        if isinstance(self.kernel, Kernel):
            program = self.kernel.program(own, kwargs)
        elif getattr(self.kernel, "model", None) is not None:
            program = Program(self.kernel.model, own, kwargs)
            refuse_for_kernels_of_pyro(program)
        super().run(*args, **kwargs)
        self.program, self._posterior = program, None
        self._warn_of_chains()

    def run_program(self, program: Program | None) -> None:
        """Run as `run` does, for a model with its arguments; None for the ``potential_fn`` of the kernel."""
        self._take(program)
        if self._shards is not None:
            self._run_shards(self._shards, self._requested_samples, self._resume)
        else:
            self._run_vectorised()
        self._warn_of_chains()

    def compare_program(self, program: Program | None) -> None:
        """Compare the stored run with this one, without sampling.

        Raises:
            ValueError: if they differ; the message names the difference.
        """
        self._take(program)
        self._begun()

    def _take(self, program: Program | None) -> None:
        if self._store is not None:
            self._store.check_is_free(self._resume, self._shards is not None)
        if self._samples is not None and self.num_samples:
            _ = self.posterior  # a run that fails leaves the draws of the one before, with the arguments of that one
        self.program = program
        # Attributes of Pyro's MCMC, which `arviz.from_pyro` reads.
        self._args, self._kwargs = ((), {}) if program is None else (program.args, program.kwargs)

    def continue_run(self, num_samples: int) -> None:
        """Continue sampling from the current state without new warm-up; further draws are appended in `get_samples`.

        After an interrupt during warm-up, warm-up is completed first. Draws do not depend on whether a run is made in
        one call or in several, up to rounding: native code is compiled earlier if more iterations are planned.

        Args:
            num_samples: number of iterations of each chain, in addition to those of `run` and earlier calls.

        Raises:
            ValueError: before `run`; for a run that was not vectorised, or in shards without a store; and if the model
                or its data have changed since, as far as the log density shows.
        """
        check_counts(num_samples=num_samples)
        if self._sampling is None and self._posterior is not None and self._vectorised:
            raise ValueError(
                "MCMC.continue_run: this object is a copy, which has the draws and not the state of the chains: go on "
                "with the original, or give MCMC a store and resume that run, MCMC(..., store=folder, resume=True)."
            )
        if self._sampling is None or (self._shards is not None and self._store is None):
            raise ValueError(
                "MCMC.continue_run needs a vectorised run of this object, and a store if it is in shards: call "
                "mcmc.run(...) first."
            )
        if isinstance(self._sampling, Sampling):
            self._sampling.check_density(self._fingerprints_of_data())
            self._sampling.ask_for(num_samples)
            self._sample(self._sampling)
        elif self._shards is not None:
            self._run_shards(self._shards, self._sampling.requested_iterations + num_samples, resume=True)
        self._warn_of_chains()

    def _warn_of_chains(self) -> None:
        if self._sampling is None:
            warn_of_chains(self._samples, self.posterior.statistics)
            return
        run, (samples, statistics) = self._run_here, self._sampling.recent()
        warn_of_chains(samples, statistics, None if run is None else run.max_temperature_site)
        self.kernel.warn_of_draws(statistics)
        if run is not None:
            run.warn()

    def _run_vectorised(self) -> None:
        with models_run(self.disable_validation):
            self._sampling = sampling = self._begun()
            self._sample(sampling)

    def _begun(self) -> Sampling:
        """Return the run before its first iteration, or in the last state of the stored run."""
        data = self._fingerprints_of_data()  # before the model can change them
        with models_run(self.disable_validation):
            run: Run[Any, Any]
            if self._tempering is None:
                target = self.kernel.target(self.program, self._initial_params)
                run = self.kernel.run_of(target, self.num_chains, self.warmup_steps, self._initial_params)
            else:
                program: Any = self.program  # not None, as `Tempering.check` has checked
                run = self._tempering.prepare(self.kernel, self.num_chains, self.warmup_steps, program)
            self.kernel.run = run
            if self._num_superchains is not None:
                together = self.num_chains // self._num_superchains
                run.move_to({name: x[::together].repeat_interleave(together, 0) for name, x in run.positions.items()})
            data = data if run.problem.is_subsampled else {}
            storage, goal = self._storage(run, data), self._goal(run)
            return Sampling(run, storage, self._thinning, self._most_samples, goal, data)

    def _run_shards(self, shards: Shards, num_samples: int, resume: bool) -> None:
        options = {name: getattr(self, f"_{name}") for name in ("thinning", "save_params")}
        options |= {"warmup_steps": self.warmup_steps, "disable_validation": self.disable_validation}
        job = Job(
            MCMC,
            self.kernel,
            num_samples,
            self.num_chains,
            self._initial_params,
            options,
            self.program,
            self._store,
            seed_of_all(self._store, shards.count, resume),
        )
        comparison = job.comparison(shards.count) if resume else None
        if comparison is not None:
            run_shards(shards, comparison, 0, True)
        outcomes = run_shards(shards, job, self.warmup_steps + num_samples, self._disable_progbar)
        self._sampling = ShardedDraws(job, outcomes, self._thinning)
        self._take_results(self._sampling)

    def _goal(self, run: Run[Any, Any]) -> Goal | None:
        if self._until is None:
            return None
        least = self._requested_samples // self._thinning
        quantities, stored, has_sites = identified_quantities(run), self._save_params, bool(run.sites)
        return Goal(self._until, self._num_superchains, quantities, least, stored=stored, has_sites=has_sites)

    def _fingerprints_of_data(self) -> dict[str, str]:
        """Return fingerprints of the data of a kernel that takes minibatches, by name."""
        return self.program.fingerprints() if self.kernel.supports_minibatches and self.program is not None else {}

    def _storage(self, run: Run[Any, Any], data: Mapping[str, str]) -> DrawStorage:
        """Return the draw storage of a run."""
        names = self._names_to_save(run)
        if self._store is None:
            if self.transforms is not None:
                refuse_dependent(run.target.dependent, "transforms of MCMC do not follow")
            return InMemory(self._requested_samples // self._thinning, names, run.target, self.transforms)
        parts = {"num_superchains": str(self._num_superchains), "tempering": repr(self._tempering), **data}
        if self._initial_params is not None:
            starts = {name: x + 0.0 for name, x in self._initial_params.items()}  # which has no -0.0
            parts["the fingerprint of initial_params"] = fingerprint(starts)
        return OnDisk(self._store, run, names, self._thinning, parts, resume=self._resume)

    def _sample(self, sampling: Sampling) -> None:
        """Run warm-up and sampling; after an interrupt or an error the draws so far are kept."""
        consumers = [*self._consumers, *([self._call_hook] if self._hook is not None else [])]
        if self._store is not None:
            names = self._names_to_save(sampling.run)
            consumers.append(SymmetryRecord(self._store.folder, sampling.run, names))
        with models_run(self.disable_validation):

            def progress() -> dict[str, str]:
                return {**self.kernel.logging(), **sampling.progress(), **sampling.run.progress()}

            sampling.resume(consumers, progress, self._disable_progbar)
        self.stopped = sampling.stopped
        self._take_results(sampling)
        if sampling.error is not None:
            raise sampling.error

    def _take_results(self, sampling: Sampling | ShardedDraws) -> None:
        """Take over the draws and diagnostics of a run."""
        self.num_samples = sampling.draws
        self._samples, self._posterior = sampling.samples(), None

    def _call_hook(self, iteration: Iteration) -> None:
        self._hook(self.kernel, iteration.sites, iteration.stage, iteration.index)  # type: ignore[misc]

    def _names_to_save(self, run: Run[Any, Any]) -> list[str]:
        sites = sorted(run.sites)
        names = sites if self._save_params is None else self._save_params
        unknown = sorted(set(names) - set(sites))
        if unknown:
            raise ValueError(f"save_params names {unknown}, but the sites are {sites}.")
        return names
