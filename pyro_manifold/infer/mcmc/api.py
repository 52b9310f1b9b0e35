"""MCMC with all chains in one process: Pyro's face, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import pyro
import pyro.infer
import torch
from pyro import poutine
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from pyro.util import optional

from pyro_manifold.diagnostics.arviz import to_inferencedata
from pyro_manifold.diagnostics.convergence import check_superchains
from pyro_manifold.diagnostics.deterministic import deterministic_values_of_run
from pyro_manifold.diagnostics.modes import modes_of_run
from pyro_manifold.diagnostics.symmetries import Symmetry
from pyro_manifold.diagnostics.table import report, table
from pyro_manifold.infer.mcmc.arguments import (
    check_data_loader,
    check_iterations,
    check_shards,
    check_vectorised,
    functions,
    stacked,
)
from pyro_manifold.infer.mcmc.checks import check_counts
from pyro_manifold.infer.mcmc.exchange.exchange import ReplicaExchange, as_tempering, check_tempering
from pyro_manifold.infer.mcmc.exchange.run import ReplicaRun
from pyro_manifold.infer.mcmc.goal import Goal, Until, check_until, known_by, lengths
from pyro_manifold.infer.mcmc.keeping import InMemory, Keeper
from pyro_manifold.infer.mcmc.loop import Consumer, Iteration
from pyro_manifold.infer.mcmc.on_disk import OnDisk, Store, as_store
from pyro_manifold.infer.mcmc.remarks import symmetries_of_run, warn_of_chains
from pyro_manifold.infer.mcmc.run import Run
from pyro_manifold.infer.mcmc.session import Reports, Session
from pyro_manifold.infer.mcmc.sgmcmc.kernel import StochasticGradientKernel
from pyro_manifold.infer.mcmc.sharded import ShardedDraws, seed_of_all
from pyro_manifold.infer.mcmc.shards import Job, MakeExecutor, Shards, run_shards
from pyro_manifold.infer.mcmc.states import Statistics
from pyro_manifold.store.fingerprint import parts_of
from pyro_manifold.target.batched import Sites
from pyro_manifold.target.loader import FromLoader

ChainMethod = Literal["vectorized", "parallel", "sequential"]


@runtime_checkable
class Vectorised(Protocol):
    """A kernel that can advance all chains together, such as every `Kernel` of this package."""

    def prepare(
        self, chains: int, warmup_steps: int, initial_params: Sites | None, *args: Any, **kwargs: Any
    ) -> Run[Any, Any]: ...


class MCMC(pyro.infer.MCMC):
    """`pyro.infer.MCMC`, with all chains advanced together in one process.

    With ``chain_method="vectorized"`` and a kernel of this package, chains are the leading dimension of every tensor:
    a leapfrog step moves all of them, and one warm-up adapts step size and masses on all of them together. Each
    chain has initial values of its own. Other kernels, such as Pyro's NUTS, run as in Pyro.

    Args:
        kernel: the kernel.
        num_samples: iterations of each chain after warm-up; each is a draw unless ``thinning`` says otherwise. With
            ``until`` the least number of them, 100 if None.
        warmup_steps: iterations before them that adapt; ``num_samples`` if None, and 500 if that is None too.
        initial_params: ``{site: tensor}`` to start from, with a leading chain dimension if ``num_chains > 1``
            (``num_superchains``, if that is given); manifold sites on their manifold, all others unconstrained.
            `SMC.initial_params` has particles so.
        num_chains: number of chains, 1 to thousands.
        hook_fn: called as ``hook_fn(kernel, params, stage, i)`` after each iteration; under ``"vectorized"`` each of
            ``params`` has a leading chain dimension.
        mp_context: for ``"parallel"``: ``"fork"``, ``"spawn"`` or ``"forkserver"``.
        disable_progbar: no progress bar.
        disable_validation: as in Pyro.
        transforms: as in Pyro.
        save_params: names of the sites to keep, all if None.
        chain_method: ``"vectorized"``, or Pyro's own processes (``"parallel"``) or one chain after the other
            (``"sequential"``).
        thinning: keep the end of every so many iterations after warm-up, ``num_samples // thinning`` draws of each
            chain. For ``"vectorized"``.
        consumers: called with every `Iteration` (stage, index, sites, statistics) as it comes, such as a running
            mean; with ``save_params=[]`` no draw is kept. For ``"vectorized"``.
        data_loader: an iterable over batches, such as a torch ``DataLoader``, for kernels that see a new one at each
            step (`SGLD`, `PSGLD`, `SGHMC`, `OSGHMC`). A batch's tensors become the model's positional arguments (its
            keyword arguments, if it is a dictionary); keyword arguments of `run` stay the model's.
        until: ``{"ess": 400, "rhat": 1.01}``, any of them, and ``"nested_rhat"``: sample until every entry of every
            site that is kept, and the log density, has bulk and tail effective sample sizes of at least that and a
            rank-normalised R-hat of at most that, as `summary` shows them. Sites that the posterior knows only up to
            signs, order or rotations of columns are looked at through `pyro_manifold.diagnostics.invariants`, which
            these do not change. For ``"vectorized"``.
        max_samples: with ``until``, at most so many iterations after warm-up; 10,000 if None (``num_samples``, if that
            is more).
        num_superchains: so many groups of chains begin at one point each, so that `summary` and `diagnostics` have
            nested R-hat, which judges many short chains. For ``"vectorized"``.
        store: a folder to which draws go as they come, or a `Store`; then they are in no memory, and `get_samples`
            reads them. For ``"vectorized"``.
        resume: go on with the run that is in the store, from its last checkpoint and bit for bit; begin, if there is
            none.
        executor: a `concurrent.futures.Executor` for chains in other processes, or a function that makes one; see
            ``docs/runs.md``.
        shards: into how many parts ``num_chains`` are split, each with a warm-up, a seed and in ``store`` a folder of
            its own. Draws depend on it, and not on the number of workers.
        threads_per_shard: of each of them.
        tempering: True, or `ReplicaExchange` with its arguments: each chain is a ladder of replicas from the prior to
            the posterior that swap places, so that it passes between modes, and the evidence comes with its draws. For
            OHMC and GHMC, ``"vectorized"``.

    Attributes:
        stopped: why a run with ``until`` stopped; None before it has.

    An interrupt (Ctrl-C) while sampling keeps the draws made so far, with a warning; one during warm-up is raised, and
    `continue_run` goes on with that warm-up. An error while sampling is raised, and `get_samples` has the draws made
    before it.

    Raises:
        ValueError: for another ``chain_method``, or ``initial_params`` without the right leading dimension.

    Example:
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
        num_chains: int = 1,
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
        data_loader: Iterable[Any] | None = None,
        until: Until | None = None,
        max_samples: int | None = None,
        num_superchains: int | None = None,
        store: str | Path | Store | None = None,
        resume: bool = False,
        executor: Executor | MakeExecutor | None = None,
        shards: int = 1,
        threads_per_shard: int = 1,
        tempering: bool | ReplicaExchange = False,
    ) -> None:
        self.num_samples: int
        self.stopped: str | None = None
        num_samples, warmup_steps, most = lengths(num_samples, warmup_steps, until, max_samples)
        check_counts(num_chains=num_chains, num_samples=num_samples, thinning=thinning)
        check_iterations(num_samples, warmup_steps, thinning, hook_fn, chain_method)
        self._vectorised = chain_method == "vectorized" and isinstance(kernel, Vectorised)
        check_vectorised(
            self._vectorised,
            thinning,
            consumers,
            store=store,
            executor=executor,
            until=until,
            num_superchains=num_superchains,
            tempering=tempering or None,
        )
        takes_batches = self._vectorised and isinstance(kernel, StochasticGradientKernel)
        check_data_loader(data_loader, takes_batches, kernel, chain_method)
        self._shards = None if executor is None else Shards(executor, shards, threads_per_shard)
        local = {"hook_fn": hook_fn, "consumers": consumers, "until": until, "num_superchains": num_superchains}
        check_shards(
            self._shards, shards, threads_per_shard, {"num_chains": num_chains}, transforms=transforms, **local
        )
        if num_superchains is not None:
            check_superchains(num_superchains, num_chains)
        if until is not None:
            check_until(until, num_superchains)
        self._until, self._num_superchains = until, num_superchains
        self._tempering = as_tempering(tempering)
        if self._tempering is not None:
            check_tempering(
                kernel,
                num_samples if warmup_steps is None else warmup_steps,
                initial_params=initial_params,
                num_superchains=num_superchains,
                executor=executor,
            )
        self._source = None if data_loader is None else FromLoader(data_loader)
        self._store, self._resume = as_store(store, resume), resume
        if self._store is not None and transforms is not None:
            raise ValueError("store keeps draws as the model has them: give transforms to the kernel.")
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
            # Pyro's constructor starts processes for several chains; told of one, it does everything else.
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
        self._session: Session | ShardedDraws | None = None

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Run all chains; arguments are those of the model. Warns of chains that hardly moved."""
        if not self._vectorised:
            super().run(*args, **kwargs)
        else:
            if self._store is not None:
                self._store.check_is_free(self._resume, self._shards is not None)
            if self._source is not None:
                if args:
                    raise ValueError(
                        "MCMC.run: positional arguments come from data_loader; give the model's others by name."
                    )
                args = (self._source,)
            self._args, self._kwargs = args, kwargs
            if self._shards is not None:
                self._run_shards(self._shards, self._requested_samples, self._resume)
            else:
                self._run_vectorised(*args, **kwargs)
        self._warn_of_chains()

    def continue_run(self, num_samples: int) -> None:
        """More draws from where the chains are, without new warm-up; `get_samples` has them after those before.

        After an interrupt in warm-up, the rest of it comes first. What is drawn does not depend on whether a run is
        made in one go or in several, up to the rounding of native code that a longer plan makes earlier.

        Args:
            num_samples: iterations of each chain, more than `run` and earlier calls have made.

        Raises:
            ValueError: before `run`, or for a run that was not vectorised, or whose shards are not stored.
        """
        check_counts(num_samples=num_samples)
        if self._session is None or (self._shards is not None and self._store is None):
            raise ValueError(
                "MCMC.continue_run goes on with a vectorised run of this object, in shards with a stored one: call "
                "mcmc.run(...) first."
            )
        if isinstance(self._session, Session):
            self._session.ask_for(num_samples)
            self._go_on(self._session)
        elif self._shards is not None:
            self._run_shards(self._shards, self._session.asked + num_samples, resume=True)
        self._warn_of_chains()

    def _warn_of_chains(self) -> None:
        if self._session is None:
            warn_of_chains(self._samples, self.get_extra_fields(group_by_chain=True))
        else:
            warn_of_chains(*self._session.recent())
        if self._replicas is not None:
            self._replicas.warn()

    @property
    def _replicas(self) -> ReplicaRun | None:
        run = self._session.run if isinstance(self._session, Session) else None
        return run if isinstance(run, ReplicaRun) else None

    def get_samples(
        self, num_samples: int | None = None, group_by_chain: bool = False, *, deterministic: bool = False
    ) -> Sites:
        """Draws of each site, as in Pyro.

        Args:
            num_samples: so many draws, drawn from all with replacement; None for all.
            group_by_chain: ``{site: (chains, draws, ...)}`` instead of ``{site: (chains · draws, ...)}``.
            deterministic: whether to add sites of `pyro.deterministic`, computed for each draw; those that depend on
                discrete sites which were summed out are left out, with a warning. Not for `Predictive`, which would
                take these values for those that its own arguments give.

        Raises:
            ValueError: if there are no draws, or for deterministic sites, no draws of some site.
        """
        self._check_there_are_draws("get_samples")
        samples: Sites = dict(super().get_samples(num_samples, group_by_chain))
        if not deterministic:
            return samples
        return {**samples, **deterministic_values_of_run(self, samples, 2 if group_by_chain else 1)}

    def get_extra_fields(self, group_by_chain: bool = False) -> Statistics:
        """What happened at each draw: log density, energy, step size and whatever else the kernel told.

        Args:
            group_by_chain: ``{name: (chains, draws)}`` instead of ``{name: (chains · draws,)}``.

        Returns:
            By ArviZ's names; empty for kernels that record nothing.

        Raises:
            ValueError: before `run`.
        """
        self._check_there_are_draws("get_extra_fields")
        reports: list[dict[str, Any]] = [each or {} for each in self._diagnostics]
        recorded = [report.get("sample stats", {}) for report in reports]
        grouped = {name: torch.stack([chain[name] for chain in recorded]) for name in recorded[0]}
        return grouped if group_by_chain else {name: value.flatten() for name, value in grouped.items()}

    def summary(self, prob: float = 0.9) -> None:
        """Print a table of the draws, and which sites are known only up to signs, order or rotations of columns.

        The table is Pyro's, with bulk and tail effective sample sizes and rank-normalised R-hat by ArviZ
        (`pyro_manifold.diagnostics.convergence`), and nested R-hat where ``num_superchains`` is given.

        Raises:
            ValueError: before `run`, or for fewer than 4 draws of each chain.
        """
        self._check_there_are_draws("summary", fewest=4)
        print(table(self._samples, prob, self._num_superchains))
        chains: list[dict[str, Any]] = [each or {} for each in self._diagnostics]
        divergences = [len(chain["divergences"]) for chain in chains if "divergences" in chain]
        if divergences:
            print("Number of divergences:", sum(divergences))
        for symmetry in self.symmetries():
            print(symmetry.sentence())
        if self._replicas is not None:
            print(self._replicas.sentence())
        if self.stopped is not None:
            print(self.stopped)

    def symmetries(self) -> list[Symmetry]:
        """Sites that the posterior knows only up to signs, order or rotations of their columns.

        Found for kernels of this package, by changing the columns of some draws and asking the density.
        """
        self._check_there_are_draws("symmetries")
        return symmetries_of_run(self.kernel, self._initial_params, self._args, self._kwargs, self._samples)

    def _check_there_are_draws(self, method: str, fewest: int = 1) -> None:
        if self._samples is None or (self._session is not None and not self._session.draws):
            raise ValueError(f"MCMC.{method}: there are no draws yet, call mcmc.run(...) first.")
        if self._samples and self.num_samples < fewest:
            raise ValueError(
                f"MCMC.{method} needs {fewest} draws of each chain, for effective sizes and R-hat, and there are "
                f"{self.num_samples}."
            )

    def diagnostics(self) -> dict[str, Any]:
        """Effective sizes and R-hat of each site, what the kernel counted, and which chains disagree.

        Of each site, by ArviZ: ``"n_eff"`` (for the mean), ``"ess_bulk"``, ``"ess_tail"`` and the rank-normalised
        ``"r_hat"``; ``"nested_r_hat"`` where ``num_superchains`` is given.

        ``"disagreeing chains"`` names, for each site whose largest split R-hat is above 1.05, that R-hat and the chain
        furthest from the others: it may sit in another mode, or not have arrived yet; and the chains that never moved.
        This R-hat is of values, not of ranks: where chains are far apart it is larger than ``"r_hat"``.
        Of a single chain, sites on which its two halves disagree.
        Sites that the model knows only up to sign or rotation disagree by nature; ``"log density"``, the last entry,
        does not.

        ``"modes"`` groups the chains by mode (`pyro_manifold.diagnostics.modes`), as far as the posterior tells them
        apart, where there are 20 draws or more.

        With ``tempering``, ``"replica exchange"`` has the ladder, rejection rates of swaps between its neighbours,
        their sum, the barrier Λ, round trips of each chain's replicas, how many are expected at such rejections, and
        the log evidence with its standard error.
        """
        self._check_there_are_draws("diagnostics", fewest=4)
        statistics = self.get_extra_fields(group_by_chain=True)
        chains: list[dict[str, Any]] = [each or {} for each in self._diagnostics]
        found = report(self._samples, statistics, chains, self._num_superchains)
        if self._vectorised:
            found |= modes_of_run(self._samples, statistics.get("lp"), self.symmetries)
        if self._replicas is not None:
            found["replica exchange"] = self._replicas.report()
        return found

    def to_inferencedata(self, **options: Any) -> Any:
        """The run for ArviZ; keyword arguments and groups are those of `pyro_manifold.diagnostics.to_inferencedata`."""
        return to_inferencedata(self, **options)

    @poutine.block
    def _run_vectorised(self, *args: Any, **kwargs: Any) -> None:
        args = tuple(arg.detach() if torch.is_tensor(arg) else arg for arg in args)
        with optional(pyro.validation_enabled(not self.disable_validation), self.disable_validation is not None):
            run: Run[Any, Any]
            if self._tempering is None:
                run = self.kernel.prepare(self.num_chains, self.warmup_steps, self._initial_params, *args, **kwargs)
            else:
                run = self._tempering.prepare(self.kernel, self.num_chains, self.warmup_steps, args, kwargs)
            self.kernel.run = run
            if self._num_superchains is not None:
                together = self.num_chains // self._num_superchains
                run.move_to({name: x[::together].repeat_interleave(together, 0) for name, x in run.sites.items()})
            self._session = Session(run, self._keeper(run), self._thinning, self._most_samples, self._goal(run))
            self._go_on(self._session)

    def _run_shards(self, shards: Shards, num_samples: int, resume: bool) -> None:
        options = {name: getattr(self, f"_{name}") for name in ("thinning", "save_params")}
        options |= {"warmup_steps": self.warmup_steps, "disable_validation": self.disable_validation}
        job = Job(
            self.kernel,
            num_samples,
            self.num_chains,
            self._initial_params,
            options | {"data_loader": self._source and self._source.loader},
            () if self._source else self._args,
            self._kwargs,
            self._store,
            seed_of_all(self._store, shards.count, resume),
        )
        outcomes = run_shards(shards, job, self.warmup_steps + num_samples, self._disable_progbar)
        self._session = ShardedDraws(job, outcomes, self._thinning)
        self._take(self._session)

    def _goal(self, run: Run[Any, Any]) -> Goal | None:
        if self._until is None:
            return None
        least = self._requested_samples // self._thinning
        return Goal(self._until, self._num_superchains, known_by(run), least)

    def _keeper(self, run: Run[Any, Any]) -> Keeper:
        """Where the draws of a run go."""
        names = self._names_to_save(run)
        if self._store is None:
            transforms = self.kernel.transforms if self.transforms is None else self.transforms
            return InMemory(self._requested_samples // self._thinning, names, transforms)
        loader = self._source and self._source.loader
        parts = parts_of(self.kernel, () if loader else self._args, self._kwargs, data_loader=loader)
        parts["num_superchains"] = str(self._num_superchains)
        if self._tempering is not None:
            parts["tempering"] = repr(self._tempering)
        return OnDisk(self._store, run, names, self._thinning, parts, resume=self._resume)

    def _go_on(self, session: Session) -> None:
        """Warm up and draw; an interrupt keeps what there is, and so does an error."""
        consumers = [*self._consumers, *([self._call_hook] if self._hook is not None else [])]
        with optional(pyro.validation_enabled(not self.disable_validation), self.disable_validation is not None):

            def figures() -> dict[str, str]:
                replicas = {} if self._replicas is None else self._replicas.figures()
                return {**self.kernel.logging(), **session.figures(), **replicas}

            session.go_on(consumers, figures, self._disable_progbar)
        self.stopped = session.stopped
        self._take(session)
        if session.error is not None:
            raise session.error

    def _take(self, session: Session | ShardedDraws) -> None:
        """The draws and reports of a run."""
        self.num_samples = session.draws
        self._samples = session.samples()
        if self._store is None:
            self._diagnostics = self.kernel.reports(session.statistics(), self.num_chains)
        else:
            self.kernel.reports(session.recent()[1], self.num_chains)  # which may warn
            reports: Any = Reports(lambda: self.kernel.reports(session.statistics(), self.num_chains), self.num_chains)
            self._diagnostics = reports

    def _call_hook(self, iteration: Iteration) -> None:
        self._hook(self.kernel, iteration.sites, iteration.stage, iteration.index)  # type: ignore[misc]

    def _names_to_save(self, run: Run[Any, Any]) -> list[str]:
        sites = sorted(run.sites)
        names = sites if self._save_params is None else self._save_params
        unknown = sorted(set(names) - set(sites))
        if unknown:
            raise ValueError(f"save_params names {unknown}, but the sites are {sites}.")
        return names
