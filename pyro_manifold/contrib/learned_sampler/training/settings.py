"""Training tasks and training settings of meta-learned samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from pyro.infer.autoguide.initialization import init_to_uniform

from pyro_manifold.infer.mcmc import check_positive, check_positive_integer, is_a


@dataclass(frozen=True)
class MetaTask:
    """Posterior used as a training task.

    Args:
        model: a Pyro model; plates may subsample.
        args: its positional arguments.
        kwargs: its keyword arguments.
        data_loader: data loader of batches of its positional arguments, in place of ``args``.
        init_strategy: initialisation of chains, a function of `pyro.infer.autoguide.initialization`.
        data_size: number of its data, as in `NNSGHMC`.

    Raises:
        ValueError: for arguments of other types, and for both ``args`` and ``data_loader``.

    Examples:
        >>> import pyro, torch, pyro.distributions as dist
        >>> def model(y):
        ...     mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        ...     pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)
        >>> task = MetaTask(model, args=(torch.ones(2),), data_size=1)
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
            raise ValueError(
                "args and data_loader are both given, expected one of them, since both are positional arguments."
            )
        if not isinstance(self.kwargs, Mapping):
            raise ValueError(f"kwargs={self.kwargs!r}, expected a dictionary.")
        if not callable(self.init_strategy):
            raise ValueError(f"init_strategy={self.init_strategy!r}, expected a function of a site.")


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training of a sampler.

    Attributes:
        step_size: ε₀ of all chains on the first task, and on tasks without data; on others it follows the number of
            data, as `MetaSampler.step_size_for` does in use.
        step_factors: factors of the step size; rounds on a task use them in turn. With factors above 1 the sampler
            learns the longer steps with which it may be used.
        chains: number of parallel chains in a round.
        steps: steps per segment; the weights are updated once after each segment.
        segments: segments per round; chains continue between segments and are initialised again in each round.
        truncation: number of steps of truncated back-propagation.
        fraction: fraction of the coordinates, drawn at each step, whose Q and D are differentiated, in (0, 1]; the
            mean of the gradient does not depend on it, since coordinates interact only through constants.
        thinning: number of steps between draws that enter the losses.
        burn_in: steps of a round before the in-chain loss is used.
        chains_within: number of chains, drawn in each segment, that enter the in-chain loss.
        within: weight of the in-chain loss relative to the cross-chain loss.
        scores: ``"joint"`` for scores of all coordinates together, if there are about as many chains as coordinates;
            ``"marginal"`` for scores of each coordinate separately, if there are fewer.
        learning_rate: learning rate of Adam.
        per_chain_minibatches: whether each chain has its own minibatches; one that all chains share takes less time.
        seed: seed of all random numbers.

    Raises:
        ValueError: for settings out of range; ``thinning`` ≤ ``truncation`` ≤ ``steps`` is required.

    Examples:
        >>> TrainingSettings(step_size=0.05, chains=20).scores
        'joint'
    """

    step_size: float
    step_factors: tuple[float, ...] = (1.0,)
    chains: int = 50
    steps: int = 100
    segments: int = 4
    truncation: int = 20
    fraction: float = 1.0
    thinning: int = 2
    burn_in: int = 50
    chains_within: int = 5
    within: float = 1.0
    scores: Literal["joint", "marginal"] = "joint"
    learning_rate: float = 0.003
    per_chain_minibatches: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        whole = ("chains", "steps", "segments", "truncation", "thinning", "chains_within")
        check_positive_integer(**{name: getattr(self, name) for name in whole})
        check_positive(step_size=self.step_size, learning_rate=self.learning_rate)
        if not isinstance(self.step_factors, tuple) or not self.step_factors:
            raise ValueError(f"step_factors={self.step_factors!r}, expected a tuple of positive numbers.")
        check_positive(**{f"step_factors[{k}]": factor for k, factor in enumerate(self.step_factors)})
        if not is_a(Real, self.fraction) or not 0 < self.fraction <= 1:
            raise ValueError(f"fraction={self.fraction!r}, expected a number in (0, 1].")
        if not is_a(Real, self.within) or not 0 <= self.within < float("inf"):
            raise ValueError(f"within={self.within!r}, expected a number ≥ 0.")
        for name in ("burn_in", "seed"):
            if not is_a(Integral, getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}, expected an integer ≥ 0.")
        if not isinstance(self.per_chain_minibatches, bool):
            raise ValueError(f"per_chain_minibatches={self.per_chain_minibatches!r}, expected True or False.")
        if self.scores not in ("joint", "marginal"):
            raise ValueError(f"scores={self.scores!r}, expected 'joint' or 'marginal'.")
        if self.chains < 4:
            raise ValueError(
                f"chains={self.chains}, expected at least 4, since scores are estimated from draws of all chains."
            )
        if self.truncation > self.steps:
            raise ValueError(
                f"truncation={self.truncation}, expected at most steps={self.steps}, after which the weights are "
                "updated."
            )
        if self.thinning > self.truncation:
            raise ValueError(
                f"thinning={self.thinning}, expected at most truncation={self.truncation}, so that each window has "
                "a draw."
            )
