"""The base of all kernels: checked configuration, from which `prepare` makes runs, and Pyro's face."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from pyro.infer.mcmc.mcmc_kernel import MCMCKernel
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.infer.mcmc.problem import Batched, Problem
from pyro_manifold.infer.mcmc.record import Record, reports
from pyro_manifold.infer.mcmc.run import Fixed, Parts, Run
from pyro_manifold.infer.mcmc.states import Block, PlainState, Statistics
from pyro_manifold.manifolds import Manifold
from pyro_manifold.target.batched import BatchedPotential, Sites
from pyro_manifold.target.model import Target, target_from_model, target_from_potential

_NOT_SETTINGS = ("_run", "_record", "_given_params", "_from_params", "_warn", "_jit_compile")
"""Attributes of a kernel that do not say which distribution of draws it has, nor how it moves."""


class Kernel(MCMCKernel):
    """Configuration of a sampler. It knows nothing of chains: all that changes is in the `Run` that `prepare` makes.

    A subclass composes transitions in `compose`; that is all there is to a new kernel. It then runs under
    `pyro_manifold.infer.MCMC` with any number of chains in one process, and under `pyro.infer.MCMC`.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: ``{site: tensor}`` to the potential energy; needs ``manifolds`` (``{}`` if no site has one), and
            ``initial_params`` of MCMC.
        transforms: maps to unconstrained space for some of the sites.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``.
        ignore_jit_warnings: do not warn when tracing or compiling falls back.

    Raises:
        ValueError: for both or neither of ``model`` and ``potential_fn``, or ``manifolds`` beside a model.
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
                raise ValueError(f"{name}={function!r}, expected a function; give other arguments by name.")
        if (model is None) == (potential_fn is None):
            raise ValueError(f"{type(self).__name__} takes one of model and potential_fn.")
        if model is not None and manifolds is not None:
            raise ValueError("manifolds is for potential_fn; the sites of a model tell theirs by their support.")
        self.model = model
        self.potential_fn = potential_fn
        self._given_transforms = transforms
        self._max_plate_nesting = max_plate_nesting
        self._init_strategy = init_strategy
        self._manifolds = manifolds
        self._warn = not ignore_jit_warnings
        # Maps of the sites that are not on a manifold to unconstrained space; Pyro asks for them after `cleanup` too.
        self.transforms = transforms if model is None else None
        self._run: Run[Any, Any] | None = None
        self._record = Record()
        self._given_params: Sites | None = None
        self._from_params = False
        super().__init__()

    @abstractmethod
    def compose(self, problem: Problem, warmup_steps: int) -> Parts[Any, Any]:
        """Transitions, their tuning, and the state they begin with."""

    def grouping(self) -> bool | list[Block]:
        """How unconstrained sites are joined to blocks: see `Layout.build`."""
        return False

    def prepare(
        self, chains: int, warmup_steps: int, initial_params: Sites | None, *args: Any, **kwargs: Any
    ) -> Run[Any, Any]:
        """A run: the target of the model and its arguments, with initial values for all chains.

        Args:
            chains: number of chains.
            warmup_steps: number of iterations that adapt.
            initial_params: ``{site: (chains, ...)}``, or None to draw them.
            *args: arguments of the model.
            **kwargs: arguments of the model.

        Raises:
            ValueError: for input that no run can come from; the sentence names the site or argument.
            NotImplementedError: if the model subsamples its data.
        """
        return self.run_of(self.target(initial_params, args, kwargs), chains, warmup_steps, initial_params)

    def run_of(self, target: Target, chains: int, warmup_steps: int, initial_params: Sites | None) -> Run[Any, Any]:
        """A run on a target; arguments as in `prepare`."""
        problem = Problem.build(target, chains, initial_params, full_mass=self.grouping(), batched=self.batched)
        if problem.initial_values:
            parts = self.compose(problem, warmup_steps)
        else:
            parts = Parts(PlainState({}, torch.zeros(chains), {}), (), Fixed(None), lambda state, _: state)
        if not isinstance(parts, Parts):
            raise TypeError(f"{type(self).__name__}.compose returns {type(parts).__name__}, expected Parts.")
        return Run(problem, parts, warmup_steps, self._configuration())

    def batched(self, target: Target, example: Sites) -> Batched:
        """Energies and gradients of all chains, for positions like these."""
        return BatchedPotential(target.potential_fn, example, target.manifolds, warn=self._warn)

    def _configuration(self) -> dict[str, str]:
        """The settings that are numbers and words, by name."""
        settings: dict[str, Any] = {"kernel": type(self).__name__}
        for name, value in vars(self).items():
            if is_dataclass(value) and not isinstance(value, type):
                settings |= asdict(value)
            elif name not in _NOT_SETTINGS and isinstance(value, bool | int | float | str | list):
                settings[name.lstrip("_")] = value
        return {name: repr(value) for name, value in settings.items()}

    def target(self, initial_params: Sites | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
        """What is sampled from, for these arguments of the model."""
        if self.potential_fn is not None:
            return target_from_potential(self.potential_fn, initial_params, self._manifolds, self._given_transforms)
        model: Any = self.model  # not None, as the constructor saw to
        return target_from_model(model, args, kwargs, **self.model_options)

    @property
    def model_options(self) -> dict[str, Any]:
        """What the user said of how the model becomes a target: options of `target_from_model`."""
        return {
            "transforms": self._given_transforms,
            "max_plate_nesting": self._max_plate_nesting,
            "init_strategy": self._init_strategy,
        }

    def reports(self, statistics: Statistics, chains: int) -> list[dict[str, Any]]:
        """What to tell of each chain after a run, from ``{name: (chains, draws)}``; a subclass may add to it."""
        return reports(statistics, chains)

    # ---- Pyro's face: one chain under pyro.infer.MCMC ------------------------------------------------------------

    @property
    def run(self) -> Run[Any, Any]:
        """The run that this kernel was last set up for.

        Raises:
            RuntimeError: if there is none.
        """
        if self._run is None:
            raise RuntimeError(
                f"{type(self).__name__} has no run in this process: MCMC.run or kernel.setup makes one; each shard "
                "has its own."
            )
        return self._run

    @run.setter
    def run(self, run: Run[Any, Any]) -> None:
        self._run = run
        self._record = Record()
        self.transforms = run.problem.target.transforms

    @property
    def initial_params(self) -> Sites | None:
        """Initial values of one chain: manifold sites on their manifold, all others unconstrained."""
        if self._run is None:
            return self._given_params
        return {name: value[0] for name, value in self._run.problem.initial_values.items()}

    @initial_params.setter
    def initial_params(self, params: Sites) -> None:
        self._given_params = params

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        """`prepare` for one chain that starts at ``initial_params``."""
        given = self._given_params
        stacked = None if given is None else {name: torch.as_tensor(x).unsqueeze(0) for name, x in given.items()}
        self.run = self.prepare(1, warmup_steps, stacked, *args, **kwargs)

    def sample(self, params: Sites) -> Sites:
        """One iteration from where the chain is (from ``params`` after `clear_cache`)."""
        if params and self._from_params:
            self.run.move_to({name: value.detach().unsqueeze(0) for name, value in params.items()})
            self._from_params = False
        sites = self.run.advance()
        if not self.run.warming_up:
            self._record.add(self.run.statistics)
        return {name: value[0] for name, value in sites.items()}

    def diagnostics(self) -> dict[str, Any]:
        """Divergent iterations, acceptance rate, largest orthogonality error, and statistics of each iteration."""
        if self._run is not None:
            self._run.compare_graphs(1)
        return self.reports(self._record.statistics(), 1)[0]

    def logging(self) -> OrderedDict[str, str]:
        """What the progress bar shows."""
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
        """Forget the run."""
        self._run, self._record, self._given_params, self._from_params = None, Record(), None, False

    def clear_cache(self) -> None:
        """Forget where the chain is: the next call of `sample` starts from its argument."""
        self._from_params = True

    def __getstate__(self) -> dict[str, Any]:
        """A run travels as its target and its state, for graphs cannot: they are made again on arrival."""
        run = self._run
        if type(run) is not Run:  # none, or one of replicas, which `run_of` would not make again
            return {**self.__dict__, "_run": None}
        arguments = (run.problem.target, run.chains, run.warmup_steps, run.problem.initial_values)
        return {**self.__dict__, "_run": (*arguments, run.state_dict())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _run=None)
        if state["_run"] is not None:
            *arguments, saved = state["_run"]
            with torch.random.fork_rng(devices=[]):  # making it again draws numbers, which must not change others'
                self._run = self.run_of(*arguments)
            self._run.load_state_dict(saved)
