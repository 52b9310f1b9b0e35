"""What a sampler is trained on, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from pyro.infer.autoguide.initialization import init_to_uniform

from pyro_manifold.infer.mcmc.checks import check_positive, check_positive_integer, is_a
from pyro_manifold.target.loader import FromLoader


@dataclass(frozen=True)
class MetaTask:
    """A posterior to train on.

    Args:
        model: a Pyro model; plates may subsample.
        args: its arguments.
        kwargs: its arguments by name.
        data_loader: where its positional arguments come from in batches, in place of ``args``.
        init_strategy: where chains begin, a function of `pyro.infer.autoguide.initialization`.
        data_size: number of its data, as in `NNSGHMC`.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    data_loader: Iterable[Any] | None = None
    init_strategy: Callable[..., Any] = init_to_uniform
    data_size: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.model):
            raise ValueError(f"model={self.model!r}, expected a Pyro model.")
        if not isinstance(self.args, tuple):
            raise ValueError(f"args={self.args!r}, expected a tuple.")
        if self.args and self.data_loader is not None:
            raise ValueError("args and data_loader: expected one of them, for both are positional arguments.")
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"kwargs={self.kwargs!r}, expected a dictionary.")
        if not callable(self.init_strategy):
            raise ValueError(f"init_strategy={self.init_strategy!r}, expected a function of a site.")

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Positional ones, or the loader that they come from."""
        return self.args if self.data_loader is None else (FromLoader(self.data_loader),)


@dataclass(frozen=True)
class Schooling:
    """How a sampler is trained.

    Attributes:
        step_size: ε₀ of all chains.
        chains: chains of a round, side by side.
        steps: steps of a segment, after which the weights change once.
        segments: segments of a round; the chains go on from one to the next and begin anew with the round.
        truncation: steps through which a draw is differentiated.
        share: share of the coordinates, chosen anew at each step, whose Q and D are differentiated, in (0, 1]; the mean
            of the gradient does not depend on it, for coordinates meet in constants alone.
        thinning: every so many steps the draws of all chains enter the losses.
        burn_in: steps of a round before the in-chain loss begins.
        chains_within: how many chains, chosen anew in each segment, the in-chain loss looks at.
        within: weight of the in-chain loss beside the cross-chain loss.
        scores: ``"joint"``, of all coordinates together, where chains are about as many; ``"marginal"``, of each
            coordinate by itself, where they are not.
        learning_rate: of Adam.
        seed: of everything that is random.
    """

    step_size: float
    chains: int = 50
    steps: int = 100
    segments: int = 4
    truncation: int = 20
    share: float = 1.0
    thinning: int = 2
    burn_in: int = 50
    chains_within: int = 5
    within: float = 1.0
    scores: Literal["joint", "marginal"] = "joint"
    learning_rate: float = 0.003
    seed: int = 0

    def __post_init__(self) -> None:
        whole = ("chains", "steps", "segments", "truncation", "thinning", "chains_within")
        check_positive_integer(**{name: getattr(self, name) for name in whole})
        check_positive(step_size=self.step_size, learning_rate=self.learning_rate)
        if not is_a(Real, self.share) or not 0 < self.share <= 1:
            raise ValueError(f"share={self.share!r}, expected a number in (0, 1].")
        if not is_a(Real, self.within) or not 0 <= self.within < float("inf"):
            raise ValueError(f"within={self.within!r}, expected a number ≥ 0.")
        for name in ("burn_in", "seed"):
            if not is_a(Integral, getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}, expected an integer ≥ 0.")
        if self.scores not in ("joint", "marginal"):
            raise ValueError(f"scores={self.scores!r}, expected 'joint' or 'marginal'.")
        if self.chains < 4:
            raise ValueError(f"chains={self.chains}, expected at least 4: the score of draws comes from many of them.")
        if self.truncation > self.steps:
            raise ValueError(
                f"truncation={self.truncation}, expected at most steps={self.steps}: the weights change after so many."
            )
        if self.thinning > self.truncation:
            raise ValueError(
                f"thinning={self.thinning}, expected at most truncation={self.truncation}: what is differentiated at "
                "once needs a draw."
            )
