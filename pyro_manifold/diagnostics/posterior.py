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
from pyro_manifold.diagnostics.deterministic import deterministic_by_chain
from pyro_manifold.diagnostics.difference_from_model import as_in_model, check_bounds, latent_sites
from pyro_manifold.diagnostics.joined import common_names, common_program, joined_values
from pyro_manifold.diagnostics.notes import NO_NOTES, Notes, joined_notes
from pyro_manifold.diagnostics.symmetries import symmetries
from pyro_manifold.diagnostics.symmetry_of_columns import Symmetry

Unit = Literal["chains", "runs"]


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
    notes: Notes = NO_NOTES
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
            return _checked(found, "Posterior.of", foreign=not all(isinstance(x, Tensor) for x in source.values()))
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
                draws, for draws that do not fit the model of the others, or for chains together with runs of `SMC`.

        Warns:
            UserWarning: if divergences of one part are left out with their statistic.
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
        program, length = common_program([part.program for part in parts]), min(part.length for part in parts)
        if program is not None:
            parts = [part.of_model(program) for part in parts]
        draws = {
            name: joined_values(name, [part.draws for part in parts], length)
            for name in common_names([part.draws for part in parts])
        }
        if not length and draws:
            raise ValueError("Posterior.concat: one of the parts has no draws: leave it out.")
        shared = [name for name in parts[0].statistics if all(name in part.statistics for part in parts)]
        statistics = {name: joined_values(name, [part.statistics for part in parts], length) for name in shared}
        divergences = sum(part.divergences for part in parts)
        if divergences and "diverging" not in statistics:
            without = sum("diverging" not in part.statistics for part in parts)
            warnings.warn(
                f"Posterior.concat: {divergences} divergences are no longer counted, since {without} of {len(parts)} "
                "parts have no statistic 'diverging'.",
                stacklevel=2,
            )
        known = parts[0].known if all(part.known == parts[0].known for part in parts) else None
        return cls(
            draws,
            statistics,
            program,
            joined_notes([part.notes for part in parts]),
            parts[0].unit,
            parts[0].density,
            known,
        )

    def of_model(self, program: Program) -> Posterior:
        """Return the draws with a model, if they have none, after comparing them with its sites."""
        if self.program is not None or self.density is not None:
            return self
        return _checked(replace(self, program=program), "Posterior.concat", foreign=False)

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

    def without_density(self) -> str:
        """Return why the density of these draws cannot be evaluated, as a clause."""
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

        Deterministic sites among the draws are those of the aligned draws; draws by names that the model does not have
        stay as they are.

        Only sites with a symmetry are read from the files of a stored run; others are read on access as before.

        Raises:
            ValueError: if the symmetries are not known.

        Warns:
            UserWarning: for draws that are not finite: sites that change with them are not aligned.
        """
        if self.symmetries is None:
            raise ValueError(
                f"align: the symmetries of this posterior are not known, since {self.without_density()}. Draws of "
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
        found = ChainMap(aligned, others)
        return replace(self, draws=ChainMap(self.functions_of(found), *found.maps), known=self.symmetries)

    def functions_of(self, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return those deterministic sites that are among the draws, at other draws of the model's sites."""
        if self.program is None or not self.length:
            return {}
        latent = latent_sites(self.program.target)
        names = set(draws) - latent
        if not names:
            return {}
        found = deterministic_by_chain(self.program, {name: draws[name] for name in latent})
        return {name: value for name, value in found.items() if name in names}

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
        latent = latent_sites(target)
        samples = {name: value for name, value in samples.items() if name in latent}
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


def _checked(posterior: Posterior, where: str, *, foreign: bool) -> Posterior:
    """Return draws of another program in the dtypes of the model; check dimensions, sites, shapes and supports."""
    if foreign and posterior.chains > max(1, posterior.length):
        warnings.warn(
            f"There are more chains ({posterior.chains}) than draws ({posterior.length}): expected arrays "
            "(chains, draws, ...); for one chain, value[None].",
            stacklevel=4,
        )
    if posterior.program is None:
        return posterior
    target = posterior.program.target
    try:
        draws = as_in_model(target, posterior.draws)
        if posterior.length:
            check_bounds(posterior.program, draws)
    except ValueError as error:
        raise ValueError(f"{where}: {error}, expected the draws of program's model.") from None
    return replace(posterior, draws=draws)


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
