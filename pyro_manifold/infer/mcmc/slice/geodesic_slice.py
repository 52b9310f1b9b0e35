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

from pyro_manifold.density import BatchedDensity, Batches, Sites, Target
from pyro_manifold.infer.mcmc.adaptation import Adaptation, Adapter, WarmUpIteration, windows
from pyro_manifold.infer.mcmc.checks import check_counts, check_positive, check_share
from pyro_manifold.infer.mcmc.hmc import reflections
from pyro_manifold.infer.mcmc.kernel import Kernel
from pyro_manifold.infer.mcmc.transitions import (
    Block,
    Blocks,
    Composition,
    PositionState,
    Problem,
    Statistics,
    choose,
    normal_like,
    per_chain,
    uniform_like,
)
from pyro_manifold.manifolds import Euclidean, Manifold, Sphere, Stiefel

Factors = Mapping[Block, Tensor]
"""Standard deviations of the coordinates of each unconstrained block, which scale random directions."""

_MOST_ROUNDS = 300  # each removes a third of the bracket on average: after 100 only the point itself is left


class Bracket(NamedTuple):
    """Interval of times about 0 for each chain, with the current proposal; every entry has shape ``(chains,)``.

    Attributes:
        left: left end, ≤ 0.
        right: right end, ≥ 0.
        proposal: uniform time in the interval.
        to_left: number of widths by which the left end may still grow; None if brackets do not grow.
        to_right: the same for the right end, which grows after the left end.
    """

    left: Tensor
    right: Tensor
    proposal: Tensor
    to_left: Tensor | None = None
    to_right: Tensor | None = None

    def next_time(self) -> tuple[Tensor, Tensor | None]:
        """Return the time to evaluate, an end that may grow or else the proposal, and a mask of proposals."""
        if self.to_left is None or self.to_right is None:
            return self.proposal, None
        at_left, at_right = self.to_left > 0, self.to_right > 0
        time = torch.where(at_left, self.left, torch.where(at_right, self.right, self.proposal))
        return time, ~(at_left | at_right)

    def updated(self, inside: Tensor, width: float, uniform: Tensor) -> Bracket:
        """Return the bracket after an evaluation: with an end moved outwards, or cut at the proposal.

        Args:
            inside: whether the evaluated time is in the slice.
            width: step by which an end grows.
            uniform: uniform random numbers in [0, 1) for the next proposal.
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
    """Geodesics of one block, and their initial brackets.

    Attributes:
        manifold: manifold of the block.
        width: length of the initial bracket, at unit speed.
        max_widths: largest length of a bracket, in widths.
        closed: whether every geodesic is a circle of length ``width``.
    """

    manifold: Manifold
    width: float
    max_widths: int = 1
    closed: bool = False

    def velocity(self, position: Tensor, factor: Tensor | None, random: torch.Generator) -> Tensor:
        """Draw uniform unit tangent vectors of the whole block of each chain, scaled by ``factor`` if it is given."""
        tangent = self.manifold.tangent_projection(position, normal_like(position, random))
        length = torch.linalg.vector_norm(tangent.flatten(1), dim=1)
        unit = tangent / per_chain(length, tangent)
        return unit if factor is None else unit * factor

    def at(self, position: Tensor, velocity: Tensor, time: Tensor) -> Tensor:
        """Return the points of the geodesics at a time for each chain, projected to the manifold."""
        return self.manifold.restoration(self.manifold.geodesic_flow(position, velocity, per_chain(time, position))[0])

    def bracket(self, like: Tensor, random: torch.Generator) -> Bracket:
        """Return the initial bracket of each chain, placed at random about 0, with its first proposal.

        A circle is cut at the first proposal, so that all of it remains in the bracket if that is rejected.
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
    """Transition that updates one block after another by slice sampling along a geodesic, given the other blocks.

    Args:
        lines: geodesics of each block.
        at: function from positions to states.
    """

    def __init__(self, lines: Mapping[Block, Line], at: Callable[[Blocks], PositionState]) -> None:
        self._lines = lines
        self._at = at

    def __call__(
        self, state: PositionState, settings: Factors, random: torch.Generator
    ) -> tuple[PositionState, Statistics]:
        found = torch.ones_like(state.energy, dtype=torch.bool)
        evaluations = torch.zeros_like(found, dtype=torch.long)
        for block, line in self._lines.items():
            state, moved, made = self._moved(state, block, line, settings.get(block), random)
            found, evaluations = found & moved, evaluations + made
        return state, {"lp": -state.energy, "accepted": found, "n_evaluations": evaluations}

    def _moved(
        self, state: PositionState, block: Block, line: Line, factor: Tensor | None, random: torch.Generator
    ) -> tuple[PositionState, Tensor, Tensor]:
        """Return a state on the slice, a mask of the chains that found one, and the numbers of evaluations."""
        start = state.position[block]
        velocity = line.velocity(start, factor, random)
        bracket = line.bracket(state.energy, random)
        energy = state.energy
        highest = energy - torch.log1p(-uniform_like(energy, random))
        waiting, evaluations = torch.ones_like(energy, dtype=torch.bool), torch.zeros_like(energy, dtype=torch.long)
        for _ in range(line.max_widths + _MOST_ROUNDS):
            time, proposed = bracket.next_time()
            candidate = self._at({**state.position, block: line.at(start, velocity, time)})
            inside = (candidate.energy <= highest) & candidate.energy.isfinite()
            accepted = inside & waiting if proposed is None else inside & waiting & proposed
            state = choose(accepted, candidate, state)
            evaluations += waiting
            waiting = waiting & ~accepted
            if not bool(waiting.any()):
                break
            bracket = bracket.updated(inside, line.width, uniform_like(energy, random))
        return state, ~waiting, evaluations


class Spread(Adapter[Factors]):
    """Standard deviations of coordinates within chains, which are not inflated by chains in different modes.

    Args:
        block: block of unconstrained sites whose scales these are.
        position: its positions ``(chains, size)``, used for their shape.
    """

    changing: ClassVar[tuple[str, ...]] = ("factor", "_count", "_mean", "_squares")

    def __init__(self, block: Block, position: Tensor) -> None:
        self._block, self.factor = block, torch.ones_like(position[0])
        self._begin_window(position)

    def _begin_window(self, position: Tensor) -> None:
        self._count, self._mean, self._squares = 0, torch.zeros_like(position), torch.zeros_like(position[0])

    def contribute(self, settings: Factors, iteration: int) -> Factors:
        return {**settings, self._block: self.factor}

    def learn(self, seen: WarmUpIteration) -> None:
        self.update(seen.after.position[self._block])

    def update(self, position: Tensor) -> None:
        """Add the positions of one iteration."""
        self._count += 1
        before = position - self._mean
        self._mean = self._mean + before / self._count
        self._squares = self._squares + (before * (position - self._mean)).mean(0)

    def end_window(self, seen: WarmUpIteration) -> None:
        """Set the factor to the standard deviations of this window, shrunk slightly towards small ones."""
        weight = self._count / (self._count + 5.0)
        variance = weight * self._squares / max(self._count - 1, 1) + (1 - weight) * 1e-3 * self.factor.square()
        # The factor is unchanged if no chain has moved, or on overflow.
        usable = variance.isfinite() & (self._squares > 0)
        self.factor = torch.where(usable, variance.sqrt(), self.factor)
        self._begin_window(self._mean)


class Scales(Adaptation[Factors]):
    """Adaptation of the scales of unconstrained blocks in the windows of warm-up.

    Args:
        position: positions of the unconstrained blocks.
        warmup_steps: number of warm-up iterations.
    """

    def __init__(self, position: Blocks, warmup_steps: int) -> None:
        adapters = {", ".join(block): Spread(block, x) for block, x in position.items()}
        super().__init__(windows(warmup_steps)[1:-1], adapters)

    def initial_settings(self, iteration: int) -> Factors:
        return {}


def line_on(manifold: Manifold, shape: Size, width: float, max_widths: int) -> Line:
    r"""Return the geodesics of a block, which move all of its matrices jointly.

    If all m columns of a block rotate equally at joint unit speed, each has speed $1/\sqrt m$, and a full rotation has
    length $2\pi\sqrt m$. A square matrix rotates in planes, and fixes one direction if n is odd.

    Args:
        manifold: manifold of one point.
        shape: shape of the block in one chain, with batch dimensions first.
        width: initial length of brackets in unbounded manifolds.
        max_widths: largest length of these, in widths.
    """
    if not isinstance(manifold, Sphere | Stiefel):
        return Line(manifold, width, max_widths)
    batch = shape[: len(shape) - manifold.event_dim].numel()
    n, p = (*shape[len(shape) - manifold.event_dim :], 1)[:2]
    turning = batch * (p if p < n else 2 * (n // 2))
    return Line(manifold, 2 * math.pi * math.sqrt(turning), closed=batch == 1 and (p == 1 or p == n <= 3))


class GeodesicSlice(Kernel):
    r"""Slice sampling along geodesics, without gradients and without a step size.

    An iteration updates each block of sites in turn, given the others. Each site on a manifold is a block; all other
    sites are one block. From the current position x, it

    1. draws a level below the density p, $\log y = \log p(x) + \log u$ with u uniform in (0, 1], and a direction v,
       uniform on the unit sphere of tangent vectors at x;
    2. moves to a point of the slice $\{t : p(\gamma(t)) \ge y\}$ on the geodesic $\gamma$ with
       $\gamma(0) = x, \gamma'(0) = v$: t is drawn uniformly from a bracket about 0, and while $\gamma(t)$ is not in
       the slice, the bracket is cut at t and t is drawn again (shrinkage).

    The geodesic flow preserves the volume of pairs (x, v), so that the stationary distribution is exactly that of the
    model (densities on the manifold are with respect to the normalised Haar measure, the uniform distribution). The
    bracket is

    - for a unit vector (``constraints.sphere``, or `StiefelUniform` with one column), and for a single rotation in 2 or
      3 dimensions, the whole geodesic, a circle;
    - for n×p orthonormal matrices of length $2\pi\sqrt p$, a full rotation of all columns; for a plate of m of them of
      length $2\pi\sqrt{mp}$, since they move jointly;
    - for sites without a manifold, in Pyro's unconstrained space, of length ``width`` in units of the standard
      deviations of the coordinates, which are adapted in warm-up. It grows in steps of ``width`` while its ends are in
      the slice (stepping out), to at most ``max_widths`` of these (Neal 2003).

    Chains can therefore move between modes on a manifold even if the density between them is zero. An iteration costs
    three to ten evaluations of the density for each block, vectorised over chains, and moves along one direction: in d
    dimensions, the autocorrelation time is a few times d iterations. `OHMC` is faster for differentiable densities with
    one mode.

    Args:
        model: a Pyro model; give this or ``potential_fn``.
        potential_fn: function from ``{site: tensor}`` to the potential energy, a tensor of one element; requires
            ``initial_params`` of MCMC, and ``manifolds`` for sites on manifolds. It need not be differentiable.
        width: initial length of brackets in unconstrained space, in standard deviations.
        max_widths: largest length of these brackets, in widths; 1 for brackets that do not grow.
        transforms: transforms to unconstrained space for some of the sites. A site on a manifold in this mapping moves
            in unconstrained space, in the coordinates of its transform.
        max_plate_nesting: as in Pyro, for models with enumerated sites.
        jit_compile: whether to compile the model's density with `torch.compile`; falls back with a warning.
        jit_options: keyword arguments for `torch.compile`.
        ignore_jit_warnings: whether to suppress the warning about that fallback.
        init_strategy: a function of `pyro.infer.autoguide.initialization`.
        manifolds: for ``potential_fn``: the manifold of each site that has one, such as ``{"U": Stiefel()}``; other
            sites are in unconstrained space.
        reflection_probability: probability of proposing a reflection of a square Stiefel site (n = p) in an iteration,
            so that both signs of its determinant are visited; geodesics never change the sign.

    dtype and device are those of the model's tensors. Points with a density that is NaN or infinite are not in the
    slice. Statistics are ``lp``, the number ``n_evaluations`` of evaluations of the density (without reflections), and
    ``accepted``, which is False if a block did not move because its bracket shrank to the current position.

    Raises:
        ValueError: for arguments out of range; in ``MCMC.run``, for initial values that are off the manifold or have no
            finite energy, and for observed NaN.
        NotImplementedError: in ``MCMC.run``, for subsampled plates.

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
        """Return the function for energies of all chains, without gradients."""
        compile = (self._jit_options or {}) if self._jit_compile else None
        options: Any = {"gradient": False, "compile": compile, "warn": self._warn}
        return BatchedDensity(target.on, Batches(), example, target.manifolds, **options)

    @property
    def differentiates(self) -> bool:
        return False

    def compose(self, problem: Problem, warmup_steps: int) -> Composition[PositionState, Factors]:
        """Return the transitions of a run: reflections of square sites, then a sweep."""

        def at(position: Blocks) -> PositionState:
            return PositionState(position, *problem.potential(position))

        flat = {block: problem.position[block] for block in problem.layout.groups}
        earlier = reflections(problem, self._reflection_probability)
        return Composition(
            state=at(problem.position),
            transitions=[*([earlier] if earlier else []), Sweep(self._lines(problem), at)],
            tuning=Scales(flat, warmup_steps),
            at_position=lambda _, position: at(position),
        )

    def _lines(self, problem: Problem) -> dict[Block, Line]:
        """Return the geodesics of all blocks that can move."""
        lines = {}
        for block, x in problem.position.items():
            manifold = problem.manifolds.get(block, Euclidean())
            shape = x.shape[1:]
            if manifold.dimension(*shape[len(shape) - manifold.event_dim :]) and x[0].numel():
                lines[block] = line_on(manifold, shape, self._width, self._max_widths)
        return lines
