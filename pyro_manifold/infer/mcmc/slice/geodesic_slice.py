"""Geodesic slice sampling: a point of the slice on a geodesic in a random direction, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from pyro.infer.autoguide.initialization import init_to_uniform
from torch import Size, Tensor
from torch.distributions import Transform
from torch.distributions.constraints import Constraint

from pyro_manifold.density.batched import Sites
from pyro_manifold.density.batched_density import BatchedDensity
from pyro_manifold.density.batches import Batches
from pyro_manifold.density.model import Target
from pyro_manifold.infer.mcmc.checks import check_counts, check_positive, check_share
from pyro_manifold.infer.mcmc.hmc.reflection import reflections
from pyro_manifold.infer.mcmc.hmc.step_size import windows
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.transitions.composition import Composition
from pyro_manifold.infer.mcmc.transitions.problem import Problem
from pyro_manifold.infer.mcmc.transitions.states import (
    Block,
    Blocks,
    PlainState,
    Statistics,
    choose,
    normal_like,
    per_chain,
    uniform_like,
)
from pyro_manifold.manifolds import Euclidean, Manifold, Sphere, Stiefel
from pyro_manifold.store.saving import Saved

Factors = Mapping[Block, Tensor]
"""For each block in flat space the standard deviations of its coordinates, in which directions are drawn."""

_MOST_ROUNDS = 300  # each takes a third of the bracket away on average: after 100 nothing is left but the point itself


class Bracket(NamedTuple):
    """An interval of times about 0 for each chain, and what is asked next; every entry has shape ``(chains,)``.

    Attributes:
        left: its beginning, ≤ 0.
        right: its end, ≥ 0.
        proposal: a time in it, uniform.
        to_left: how many more widths it may grow at its beginning; None where no bracket ever grows.
        to_right: the same at its end, once its beginning is settled.
    """

    left: Tensor
    right: Tensor
    proposal: Tensor
    to_left: Tensor | None = None
    to_right: Tensor | None = None

    def question(self) -> tuple[Tensor, Tensor | None]:
        """The time at which the density is wanted: an end that may grow, else the proposal; and which are proposals."""
        if self.to_left is None or self.to_right is None:
            return self.proposal, None
        at_left, at_right = self.to_left > 0, self.to_right > 0
        time = torch.where(at_left, self.left, torch.where(at_right, self.right, self.proposal))
        return time, ~(at_left | at_right)

    def after(self, inside: Tensor, width: float, uniform: Tensor) -> Bracket:
        """The bracket when it is known whether the time that was asked is in the slice.

        Args:
            inside: whether it is.
            width: by which an end moves.
            uniform: numbers in [0, 1) for the next proposal.
        """
        cut, before = self.proposal, self.proposal < 0
        left, right = torch.where(before, cut, self.left), torch.where(before, self.right, cut)
        if self.to_left is None or self.to_right is None:
            return Bracket(left, right, left + uniform * (right - left))
        at_left, grows = self.to_left > 0, (self.to_left > 0) | (self.to_right > 0)
        left = torch.where(grows, self.left - width * (at_left & inside), left)
        right = torch.where(grows, self.right + width * (~at_left & inside), right)
        to_left = torch.where(at_left, (self.to_left - 1) * inside, self.to_left)
        to_right = torch.where(at_left, self.to_right, (self.to_right - 1).clamp(min=0) * inside)
        return Bracket(left, right, left + uniform * (right - left), to_left, to_right)


class Line(NamedTuple):
    """Search of the geodesics of one block.

    Attributes:
        manifold: on which they are.
        width: length of the first bracket, at unit speed.
        max_widths: to how many widths a bracket may grow.
        closed: whether every geodesic is a circle as long as the width.
    """

    manifold: Manifold
    width: float
    max_widths: int = 1
    closed: bool = False

    def velocity(self, position: Tensor, factor: Tensor | None, random: torch.Generator) -> Tensor:
        """Uniform unit tangent vectors of all that a chain has in the block; of a flat one in units of a factor."""
        tangent = self.manifold.tangent_projection(position, normal_like(position, random))
        length = torch.linalg.vector_norm(tangent.flatten(1), dim=1)
        unit = tangent / per_chain(length, tangent)
        return unit if factor is None else unit * factor

    def at(self, position: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return points of the geodesics at a time of each chain, restored to the manifold."""
        return self.manifold.restoration(self.manifold.geodesic_flow(position, velocity, per_chain(time, position))[0])

    def bracket(self, like: Tensor, random: torch.Generator) -> Bracket:
        """The first bracket of each chain, placed at random about 0, with a first proposal.

        A circle is cut where the first proposal is, whichever way round: nothing of it is lost if that is refused.
        """
        place = self.width * uniform_like(like, random)
        if self.closed:
            return Bracket(place - self.width, place, place)
        first = self.width * uniform_like(like, random) - place
        if self.max_widths == 1:
            return Bracket(-place, self.width - place, first)
        to_left = (self.max_widths * uniform_like(like, random)).floor()
        return Bracket(-place, self.width - place, first, to_left, self.max_widths - 1 - to_left)


class Sweep:
    """A point of the slice for one block after the other, given the rest.

    Args:
        lines: of each block.
        at: positions to states.
    """

    def __init__(self, lines: Mapping[Block, Line], at: Callable[[Blocks], PlainState]) -> None:
        self._lines = lines
        self._at = at

    def __call__(self, state: PlainState, settings: Factors, random: torch.Generator) -> tuple[PlainState, Statistics]:
        found = torch.ones_like(state.energy, dtype=torch.bool)
        evaluations = torch.zeros_like(found, dtype=torch.long)
        for block, line in self._lines.items():
            state, moved, made = self._moved(state, block, line, settings.get(block), random)
            found, evaluations = found & moved, evaluations + made
        return state, {"lp": -state.energy, "accepted": found, "n_evaluations": evaluations}

    def _moved(
        self, state: PlainState, block: Block, line: Line, factor: Tensor | None, random: torch.Generator
    ) -> tuple[PlainState, Tensor, Tensor]:
        """A state on the slice, which chains have found one, and after how many evaluations."""
        start = state.position[block]
        velocity = line.velocity(start, factor, random)
        bracket = line.bracket(state.energy, random)
        energy = state.energy
        highest = energy - torch.log1p(-uniform_like(energy, random))
        waiting, evaluations = torch.ones_like(energy, dtype=torch.bool), torch.zeros_like(energy, dtype=torch.long)
        for _ in range(line.max_widths + _MOST_ROUNDS):
            time, proposed = bracket.question()
            candidate = self._at({**state.position, block: line.at(start, velocity, time)})
            inside = (candidate.energy <= highest) & candidate.energy.isfinite()
            accepted = inside & waiting if proposed is None else inside & waiting & proposed
            state = choose(accepted, candidate, state)
            evaluations += waiting
            waiting = waiting & ~accepted
            if not bool(waiting.any()):
                break
            bracket = bracket.after(inside, line.width, uniform_like(energy, random))
        return state, ~waiting, evaluations


class Spread(Saved):
    """Standard deviations of coordinates within chains: modes that different chains sit in must not pass for spread.

    Args:
        position: of the chains, ``(chains, size)``, for shapes.
    """

    changing: ClassVar[tuple[str, ...]] = ("factor", "_count", "_mean", "_squares")

    def __init__(self, position: Tensor) -> None:
        self.factor = torch.ones_like(position[0])
        self._forget(position)

    def _forget(self, position: Tensor) -> None:
        self._count, self._mean, self._squares = 0, torch.zeros_like(position), torch.zeros_like(position[0])

    def update(self, position: Tensor) -> None:
        """Take in where the chains are."""
        self._count += 1
        before = position - self._mean
        self._mean = self._mean + before / self._count
        self._squares = self._squares + (before * (position - self._mean)).mean(0)

    def settle(self) -> None:
        """Take the deviations of what has come since the last call, a little towards those of before."""
        weight = self._count / (self._count + 5.0)
        variance = weight * self._squares / max(self._count - 1, 1) + (1 - weight) * 1e-3 * self.factor.square()
        # Of chains that never moved, and for overflow: nothing to learn.
        usable = variance.isfinite() & (self._squares > 0)
        self.factor = torch.where(usable, variance.sqrt(), self.factor)
        self._forget(self._mean)


class Scales(Saved):
    """Learns the scales of flat blocks in the windows of warm-up; manifolds have theirs.

    Args:
        position: of the flat blocks.
        warmup_steps: how many iterations learn.
    """

    changing: ClassVar[tuple[str, ...]] = ("_spreads",)

    def __init__(self, position: Blocks, warmup_steps: int) -> None:
        self._spreads = {block: Spread(x) for block, x in position.items()}
        self._windows = windows(warmup_steps)[1:-1]

    def settings(self, iteration: int) -> Factors:
        return {block: spread.factor for block, spread in self._spreads.items()}

    def learn(
        self, iteration: int, before: PlainState, after: PlainState, statistics: Statistics, random: torch.Generator
    ) -> None:
        window = next((window for window in self._windows if iteration - 1 in window), None)
        if window is None:
            return
        for block, spread in self._spreads.items():
            spread.update(after.position[block])
            if iteration == window.stop:
                spread.settle()


def line_on(manifold: Manifold, shape: Size, width: float, max_widths: int) -> Line:
    r"""Return the search of geodesics that move all matrices of a block together.

    At unit speed of a matrix whose columns all turn alike, each column of m turns with speed $1/\sqrt m$, so that
    $2\pi\sqrt m$ brings it round. A square one turns in planes, and leaves a column where it is if n is odd.

    Args:
        manifold: of one point.
        shape: of the block in one chain, batch dimensions in front.
        width: where the manifold may be without end.
        max_widths: there.
    """
    if not isinstance(manifold, Sphere | Stiefel):
        return Line(manifold, width, max_widths)
    batch = shape[: len(shape) - manifold.event_dim].numel()
    n, p = (*shape[len(shape) - manifold.event_dim :], 1)[:2]
    turning = batch * (p if p < n else 2 * (n // 2))
    return Line(manifold, 2 * math.pi * math.sqrt(turning), closed=batch == 1 and (p == 1 or p == n <= 3))


class GeodesicSlice(Kernel):
    r"""Slice sampling along geodesics, without gradients and without a step size.

    An iteration moves each block of sites in turn, given the others: each site on a manifold is a block, all other
    sites are one. From where a chain is, x, it

    1. draws a level below the density p, $\log y = \log p(x) + \log u$ with u uniform in (0, 1], and a
       direction v, uniform on the unit sphere of tangent vectors at x;
    2. goes to a point of $\{t : p(\gamma(t)) \ge y\}$, where $\gamma$ is the geodesic with
       $\gamma(0) = x, \gamma'(0) = v$: t is drawn uniformly from a bracket about 0, and while
       $\gamma(t)$ is not in the slice, the bracket is cut at t and t is drawn again.

    The geodesic flow keeps the volume of pairs (x, v), so that the draws have exactly the distribution of the model
    (densities on the manifold are with respect to the normalised Haar measure, the uniform distribution). The bracket:

    - a unit vector (``constraints.sphere``, or `StiefelUniform` with one column), and a single rotation of 2 or 3
      dimensions: the whole circle that the geodesic is;
    - n×p orthonormal matrices of length $2\pi\sqrt p$, a turn of all columns; with a plate of m of them
      $2\pi\sqrt{mp}$, for they move together;
    - sites without a manifold, in Pyro's unconstrained space: ``width``, in units of the standard deviations of the
      coordinates, which warm-up learns; it grows by steps of ``width`` while its ends are in the slice, to at most
      ``max_widths`` of them (Neal 2003).

    So chains pass between modes on a manifold, also where the density between them is zero. An iteration takes three
    to ten evaluations of the density for each block, of all chains at once, and moves along one direction: in d
    dimensions chains take a few times d iterations to forget where they were. `OHMC` is faster where there is a
    gradient and one mode.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: ``{site: tensor}`` to the potential energy, a tensor of one element; needs ``initial_params`` of
            MCMC, and ``manifolds`` for sites that are on one. It need not be differentiable.
        width: of the bracket in flat space, in standard deviations.
        max_widths: to how many widths it may grow; 1 for not at all.
        transforms: maps to unconstrained space for some of the sites. A site on a manifold that is named moves there
            instead, in the coordinates of that chart.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        jit_compile: compile the model's density with `torch.compile`; falls back with a warning.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: do not warn when compiling falls back.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``; the
            others are in unconstrained space.
        reflection_probability: how often a square Stiefel site (n = p) is offered a reflection, so that both signs of
            its determinant are visited; geodesics never change the sign.

    dtype and device are those of the model's tensors. A density that is NaN or infinite is below every level.
    Statistics are ``lp``, ``n_evaluations`` of the density (reflections aside) and ``accepted``, False where a block
    stayed because nothing was left of its bracket.

    Raises:
        ValueError: for arguments out of range; and by ``MCMC.run`` for a start that is off the manifold or has no
            finite energy, and for observed NaN.
        NotImplementedError: by ``MCMC.run``, for subsampled plates.

    Source: Durmus, Gruffaz, Kailas, Saksman & Vihola, On the convergence of geodesic slice sampling on manifolds (arXiv
    2312.00417); Habeck, Hasenpflug, Kodgirwar & Rudolf, Geodesic slice sampling on the sphere (arXiv 2301.08056); Neal,
    Slice sampling, Annals of Statistics 31 (2003).

    Examples:
        >>> import pyro, torch
        >>> from pyro_manifold.distributions import StiefelUniform
        >>> from pyro_manifold.infer import MCMC, GeodesicSlice
        >>> def model():
        ...     x = pyro.sample("x", StiefelUniform(3, 1))
        ...     pyro.factor("two modes", torch.logaddexp(20 * x[0, 0], 20 * x[1, 0]))
        >>> mcmc = MCMC(GeodesicSlice(model), num_samples=10, warmup_steps=10, disable_progbar=True)
        >>> mcmc.run()
        >>> mcmc.get_samples()["x"].shape
        torch.Size([10, 3, 1])
    """

    def __init__(
        self,
        model: Callable[..., Any] | None = None,
        potential_fn: Callable[[Sites], Tensor] | None = None,
        width: float = 3.0,
        max_widths: int = 8,
        transforms: Mapping[str, Transform] | None = None,
        max_plate_nesting: int | None = None,
        jit_compile: bool = False,
        jit_options: dict[str, Any] | None = None,
        ignore_jit_warnings: bool = False,
        init_strategy: Callable[..., Any] = init_to_uniform,
        *,
        manifolds: Mapping[str, Manifold | Constraint] | None = None,
        reflection_probability: float = 0.5,
    ) -> None:
        super().__init__(
            model,
            potential_fn,
            transforms=transforms,
            max_plate_nesting=max_plate_nesting,
            init_strategy=init_strategy,
            manifolds=manifolds,
            ignore_jit_warnings=ignore_jit_warnings,
        )
        check_positive(width=width)
        check_counts(max_widths=max_widths)
        check_share(reflection_probability=reflection_probability, open_above=False)
        self._width, self._max_widths = float(width), int(max_widths)
        self._reflection_probability = float(reflection_probability)
        self._jit_compile, self._jit_options = jit_compile, jit_options

    def batched(self, target: Target, example: Sites) -> BatchedDensity:
        """Energies of all chains, without gradients."""
        compile = (self._jit_options or {}) if self._jit_compile else None
        options: Any = {"gradient": False, "compile": compile, "warn": self._warn}
        return BatchedDensity(target.on, Batches(), example, target.manifolds, **options)

    def compose(self, problem: Problem, warmup_steps: int) -> Composition[PlainState, Factors]:
        """Reflections of square sites, then a sweep."""

        def at(position: Blocks) -> PlainState:
            return PlainState(position, *problem.potential(position))

        flat = {block: problem.position[block] for block in problem.layout.groups}
        return Composition(
            state=at(problem.position),
            transitions=[*reflections(problem, self._reflection_probability), Sweep(self._lines(problem), at)],
            tuning=Scales(flat, warmup_steps),
            renew=lambda _, position: at(position),
        )

    def _lines(self, problem: Problem) -> dict[Block, Line]:
        """Return the searches of all blocks that can move."""
        lines = {}
        for block, x in problem.position.items():
            manifold = problem.manifolds.get(block, Euclidean())
            shape = x.shape[1:]
            if manifold.dimension(*shape[len(shape) - manifold.event_dim :]) and x[0].numel():
                lines[block] = line_on(manifold, shape, self._width, self._max_widths)
        return lines
