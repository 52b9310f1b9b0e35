"""Base class of all kernels: checked configuration, creation of runs by `prepare`, and Pyro's kernel interface."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any, Self

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.density import (
    BatchedDensity,
    Batches,
    ModelOptions,
    Program,
    Sites,
    Target,
    refuse_guide,
    target_from_potential,
)
from pyro_manifold.diagnostics import chain_entries
from pyro_manifold.infer.mcmc.running import IdentifiedQuantities, Record, Run
from pyro_manifold.infer.mcmc.transitions import Block, Composition, Fixed, PositionState, Problem, Statistics
from pyro_manifold.manifolds import Manifold

_NOT_SETTINGS = ("_options", "_run", "_record", "_given_params", "_from_params", "_warn", "_jit_compile", "_tuned")
"""Attributes of a kernel that do not affect its draws, or whose content other attributes contain."""
_PROCESS = os.getpid()  # that imported this module, which a forked process does not import again


class Kernel(MCMCKernel):
    """Configuration of a sampler; all mutable state of chains is in the `Run` returned by `prepare`.

    To define a kernel, a subclass implements `compose`, which returns its transitions. The kernel can then be used in
    `pyro_manifold.infer.MCMC` with any number of chains in one process, and in `pyro.infer.MCMC`.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: function from ``{site: tensor}`` to the potential energy, a tensor of one element; requires
            ``initial_params`` of MCMC.
        transforms: transforms to unconstrained space for some of the sites.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        init_strategy: a function of `pyro.infer.autoguide.initialization`, `init_to_guide` or `init_to_draws`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``; other
            sites are in unconstrained space.
        ignore_jit_warnings: whether to suppress warnings when tracing or compiling falls back.

    Raises:
        ValueError: for both or neither of ``model`` and ``potential_fn``, or ``manifolds`` together with a model.
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        *,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        init_strategy: Callable[..., Any] = init_to_uniform,
        manifolds: Mapping[str, Manifold | Constraint] | None = None,
        ignore_jit_warnings: bool = False,
    ) -> None:
        for name, function in {"model": model, "potential_fn": potential_fn}.items():
            if function is not None and not callable(function):
                raise ValueError(f"{name}={function!r}, expected a function; pass other arguments by name.")
        refuse_guide(model)
        if (model is None) == (potential_fn is None):
            raise ValueError(f"{type(self).__name__}: expected exactly one of model and potential_fn.")
        self._options = ModelOptions(transforms, max_plate_nesting, init_strategy)
        if manifolds is not None and not isinstance(manifolds, Mapping):
            raise ValueError(f"manifolds={manifolds!r}, expected a dictionary by site.")
        if model is not None and manifolds is not None:
            raise ValueError(
                "manifolds is only for potential_fn: leave it out, as the manifolds of a model follow from the "
                "supports of its sites."
            )
        self.model = model
        self.potential_fn = potential_fn
        self._manifolds = manifolds
        self._warn = not ignore_jit_warnings
        # Transforms to unconstrained space of sites that are not on a manifold; Pyro reads them also after `cleanup`.
        self.transforms = transforms if model is None else None
        self._run: Run[Any, Any] | None = None
        self._record = Record()
        self._given_params: Sites | None = None
        self._from_params = False
        super().__init__()

    @abstractmethod
    def compose(self, problem: Problem, warmup_steps: int) -> Composition[Any, Any]:
        """Return the parts of a run: initial state, transitions and their adaptation."""

    def grouping(self) -> bool | list[Block]:
        """Return the grouping of unconstrained sites into blocks, as for `Layout.build`."""
        return False

    def prepare(
        self,
        chains: int,
        warmup_steps: int,
        initial_params: Sites | None,
        *args: Any,
        data_loader: Iterable[Any] | None = None,
        **kwargs: Any,
    ) -> Run[Any, Any]:
        """Create a run for the model with its arguments, with initial values for all chains.

        Args:
            chains: number of chains.
            warmup_steps: number of iterations of warm-up.
            initial_params: ``{site: (chains, ...)}``, or None to draw them.
            *args: arguments of the model.
            data_loader: an iterable over batches of the model's arguments, in place of ``args``; see
                `supports_minibatches`.
            **kwargs: arguments of the model.

        Raises:
            ValueError: for invalid input; the message names the site or argument.
            NotImplementedError: if the model subsamples its data.
        """
        target = self.target(self.program(args, kwargs, data_loader), initial_params)
        return self.run_of(target, chains, warmup_steps, initial_params)

    def run_of(self, target: Target, chains: int, warmup_steps: int, initial_params: Sites | None) -> Run[Any, Any]:
        """Create a run for a target; arguments are those of `prepare`."""
        problem = Problem.build(
            *(target, chains, initial_params),
            full_mass=self.grouping(),
            batched=self.batched,
            differentiated=self.differentiates,
        )
        if problem.initial_values:
            problem = replace(self.initialised(problem, warmup_steps), functionals=IdentifiedQuantities)
            parts = self.compose(problem, warmup_steps)
        else:
            parts = Composition(PositionState({}, torch.zeros(chains), {}), (), Fixed(None), lambda state, _: state)
        if not isinstance(parts, Composition):
            raise TypeError(f"{type(self).__name__}.compose returns {type(parts).__name__}, expected Composition.")
        return self.kind_of_run(target)(problem, parts, warmup_steps, self.configuration())

    def kind_of_run(self, target: Target) -> type[Run[Any, Any]]:
        """Return the class of runs of a target."""
        return Run

    def initialised(self, problem: Problem, warmup_steps: int) -> Problem:
        """Return the problem with the initial positions that the kernel chooses; by default they are unchanged."""
        return problem

    def batched(self, target: Target, example: Sites) -> BatchedDensity:
        """Return the function for energies and gradients of all chains, for positions like these."""
        return BatchedDensity(
            target.on,
            Batches(),
            example,
            target.manifolds,
            undifferentiated=target.undifferentiated,
            warn=self._warn,
            native=self.compiles_density,
        )

    def configuration(self) -> dict[str, str]:
        """Return the settings that are constants, strings or lists, as strings by name."""
        settings: dict[str, Any] = {"kernel": type(self).__name__}
        for name, value in vars(self).items():
            if name in _NOT_SETTINGS or callable(value):
                continue
            if is_dataclass(value) and not isinstance(value, type):
                settings |= asdict(value)
            elif isinstance(value, bool | int | float | str | list):
                settings[name.lstrip("_")] = value
        return {name: repr(value) for name, value in settings.items()}

    @property
    def differentiates(self) -> bool:
        """True if transitions use the gradient of the density."""
        return True

    @property
    def compiles_density(self) -> bool:
        """True if long densities may be native code: transitions evaluate them, and trace only that of one chain."""
        return False

    @property
    def supports_minibatches(self) -> bool:
        """True if transitions use another minibatch of the data at each step."""
        return False

    def program(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], data_loader: Iterable[Any] | None = None
    ) -> Program | None:
        """Return the model with these arguments, or with batches of them; None for a ``potential_fn``.

        Raises:
            ValueError: for a loader that the kernel, ``potential_fn`` or the other arguments do not support.
        """
        if data_loader is not None:
            self._check_takes_loader(args)
        if self.model is None:
            return None
        return Program(self.model, args, kwargs, data_loader, self._model_options)

    def target(self, program: Program | None, initial_params: Sites | None = None) -> Target:
        """Return the density that is sampled.

        Args:
            program: the model with its arguments; None for the ``potential_fn`` of the kernel.
            initial_params: ``{site: (chains, ...)}``, needed for a ``potential_fn``.

        Raises:
            ValueError: for a model or a potential function that has no density; the message names the site.
        """
        if program is not None:
            return program.target
        potential_fn: Any = self.potential_fn  # not None without a model, as ensured by the constructor
        return target_from_potential(potential_fn, initial_params, self._manifolds, self._options.transforms)

    def _check_takes_loader(self, args: tuple[Any, ...]) -> None:
        if not self.supports_minibatches:
            raise ValueError(
                f"data_loader needs a minibatch kernel, not {type(self).__name__}: use OSGHMC, or pass all data."
            )
        if self.model is None:
            raise ValueError("data_loader is not supported with potential_fn, which has no arguments: pass a model.")
        if args:
            raise ValueError(
                "data_loader supplies the positional arguments of the model: pass other arguments by name."
            )

    @property
    def _model_options(self) -> ModelOptions:
        return replace(self._options, subsample=self.supports_minibatches)

    def warn_of_draws(self, statistics: Statistics) -> None:
        """Warn about draws, by their statistics ``{name: (chains, draws)}``; by default there is nothing to warn of."""

    # ---- Pyro's kernel interface: one chain in pyro.infer.MCMC ---------------------------------------------------

    @property
    def run(self) -> Run[Any, Any]:
        """Current run, for which this kernel was last set up.

        Raises:
            RuntimeError: if there is none.
        """
        if self._run is None:
            raise RuntimeError(
                f"{type(self).__name__} has no run in this process: call MCMC.run or kernel.setup first (each shard "
                "has its own run, and Pyro's own MCMC discards that of a chain at its end)."
            )
        return self._run

    @run.setter
    def run(self, run: Run[Any, Any]) -> None:
        self._run = run
        self._record = Record()
        self.transforms = run.problem.target.transforms

    @property
    def initial_params(self) -> Sites | None:
        """Initial values of one chain; sites on manifolds are on their manifold, all others in unconstrained space."""
        if self._run is None:
            return self._given_params
        run = self._run
        return {name: value[0] for name, value in run.target.sites(run.problem.initial_values).items()}

    @initial_params.setter
    def initial_params(self, params: Sites) -> None:
        self._given_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """Prepare a run of one chain that starts at ``initial_params``.

        In a forked process, as Pyro's for parallel chains, torch uses one thread: it would wait for ever for the
        threads of the parent.
        """
        if os.getpid() != _PROCESS:
            torch.set_num_threads(1)
        given = self._given_params
        stacked = None if given is None else {name: torch.as_tensor(x).unsqueeze(0) for name, x in given.items()}
        self.run = self.prepare(1, warmup_steps, stacked, *args, **kwargs)

    def sample(self, params: Sites) -> Sites:
        """Run one iteration from the current position (from ``params`` after `clear_cache`)."""
        if params and self._from_params:
            self.run.move_to({name: value.detach().unsqueeze(0) for name, value in params.items()})
            self._from_params = False
        sites = self.run.advance()
        if not self.run.warming_up:
            self._record.add(self.run.statistics)
        return {name: value[0] for name, value in sites.items()}

    def diagnostics(self) -> dict[str, Any]:
        """Return divergent iterations, acceptance rate, largest orthogonality error, and statistics of iterations."""
        if self._run is not None:
            self._run.code.compare_density(1)
        statistics = self._record.statistics()
        self.warn_of_draws(statistics)
        found = {name.replace("_", " "): values[0] for name, values in chain_entries(statistics).items()}
        return {"divergences": [], **found, "sample stats": {name: value[0] for name, value in statistics.items()}}

    def logging(self) -> OrderedDict[str, str]:
        """Return the figures shown in the progress bar."""
        run = self.run
        shown = {"step_size": ".2e", "n_steps": ".0f", "kinetic_temperature": ".3g"}
        figures = {
            name.replace("_temp", " temp"): format(float(run.statistics[name].double().mean()), form)
            for name, form in shown.items()
            if name in run.statistics
        }
        if "acceptance_rate" in run.statistics:
            figures["acc. prob"] = f"{float(run.mean_acceptance):.3f}"
        if "diverging" in run.statistics:
            figures["divergences"] = f"{int(run.divergences)}"
        return OrderedDict(figures)

    def cleanup(self) -> None:
        """Discard the run."""
        self._run, self._record, self._given_params, self._from_params = None, Record(), None, False

    def clear_cache(self) -> None:
        """Discard the position of the chain: the next call of `sample` starts from its argument."""
        self._from_params = True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling; a run is pickled as its target and state, without graphs."""
        run = self._run
        if run is None or not run.is_of_kernel:
            return {**self.__dict__, "_run": None}
        arguments = (run.problem.target, run.chains, run.warmup_steps, run.problem.initial_values)
        return {**self.__dict__, "_run": (*arguments, run.state_dict())}

    def without_run(self) -> Self:
        """Return a kernel of the same configuration that has no run."""
        kernel = object.__new__(type(self))
        kernel.__dict__.update(self.__dict__, _run=None)
        return kernel

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _run=None)
        if state["_run"] is not None:
            *arguments, saved = state["_run"]
            with torch.random.fork_rng(devices=[]):  # recreating a run uses random numbers
                self._run = self.run_of(*arguments)
            self._run.load_state_dict(saved)
