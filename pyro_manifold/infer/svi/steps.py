"""Steps of stochastic variational inference by traced gradients, for one model and guide."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.infer.util import is_validation_enabled
from pyro.optim import PyroOptim
from pyro.util import check_model_guide_match, warn_if_nan
from torch import Tensor

from pyro_manifold.compiled import CompilationPolicy, NotTraced, reason
from pyro_manifold.compiled.native import native_code_is_allowed
from pyro_manifold.density import Batch, BatchedPotential, latent_sites, refuse_cut_gradients
from pyro_manifold.infer.svi.arguments import Arguments, ModelDensity
from pyro_manifold.infer.svi.objective import Objective, Parameters
from pyro_manifold.infer.svi.reparametrisation import Reparametrisation, reparametrisation_of
from pyro_manifold.infer.svi.updates import Update

_MOST_GRAPHS = 16
_MOST_BETWEEN_COMPARISONS = 4096


class NotTracedError(Exception):
    """Error of a model or guide whose steps cannot be traced; the message is a clause for a warning."""


class TracedSteps:
    """Steps by traced gradients: noise, loss and gradients of all particles in one call, then the optimiser.

    Args:
        model: a Pyro model.
        guide: a guide that `reparametrisation_of` supports.
        optim: the optimiser.
        particles: number of draws in each estimate.
        args, kwargs: arguments of the first step.

    Attributes:
        number: number of evaluations so far.

    Raises:
        NotTracedError: if steps cannot be traced.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: AutoGuide,
        optim: PyroOptim,
        particles: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._model, self._optim, self._particles = model, optim, particles
        sites, stored = _first_run(model, guide, args, kwargs)
        found = reparametrisation_of(guide)
        if found is None:
            raise NotTracedError(f"the guide is a {type(guide).__name__}")
        _check_sites(sites, found)
        self._guide, self._sites, self._stored = found, sites, stored
        self._parameters = _parameters_of(guide, stored)
        if not stored:
            raise NotTracedError("the guide has no parameters")
        self._trained = _trained(self._parameters.values())
        self.number, self._compared, self._agreed = 0, 1, 0
        self._graphs: dict[Any, _Graph] = {}
        self._arguments = Arguments.of(args, kwargs)
        self._graph = self._graph_on(self._arguments, inputs=False)

    def is_current(self, optim: PyroOptim, particles: int) -> bool:
        """Return whether the optimiser, its parameters and the number of draws are those of the first step."""
        if optim is not self._optim or particles != self._particles:
            return False
        store = pyro.get_param_store()._params
        kept = all(store.get(name) is value for name, value in self._stored.items())
        return kept and self._trained == _trained(self._parameters.values())

    def compare_next(self) -> None:
        """Compare the graph with the model at the next evaluation, as the model may have changed since the last one."""
        self._compared = self.number + 1

    def on(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Use these arguments from now on.

        Raises:
            NotTracedError: if the model cannot be traced with them.
        """
        if self._arguments.same(args, kwargs):
            return
        self._arguments = Arguments.of(args, kwargs)
        self._graph = self._graph_on(self._arguments, inputs=True)

    def loss(self) -> float:
        """Return an estimate of the loss, with fresh noise and the next batch.

        Raises:
            NotTracedError: if the model has changed.
        """
        return self._evaluated(self._graph.density.batch(self._arguments, self.number))

    def step(self, planned: int = 0) -> float:
        """Take a step, and return the estimate of the loss before it.

        Args:
            planned: number of steps of the run; 0 if it is not known.

        Raises:
            NotTracedError: if the model has changed.
        """
        graph = self._graph
        batch = graph.density.batch(self._arguments, self.number)
        loss = self._evaluated(batch)
        graph.update()
        if not graph.policy.made:
            graph.policy.planned = planned
            graph.policy.after(self.number, {}, batch)
        return loss

    @property
    def backend(self) -> str:
        """Form of the function in use: ``"eager"``, ``"traced"`` or ``"native"``."""
        return self._graph.objective.graph.backend

    def compile(self) -> None:
        """Compile native code now, unless it has been compiled."""
        if not self._graph.policy.made:
            self._graph.policy.make(self._graph.density.batch(self._arguments, self.number))

    def _evaluated(self, batch: Batch) -> float:
        with torch.no_grad():
            self._graph.objective(batch)
        self.number += 1
        if self.number >= self._compared:
            self._compared = min(4 * self.number, self.number + _MOST_BETWEEN_COMPARISONS)
            self._compare(self._graph, batch)
        loss = self._graph.objective.outputs[0].item()
        if loss != loss:
            warn_if_nan(loss, "loss")
        return loss

    def _compare(self, graph: _Graph, batch: Batch) -> None:
        """Raise NotTracedError if the graph differs from the model at the present draws."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = graph.objective.difference(batch)
        if found:
            since = f", and may have done so since step {self._agreed}" if self._agreed < self.number - 1 else ""
            raise NotTracedError(f"the model differs from its trace at step {self.number}{since} ({found})")
        self._agreed = self.number

    # ---- graphs, by arguments ------------------------------------------------------------------------------------

    def _graph_on(self, arguments: Arguments, *, inputs: bool) -> _Graph:
        key = (inputs, arguments.key)
        if key not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                raise NotTracedError("non-tensor arguments or shapes change at most steps: pass numbers as tensors")
            self._graphs[key] = self._traced(arguments, inputs)
        return self._graphs[key]

    def _traced(self, arguments: Arguments, inputs: bool) -> _Graph:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                device = next(iter(self._parameters.values())).device
                density = ModelDensity(self._model, arguments, self._sites, inputs=inputs, device=device)
                batch = density.batch(arguments, self.number)
                example = self._example(density)
                refuse_cut_gradients(partial(density.potential_fn, batch=batch or None), example, {})
                potential = BatchedPotential(density.potential_fn, example, batch=batch or None)
            except (NotImplementedError, ValueError, RuntimeError) as error:
                raise NotTracedError(f"the model has no density that can be traced ({reason(error)})") from error
        if potential.graph.backend != "traced":
            found = [each.message for each in caught if isinstance(each.message, NotTraced)]
            reasons = [str(each) for each in found if each.backend == "traced"]
            raise NotTracedError(reason(ValueError(reasons[0])) if reasons else "the model cannot be traced")
        objective = Objective(self._guide, self._parameters, potential, self._particles, batch)
        if objective.graph.backend != "traced":
            raise NotTracedError("the guide cannot be traced")
        return _Graph(density, objective, self._optim, list(self._parameters.values()))

    def _example(self, density: ModelDensity) -> dict[str, Tensor]:
        """Return draws of the guide for at least two particles, by site."""
        first = next(iter(self._parameters.values()))
        noise = torch.randn(max(2, self._particles), self._guide.noise, dtype=first.dtype).to(first.device)
        values = self._guide.draws({name: value.detach() for name, value in self._parameters.items()}, noise).values
        example = self._guide.sites(values.detach())
        expected = {name: tuple(value.shape) for name, value in density.target.draw().items()}
        found = {name: tuple(value.shape[1:]) for name, value in example.items()}
        if expected != found:
            raise ValueError(f"its sites have the shapes {expected} in unconstrained space, in the guide {found}")
        return {name: example[name][: self._particles] for name in sorted(example)}


class _Graph:
    """Objective on arguments of some shapes, with the optimiser's step.

    Attributes:
        density: the model's density.
        objective: loss and gradients.
        update: the optimiser's step from them.
        policy: when to compile native code.
    """

    def __init__(self, density: ModelDensity, objective: Objective, optim: PyroOptim, parameters: list[Tensor]) -> None:
        self.density, self.objective = density, objective
        self._optim, self._parameters = optim, parameters
        self.update = self._update()
        possible = native_code_is_allowed() and objective.noise.device.type == "cpu"
        self.policy = CompilationPolicy(self._compile if possible else None, objective.cost)

    def _compile(self, batch: Batch) -> None:
        self.objective.compile(batch)
        self.update = self._update()

    def _update(self) -> Update:
        """Return the optimiser's step for the parameters that are not frozen by ``requires_grad_(False)``."""
        pairs = zip(self._parameters, self.objective.outputs[1:], _trained(self._parameters), strict=True)
        trained = [(parameter, gradient) for parameter, gradient, is_trained in pairs if is_trained]
        return Update(self._optim, *[[pair[k] for pair in trained] for k in range(2)])


def _trained(parameters: Iterable[Tensor]) -> list[bool]:
    return [parameter.requires_grad for parameter in parameters]


def _first_run(
    model: Callable[..., Any], guide: AutoGuide, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Run guide and model once; return the model's latent sites, and the parameters by their names in the store.

    Raises:
        NotTracedError: if the model has its own parameters.
    """
    with torch.no_grad(), poutine.block():
        of_guide = poutine.trace(guide).get_trace(*args, **kwargs)
        of_model = poutine.trace(poutine.replay(model, trace=of_guide)).get_trace(*args, **kwargs)
    if is_validation_enabled():
        check_model_guide_match(of_model, of_guide)
    own = [name for name, site in of_model.nodes.items() if site["type"] == "param"]
    if own:
        raise NotTracedError(f"the model has its own parameters ('{own[0]}')")
    stored = {name: site["value"].unconstrained() for name, site in of_guide.nodes.items() if site["type"] == "param"}
    return latent_sites(of_model.nodes), stored


def _parameters_of(guide: AutoGuide, stored: Mapping[str, Tensor]) -> Parameters:
    """Return the guide's own tensors that the store holds, under one name each."""
    held = {id(value): name for name, value in stored.items()}
    found: Parameters = {name: value for name, value in guide.named_parameters() if id(value) in held}
    missing = sorted(held[other] for other in held.keys() - {id(value) for value in found.values()})
    if missing:
        raise NotTracedError(
            f"the param store has a value of '{missing[0]}' that the guide does not use: load a store before the "
            "first call of a new guide"
        )
    return found


def _check_sites(sites: Mapping[str, Any], guide: Reparametrisation) -> None:
    more = sorted(set(sites) - set(guide.shapes))
    if more:
        raise NotTracedError(f"the guide does not sample the model's site '{more[0]}'")
