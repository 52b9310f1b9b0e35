"""Draws from a posterior with the model that they are from, as one value."""

from __future__ import annotations

import warnings
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pyro.infer import Predictive
from torch import Tensor

from pyro_manifold.density import Program, Target
from pyro_manifold.diagnostics.aligned import align_draws
from pyro_manifold.diagnostics.difference_from_model import as_in_model
from pyro_manifold.diagnostics.symmetries import symmetries
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry

Unit = Literal["chains", "runs"]


@dataclass(frozen=True)
class Notes:
    """Results of a sampler besides draws and statistics.

    Attributes:
        entries: further entries of `MCMC.diagnostics`, such as those of replica exchange.
        lines: further lines below the table of `MCMC.summary`.
        num_superchains: number of groups of chains with a common initial value, for nested R-hat.
        chain_length: number of successive draws of `SMC` that are states of one chain; None for independent draws.
        relative_variance: of the evidence of all runs.
        from_prior: whether runs began at the prior, so that their log density can be compared with that of chains.
        levels: statistics of the levels of `SMC`, ``{name: (runs, levels)}``.
        attributes: attributes of the group ``sample_stats`` in ArviZ.
    """

    entries: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[str] = ()
    num_superchains: int | None = None
    chain_length: int | None = None
    relative_variance: float = 0.0
    from_prior: bool = False
    levels: Mapping[str, Tensor] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """Draws from a posterior with the model that they are from: what a run leaves behind.

    `MCMC.posterior` and `SMC.posterior` return one, `open_posterior` opens that of a stored run, and `of` takes draws
    of any origin. `summarise`, `modes`, `to_inferencedata` and all other diagnostics take it.

    Args:
        draws: ``{site: (chains, draws, ...)}``, constrained values; may be read from files on access.
        statistics: ``{name: (chains, draws)}``, such as ``lp``, the log density, and ``diverging``.
        program: the model with its arguments; None for draws without their model.
        notes: results of the sampler besides draws and statistics.
        unit: what the leading dimension counts, ``"chains"`` or ``"runs"`` of `SMC`.
        density: the density of the draws, where there is no program.
        known: symmetries of the posterior, if they were found before.

    Examples:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> posterior = Posterior({"U": StiefelUniform(3, 2).sample((4, 50))})
        >>> posterior.chains, posterior.length
        (4, 50)
        >>> Posterior.concat([posterior, posterior]).chains
        8
    """

    draws: Mapping[str, Tensor]
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    program: Program | None = None
    notes: Notes = Notes()
    unit: Unit = "chains"
    density: Target | None = None
    known: Sequence[Symmetry] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.program, Program | None):
            raise ValueError(
                f"Posterior: program is a {type(self.program).__name__}, expected a Program, such as "
                "Program(model, (y,)) of pyro_manifold.diagnostics, or None."
            )
        groups = [group for group in (self.draws, self.statistics) if isinstance(group, dict)]  # others are on disk
        values = {name: value for group in groups for name, value in group.items()}
        others = [name for name, value in values.items() if not isinstance(value, Tensor)]
        if others:
            raise ValueError(f"Posterior: {others} are no tensors: Posterior.of converts arrays.")
        fronts = {name: tuple(value.shape[:2]) for name, value in values.items()}
        if any(len(front) < 2 for front in fronts.values()) or len(set(fronts.values())) > 1:
            raise ValueError(
                f"Posterior: draws have the leading dimensions {fronts}, expected the same number of chains and draws "
                "for each, {name: (chains, draws, ...)}; for one chain, value[None]."
            )

    def __repr__(self) -> str:
        model = "" if self.program is None else f", of {getattr(self.program.model, '__name__', 'a model')}"
        return f"Posterior({list(self.draws)}: {self.chains} {self.unit} of {self.length} draws{model})"

    @classmethod
    def of(cls, source: Any, program: Program | None = None) -> Posterior:
        """Return the posterior of a run of this package or of Pyro, or of draws by name.

        Args:
            source: a `Posterior`; an `MCMC` or `SMC` of this package or a `pyro.infer.MCMC` that has run; or
                ``{name: (chains, draws, ...)}`` of tensors or arrays.
            program: for draws by name, the model with its arguments, such as ``Program(model, (y,))``.

        Raises:
            ValueError: for another object, a run without draws, draws with different numbers of chains or draws, or
                draws that do not fit the program.

        Warns:
            UserWarning: for arrays with more chains than draws, whose dimensions may be in another order.
        """
        if isinstance(source, Mapping):
            found = cls({name: _as_tensor(name, value) for name, value in source.items()}, program=program)
            _check_of_arrays(found, foreign=not all(isinstance(value, Tensor) for value in source.values()))
            return found
        if program is not None:
            raise ValueError("Posterior.of: program is for draws by name; a run or Posterior has its own.")
        if isinstance(source, Posterior):
            return source
        if hasattr(source, "posterior"):
            return cls.of(source.posterior)
        samples = getattr(source, "_samples", None)
        if samples is None:
            raise ValueError(
                f"Posterior.of: {type(source).__name__} has no draws, expected an MCMC or SMC that has run, or "
                "{name: (chains, draws, ...)}."
            )
        return of_pyro(source)

    @classmethod
    def concat(cls, parts: Sequence[Posterior]) -> Posterior:
        """Join posteriors of the same model chain by chain; of different lengths, the last draws are kept.

        Statistics that some lack are left out. Of the notes, those on the precision of particles are kept.

        Raises:
            ValueError: without parts, or for parts with other sites, shapes, models or arguments, for parts without
                draws, or for chains together with runs of `SMC`.
        """
        parts = [parts] if isinstance(parts, Posterior) else list(parts)
        others = [type(part).__name__ for part in parts if not isinstance(part, Posterior)]
        if not parts or others:
            found = f"found {others[0]}, " if others else ""
            raise ValueError(f"Posterior.concat: {found}expected a list of at least one Posterior; see Posterior.of.")
        if len({part.unit for part in parts}) > 1:
            raise ValueError(
                "Posterior.concat: chains and runs of SMC cannot be joined: pass the latter as particles= of modes."
            )
        program, length = _common_program(parts), min(part.length for part in parts)
        draws = {name: _joined(name, [part.draws for part in parts], length) for name in _names(parts)}
        if not length and draws:
            raise ValueError("Posterior.concat: one of the parts has no draws: leave it out.")
        shared = [name for name in parts[0].statistics if all(name in part.statistics for part in parts)]
        statistics = {name: _joined(name, [part.statistics for part in parts], length) for name in shared}
        known = parts[0].known if all(part.known == parts[0].known for part in parts) else None
        return cls(draws, statistics, program, _joined_notes(parts), parts[0].unit, parts[0].density, known)

    @classmethod
    def of_guide(cls, guide: Callable[..., Any], program: Program, length: int = 1000) -> Posterior:
        """Draw from a fitted guide of a model, as one chain of independent draws.

        Args:
            guide: a guide of Pyro or of this package, or any function that samples the sites of the model.
            program: the model with its arguments, which are those of the guide too.
            length: number of draws.

        Raises:
            ValueError: for a guide without some of the sites of the model, or with other shapes or supports.
        """
        if not callable(guide) or not isinstance(program, Program):
            raise ValueError("Posterior.of_guide: expected a guide and a Program, such as mcmc.program.")
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise ValueError(f"Posterior.of_guide: length={length!r}, expected a positive integer.")
        target = program.target
        shapes = {name: value.shape for name, value in target.values(target.draw()).items()}
        with torch.no_grad():
            found = Predictive(guide, num_samples=length)(*program.args, **program.kwargs)
        missing = sorted(set(shapes) - set(found))
        if missing:
            raise ValueError(f"Posterior.of_guide: the guide has no sites {missing}, expected those of the model.")
        # Pyro's draws have dimensions of size 1 for plates that a site is not in.
        wrong = [name for name, shape in shapes.items() if found[name].numel() != length * shape.numel()]
        if wrong:
            raise ValueError(
                f"Posterior.of_guide: '{wrong[0]}' has shape {tuple(found[wrong[0]].shape[1:])} in the guide, expected "
                f"{tuple(shapes[wrong[0]])} as in the model."
            )
        draws = {name: found[name].reshape(length, *shape) for name, shape in shapes.items()}
        _check_supports(draws, program)
        return cls({name: value.unsqueeze(0) for name, value in draws.items()}, program=program)

    @property
    def chains(self) -> int:
        """Number of chains, or of runs."""
        return self._front[0]

    @property
    def length(self) -> int:
        """Number of draws of each chain."""
        return self._front[1]

    @cached_property
    def _front(self) -> tuple[int, int]:
        for group in (self.draws, self.statistics):
            for name in group:
                chains, draws = group[name].shape[:2]
                return chains, draws
        return 0, 0

    @property
    def flat(self) -> dict[str, Tensor]:
        """Draws of all chains together, ``{site: (chains · draws, ...)}``."""
        return {name: value.detach().flatten(0, 1) for name, value in self.draws.items()}

    @property
    def log_density(self) -> Tensor | None:
        """Log density of each draw up to a constant, ``(chains, draws)``; None if it was not recorded."""
        return self.statistics.get("lp")

    @property
    def divergences(self) -> int:
        """Number of draws whose trajectory diverged."""
        return int(self.statistics["diverging"].sum()) if "diverging" in self.statistics else 0

    @cached_property
    def symmetries(self) -> Sequence[Symmetry] | None:
        """Symmetries of the posterior, found once; None if its density cannot be evaluated.

        See `MCMC.symmetries`.
        """
        return found_symmetries(self._target, self.draws) if self.known is None else self.known

    def _target(self) -> Target | None:
        return self.density if self.program is None else self.program.target

    def _why_without_density(self) -> str:
        """Describe why the density of these draws cannot be evaluated."""
        try:
            target = self._target()
        except Exception as error:  # a model can fail in any way
            return f"the model fails ({error})"
        if target is None:
            return "there is no model: pass program=Program(model, args) of pyro_manifold.diagnostics"
        try:
            as_in_model(target, self.draws)
        except ValueError as error:
            return str(error)
        return "its density cannot be evaluated at these draws"

    def aligned(self) -> Posterior:
        """Return the draws aligned by the symmetries of the posterior, as in ``get_samples(align=True)``.

        Only sites with a symmetry are read from the files of a stored run; others are read on access as before.

        Raises:
            ValueError: if the symmetries are not known.

        Warns:
            UserWarning: for draws that are not finite: sites that change with them are not aligned.
        """
        if self.symmetries is None:
            raise ValueError(
                f"align: the symmetries of this posterior are not known, since {self._why_without_density()}. Draws of "
                "a single site can be aligned by pyro_manifold.diagnostics.align_signs, align_signs_and_permutations "
                "or align_rotations."
            )
        draws = {name: self.draws[name] for each in self.symmetries for name in each.names}
        left = sorted(name for name, x in draws.items() if not bool(x.isfinite().all()))
        if left:
            warnings.warn(f"Draws of {left} are not finite: sites that change with them are not aligned.", stacklevel=2)
        finite = [each for each in self.symmetries if not set(each.names) & set(left)]
        aligned = align_draws(draws, finite).draws if self.length else draws
        others: Any = self.draws  # read on access
        return replace(self, draws=ChainMap(aligned, others), known=self.symmetries)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling; symmetries are found again in a copy, with its model."""
        return {name: value for name, value in vars(self).items() if name != "symmetries"}


def found_symmetries(target_of: Callable[[], Target | None], samples: Mapping[str, Tensor]) -> list[Symmetry] | None:
    """Return the symmetries of a density at draws of a run; None if the density cannot be evaluated.

    Args:
        target_of: returns the target of the run, or None if the density is not known; it may raise an error.
        samples: draws ``{site: (chains, draws, ...)}``.
    """
    try:
        target = target_of()
        if target is None:
            return None
        samples = as_in_model(target, samples)
        found = symmetries(target, {name: value.flatten(0, 1) for name, value in samples.items()})
        return [each for each in found if all(bool(samples[name].isfinite().all()) for name in each.names)]
    except Exception:  # a model can fail in any way; the table is then shown without symmetries
        return None


def of_pyro(mcmc: Any) -> Posterior:
    """Return the posterior of a finished run by Pyro's own `MCMC`, or by one of its kernels."""
    model, reports = getattr(mcmc.kernel, "model", None), list(mcmc._diagnostics)
    samples: dict[str, Tensor] = {name: value.detach() for name, value in mcmc._samples.items()}
    recorded: list[Any] = [(report or {}).get("sample stats") for report in reports]
    statistics: dict[str, Tensor] = {}
    if recorded and all(recorded):  # of a kernel of this package
        statistics = {name: torch.stack([chain[name] for chain in recorded]) for name in recorded[0]}
    elif samples and reports and all(report and "divergences" in report for report in reports):
        diverging = torch.zeros(next(iter(samples.values())).shape[:2], dtype=torch.bool)
        for chain, report in enumerate(reports):
            diverging[chain, list(report["divergences"])] = True
        statistics["diverging"] = diverging
    program = None if model is None else Program(model, mcmc._args, mcmc._kwargs)
    rates = {
        f"chain {k}": each["acceptance rate"] for k, each in enumerate(reports) if each and "acceptance rate" in each
    }
    return Posterior(samples, statistics, program, Notes({"acceptance_rate": rates} if rates else {}))


def _check_of_arrays(posterior: Posterior, *, foreign: bool) -> None:
    """Check what other programs may do otherwise: the order of dimensions, and sites, shapes and supports."""
    if foreign and posterior.chains > max(1, posterior.length):
        warnings.warn(
            f"There are more chains ({posterior.chains}) than draws ({posterior.length}): expected arrays "
            "(chains, draws, ...); for one chain, value[None].",
            stacklevel=4,
        )
    if posterior.program is not None:
        target = posterior.program.target
        try:
            as_in_model(target, posterior.draws)
        except ValueError as error:
            raise ValueError(f"Posterior.of: {error}, expected the draws of program's model.") from None


def _as_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        array = np.ascontiguousarray(value)
        return torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Posterior.of: '{name}' is no array of numbers, (chains, draws, ...): {error}.") from None


def _check_supports(draws: Mapping[str, Tensor], program: Program) -> None:
    """Raise ValueError if draws of a site are outside of its support in the model, unless that depends on others."""
    nodes = program.trace({name: value[0] for name, value in draws.items()}).nodes
    for name in sorted(set(draws) - program.target.dependent):
        support = nodes[name]["fn"].support
        outside = int((~support.check(draws[name])).sum())
        if outside:
            raise ValueError(
                f"Posterior.of_guide: draws of '{name}' are outside of its support in the model, {support}: take a "
                "guide with the same support."
            )


def _common_program(parts: Sequence[Posterior]) -> Program | None:
    programs = [part.program for part in parts if part.program is not None]
    if not programs:
        return None
    first, *others = programs
    for other in others:
        if other.model is not first.model or (other is not first and other.fingerprints() != first.fingerprints()):
            raise ValueError("Posterior.concat: the parts are of different models or data, expected the same for all.")
    return first


def _joined_notes(parts: Sequence[Posterior]) -> Notes:
    """Return the notes on the precision of particles; the relative variance is that of a mean over parts."""
    notes = [part.notes for part in parts]
    variance = sum(each.relative_variance for each in notes) / len(notes) ** 2
    lengths = [each.chain_length for each in notes if each.chain_length is not None]
    from_prior = all(each.from_prior for each in notes)
    return Notes(chain_length=max(lengths, default=None), relative_variance=variance, from_prior=from_prior)


def _names(parts: Sequence[Posterior]) -> list[str]:
    names = [sorted(part.draws) for part in parts]
    if any(each != names[0] for each in names):
        raise ValueError(f"Posterior.concat: the parts have the sites {names}, expected the same for all.")
    return list(parts[0].draws)


def _joined(name: str, parts: Sequence[Mapping[str, Tensor]], length: int) -> Tensor:
    values = [part[name][:, part[name].shape[1] - length :] for part in parts]
    if len({value.shape[2:] for value in values}) > 1:
        shapes = [tuple(value.shape[2:]) for value in values]
        raise ValueError(f"Posterior.concat: '{name}' has the shapes {shapes}, expected the same for all parts.")
    return torch.cat(values)
