"""Conversion of a Pyro model and its arguments to a pure potential energy.

Pyro's handlers are used here to define the density that is sampled. The result is a `Target`: a
function of plain tensors, and the space of each of its sites. The model's arguments are not used afterwards.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import initialize_model
from torch import Tensor
from torch.distributions import Transform
from torch.distributions.transforms import identity_transform

from pyro_manifold.density.angles import possible_angles
from pyro_manifold.density.batched import Batch, Sites
from pyro_manifold.density.causes import arguments_by_name, wrong_parameters
from pyro_manifold.density.dependent_supports import (
    JointTransform,
    Separately,
    dependent_supports,
    refuse_dependent,
    with_supports,
)
from pyro_manifold.density.first_run import first_trace, has_improper, plate_nesting
from pyro_manifold.density.flat_priors import StartInSupport
from pyro_manifold.density.given_values import check_names, check_shape
from pyro_manifold.density.minibatch import (
    Minibatch,
    MinibatchOf,
    PlatesUntraced,
    Subsample,
    check_subsampled,
    drawn_plates,
    with_subsample,
)
from pyro_manifold.density.same_sites import FixedStructure, Prototype
from pyro_manifold.density.sites import ComputePointMasses
from pyro_manifold.density.supports import TrueSupports, refuse_without_transform
from pyro_manifold.density.target import Target, unchecked
from pyro_manifold.density.validation import WithoutValidation
from pyro_manifold.distributions import log_base_measure, manifold_of

_MAXIMUM_RUNS = 20

Result = TypeVar("Result")


@dataclass
class ModelTarget(Target):
    """The target of a Pyro model.

    Attributes:
        program: the model with its arguments.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        minibatch_of: the density on a part of the data, if the model subsamples; ``potential_fn`` then has a first
            part.
        loader: the loader of the model's arguments, if they come in batches.
        again: function that rebuilds the target from the current model and data.
        log_measures: log of the total base measure of each manifold site.
        unbounded_angles: the sites of ``angles``.
        joint: transform of all sites together, if the support of a site depends on another one.
    """

    program: Callable[[], Any]
    init_strategy: Callable[..., Any]
    minibatch_of: MinibatchOf | None = None
    loader: Iterable[Any] | None = None
    again: Callable[[], ModelTarget] | None = None
    log_measures: Mapping[str, float] = field(default_factory=dict)
    unbounded_angles: tuple[str, ...] = ()
    joint: JointTransform | None = None

    @property
    def log_measure(self) -> float:
        return sum(self.log_measures.values())

    @property
    def angles(self) -> tuple[str, ...]:
        return self.unbounded_angles

    @property
    def dependent(self) -> frozenset[str]:
        return frozenset() if self.joint is None else frozenset(self.joint.names)

    def needed(self, names: Sequence[str]) -> list[str]:
        return [*names] if self.joint is None else sorted({*self.manifolds, *self.transforms})

    def values(self, sites: Sites) -> Sites:
        return super().values(sites) if self.joint is None else self.joint.values(sites)

    def positions(self, values: Sites) -> Sites:
        return super().positions(values) if self.joint is None else self.joint.positions(values)

    @property
    def is_subsampled(self) -> bool:
        return self.minibatch_of is not None

    def on(self, batch: Batch) -> Minibatch:
        return super().on(batch) if self.minibatch_of is None else self.minibatch_of(batch)

    def present(self) -> Target:
        if self.again is None:
            return self
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():  # its warnings were shown before
            warnings.simplefilter("ignore")
            found = self.again()
        return replace(self, manifolds=found.manifolds, transforms=found.transforms, joint=found.joint)

    def draw(self) -> Sites:
        """Return initial values of all sites of one chain, from the initialisation strategy."""
        nodes = _initial_trace(self.program, self.init_strategy).nodes
        for name in [*self.manifolds, *self.transforms]:
            check_shape(name, nodes[name], nodes[name]["value"])
        values = self.positions({name: nodes[name]["value"].detach() for name in [*self.manifolds, *self.transforms]})
        return {name: values[name] for name in sorted(values)}

    def check(self, initial_params: Sites) -> None:
        sites = sorted({*self.manifolds, *self.transforms})
        if sorted(initial_params) != sites:
            raise ValueError(
                f"initial_params has the sites {sorted(initial_params)}, but the model samples {sites}: "
                "give a value for each of them and for no other."
            )
        drawn = self.draw()
        for name, value in initial_params.items():
            expected = drawn[name]
            if value.shape[1:] != expected.shape or torch.promote_types(value.dtype, expected.dtype) != value.dtype:
                raise ValueError(
                    f"Site '{name}': the initial value has shape {tuple(value.shape[1:])} and dtype {value.dtype}, "
                    f"expected {tuple(expected.shape)} and {expected.dtype}, "
                    f"{'on its manifold' if name in self.manifolds else 'in unconstrained space'}; initial values of a "
                    "single chain have no chain dimension."
                )

    def not_finite(self) -> dict[str, str | None]:
        trace = _initial_trace(self.program, self.init_strategy)
        with pyro.validation_enabled(False):
            trace.compute_log_prob()
        sites = [(name, site) for name, site in trace.nodes.items() if site["type"] == "sample"]
        return {name: wrong_parameters(site["fn"]) for name, site in sites if not torch.isfinite(site["log_prob_sum"])}


def target_from_model(
    model: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    transforms: Mapping[str, Transform] | None = None,
    max_plate_nesting: int | None = None,
    init_strategy: Callable[..., Any] = init_to_uniform,
    subsample: bool = False,
) -> ModelTarget:
    """Return the target of a Pyro model conditioned on its arguments.

    Sites whose support is a manifold keep their values; `pyro.infer.mcmc.util.initialize_model` transforms every
    other site to unconstrained space and enumerates discrete sites. If the support of a site depends on other sites, it
    is transformed within the density, from the support at each value. ``transforms`` may name any of the others;
    if it names a manifold site, that site is sampled in unconstrained space by the given transform.

    Raises:
        NotImplementedError: if a plate subsamples its data.
        ValueError: if an observed value is NaN, or ``transforms`` names a site that the model does not have or whose
            support depends on other sites; and, here
            or by ``potential_fn``, if sites or their shapes depend on values. Observed sites may come and go,
            unless Pyro sums sites out.
    """
    program, trace, plates = _program_of(model, args, kwargs or {}, init_strategy)
    if plates and not subsample:
        name, (size, drawn) = next(iter(plates.items()))
        raise NotImplementedError(
            f"Plate '{name}' draws {drawn} of {size} elements at each call, but samplers need the same density each "
            "time: remove subsample_size and condition on all of the data, or take OSGHMC, which is for minibatches."
        )
    check_subsampled(trace, plates)
    refuse_without_transform(trace.nodes)
    if max_plate_nesting is None and has_improper(trace):  # which Pyro could not draw from to find it
        max_plate_nesting = plate_nesting(trace)
    by_pyro = partial(_by_pyro, program, max_plate_nesting=max_plate_nesting, init_strategy=init_strategy)
    # Pyro takes transforms for all sites or for none, so a first pass finds the sites.
    _, _, automatic, prototype = by_pyro(None)
    given = transforms or {}
    unknown = sorted(set(given) - set(automatic))
    if unknown:
        raise ValueError(f"transforms names {unknown}, but the model's sites are {sorted(automatic)}.")
    # A model may make its sites in another order in each process, from a set.
    spaces = {name: manifold_of(prototype.nodes[name]["fn"].support) for name in sorted(set(automatic) - set(given))}
    manifolds = {name: manifold for name, manifold in spaces.items() if manifold is not None}
    dependent = dependent_supports(program, trace.nodes, automatic)
    refuse_dependent({*given, *manifolds} & set(dependent), "a given transform does not follow")
    kept = dict.fromkeys([*manifolds, *dependent], identity_transform)
    _, potential_fn, site_transforms, _ = by_pyro({**automatic, **given, **kept})
    for name in given:
        _check_transform(name, site_transforms[name], prototype.nodes[name])
    unconstrained = {name: t for name, t in site_transforms.items() if name not in manifolds}
    joint = None
    if dependent:
        potential_fn = partial(with_supports, potential_fn, dependent)
        shapes = {name: trace.nodes[name]["fn"].shape() for name in dependent}
        joint = JointTransform(program, shapes, {name: t for name, t in unconstrained.items() if name not in shapes})
        unconstrained |= {name: Separately(name) for name in dependent}
    potential_fn = partial(unchecked, potential_fn)
    again = partial(
        target_from_model,
        *(model, args, kwargs),
        transforms=transforms,
        max_plate_nesting=max_plate_nesting,
        init_strategy=init_strategy,
        subsample=subsample,
    )
    nodes = {name: prototype.nodes[name] for name in manifolds}
    options: dict[str, Any] = {
        "minibatch_of": partial(_same, Minibatch(with_subsample(potential_fn), plates)) if plates else None,
        "again": again,
        "joint": joint,
        "log_measures": {
            name: log_base_measure(site["fn"].support, site["value"].shape) for name, site in nodes.items()
        },
        "unbounded_angles": possible_angles(prototype.nodes, unconstrained),
    }
    return ModelTarget(potential_fn, manifolds, unconstrained, program, init_strategy, **options)


def _program_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    init_strategy: Callable[..., Any],
) -> tuple[Callable[[], Any], poutine.Trace, dict[str, tuple[int, int]]]:
    """Return the model as a function without arguments, its first trace, and the plates that draw a part of the data.

    The function has the sites of the first trace at every call, and the first elements of those plates.
    """
    prepared = WithoutValidation()(TrueSupports()(StartInSupport()(ComputePointMasses()(model))))
    program: Callable[[], Any] = partial(prepared, *args, **kwargs)
    run = partial(_initial_trace, init_strategy=init_strategy)
    trace = first_trace(program, run, arguments_by_name(model, args, kwargs))
    program = FixedStructure(program, Prototype.of(trace))
    plates = drawn_plates(trace)
    if plates:
        program = Subsample({name: torch.arange(drawn) for name, (_, drawn) in plates.items()})(program)
    return program, trace, plates


def _by_pyro(
    program: Callable[[], Any],
    site_transforms: Mapping[str, Transform] | None,
    max_plate_nesting: int | None,
    init_strategy: Callable[..., Any],
) -> Any:
    """Return initial values, potential, transforms and trace as `initialize_model` of Pyro makes them."""
    pyros = partial(
        initialize_model,
        PlatesUntraced()(program),
        transforms=site_transforms,
        max_plate_nesting=max_plate_nesting,
        init_strategy=init_strategy,
        initial_params={},  # initial values are found later, for all chains
    )
    with pyro.validation_enabled(False):
        return _elsewhere_if_it_fails(pyros)


def _same(minibatch: Minibatch, _: Batch) -> Minibatch:
    return minibatch


def _check_transform(name: str, transform: Transform, site: dict[str, Any]) -> None:
    """Raise ValueError unless points near a value's coordinates map back to the support."""
    problem = None
    try:
        coordinates = transform(site["value"])
        moved = transform.inv(coordinates + 0.1 * torch.randn_like(coordinates))
        if moved.shape != site["value"].shape or not site["fn"].support.check(moved).all():
            problem = f"leads back to points outside {site['fn'].support}"
    except Exception as error:  # a transform of the wrong kind can fail in any way
        problem = f"fails ({error})"
    if problem:
        raise ValueError(
            f"transforms['{name}'] {problem}; expected a map from the support to unconstrained space, such as "
            "biject_to(support).inv."
        )


def _initial_trace(program: Callable[[], Any], init_strategy: Callable[..., Any]) -> poutine.Trace:
    """Run the model once with values from the initialisation strategy."""
    wrong: list[ValueError] = []
    initialised = InitMessenger(partial(_initial_value, init_strategy, wrong))(program)
    try:
        with pyro.validation_enabled(False):
            found = _elsewhere_if_it_fails(lambda: poutine.block(poutine.trace(initialised).get_trace)())
    except ValueError:
        if wrong:  # without the shapes of the sites before, which Pyro adds
            raise wrong[0] from None
        raise
    check_names(init_strategy, found.nodes)
    return found


def _elsewhere_if_it_fails(run: Callable[[], Result]) -> Result:
    """Run a model; repeat with other random values if a factorisation fails, as it may far from the typical set."""
    for _ in range(_MAXIMUM_RUNS - 1):
        with contextlib.suppress(torch.linalg.LinAlgError):
            return run()
    return run()


def _initial_value(init_strategy: Callable[..., Any], wrong: list[ValueError], site: dict[str, Any]) -> Tensor:
    """Return the initial value of a site; for discrete sites, which are summed out, any value from their prior."""
    if site["fn"].has_enumerate_support:
        return site["fn"].sample()
    value = init_strategy(site)
    if torch.is_tensor(value):  # others have an error of their own
        try:
            check_shape(site["name"], site, value)
        except ValueError as error:
            wrong.append(error)
            raise
    return value
